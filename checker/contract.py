"""How a check is declared, and the registry that finds all of them."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from torch import Tensor

from tocsin.core.calls import Call
from tocsin.core.discovery import discover
from tocsin.core.terms import Layer, Operator, Phase, Priority, Profile

Ratio = Callable[..., Tensor]
"""`(call, **thresholds) -> ratio`: float32, [T] one a token, [R] one a row, or [1] for the call."""


@dataclass(frozen=True, slots=True)
class Check:
    """One declared check.

    Attributes:
        id: `layer.name`, which is also the path of its file.
        ratio: the check itself; 1.0 is the limit, `not (ratio <= 1)` is an alarm.
        operators: the operators it looks at, from the annotation of its first parameter.
        priority: who is told when it alarms.
        impact: what a violation does to the service.
        catches: ids of faults that it must catch; mirrors their `expect`.
        source: paper and equation, or repository and issue number.
        profile: the lightest profile under which it runs.
        guard_at: operators at which it runs under `guard` already, although `profile` is `full`.
        phase: before the operator runs (host-side, may veto the launch) or after; see `phase_of`.
        thresholds: names and defaults of its keyword parameters.
        remedy: what the reader of an alarm should do; ends the message.
        crosses_requests: one alarm is a sign that a request reads or overwrites another's data:
            it pages at once, however rare it is.
    """

    id: str
    ratio: Ratio
    operators: tuple[Operator, ...]
    priority: Priority
    impact: str
    catches: tuple[str, ...]
    source: str
    profile: Profile
    phase: Phase
    thresholds: Mapping[str, float]
    remedy: str
    module: str
    guard_at: tuple[Operator, ...] = ()
    crosses_requests: bool = False

    def profile_at(self, operator: Operator) -> Profile:
        """The lightest profile under which it runs at one operator."""
        return Profile.GUARD if operator in self.guard_at else self.profile

    @property
    def layer(self) -> Layer:
        """The layer, which is the first word of the id."""
        return Layer(self.id.partition(".")[0])

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.ratio) or "").partition("\n")[0]

    def __call__(self, call: Call, **thresholds: float) -> Tensor:
        """The ratio of one call under the defaults, overridden by `thresholds`."""
        return self.ratio(call, **{**self.thresholds, **thresholds})

    def with_thresholds(self, **thresholds: float) -> "Check":
        """The same check with other limits.

        Raises:
            ValueError: it has no threshold of that name.
        """
        unknown = set(thresholds) - set(self.thresholds)
        if unknown:
            raise ValueError(
                f"{self.id}: has no threshold {sorted(unknown)}; "
                f"known are {sorted(self.thresholds)}"
            )
        return replace(self, thresholds={**self.thresholds, **thresholds})


def check(
    check_id: str,
    *,
    priority: Priority,
    impact: str,
    source: str,
    catches: tuple[str, ...] = (),
    profile: Profile = Profile.FULL,
    guard_at: tuple[Operator, ...] = (),
    phase: Phase = Phase.AFTER,
    remedy: str = "re-execute the step; if it repeats, compare weights and pages",
    crosses_requests: bool = False,
) -> Callable[[Ratio], Check]:
    """Declare a check; the decorated function becomes a `Check`.

    The operators come from the annotation of the first parameter: one call record or a union.
    """

    def declare(ratio: Ratio) -> Check:
        parameters = list(inspect.signature(ratio).parameters.values())
        hints = typing.get_type_hints(ratio)
        return Check(
            id=check_id,
            ratio=ratio,
            operators=_operators(hints[parameters[0].name]),
            priority=priority,
            impact=impact,
            catches=catches,
            source=source,
            profile=profile,
            phase=phase,
            thresholds={p.name: p.default for p in parameters[1:]},
            remedy=remedy,
            module=ratio.__module__,
            guard_at=guard_at,
            crosses_requests=crosses_requests,
        )

    return declare


def _operators(annotation: Any) -> tuple[Operator, ...]:
    """Operators named by `RopeCall` or by `RopeCall | LinearCall`."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = typing.get_args(annotation)
    else:
        members = (annotation,)
    return tuple(member.operator for member in members)


@cache
def registry() -> Mapping[str, Check]:
    """Every declared check by id."""
    return types.MappingProxyType(discover("tocsin.checker.checks", Check))


def crossing_checks() -> tuple[str, ...]:
    """Ids of the checks whose alarm is a sign that a request met another's data."""
    return tuple(sorted(unit.id for unit in registry().values() if unit.crosses_requests))


HOST_SIDE = frozenset(
    {Operator.BATCH, Operator.KV_READ, Operator.FLASH_ATTN_VARLEN, Operator.DEVICE_MEMORY}
)
"""Operators whose calls are known on the host before anything is launched."""


def phase_of(operator: Operator) -> Phase:
    """When the checks of an operator are heard: before the launch where the host knows enough.

    It goes by the operator, because one check may serve operators of both kinds:
    `state.position_ledger` reads a batch before the step and a cache update after it.
    """
    return Phase.BEFORE if operator in HOST_SIDE else Phase.AFTER


def checks_for(operator: Operator, layers: tuple[str, ...] | None = None) -> tuple[Check, ...]:
    """The checks of one operator, numerical first, optionally of some layers only."""
    order = list(Layer)
    found = [
        unit
        for unit in registry().values()
        if operator in unit.operators and (layers is None or unit.layer in layers)
    ]
    return tuple(sorted(found, key=lambda unit: (order.index(unit.layer), unit.id)))
