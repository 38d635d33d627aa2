"""How a fault and a property are declared, and the registries that find all of them."""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import nn

from tocsin.core.calls import Call
from tocsin.core.discovery import discover
from tocsin.core.draw import draw_below, draw_unit
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.protocols import PageStore
from tocsin.core.terms import Operator, Phase, Priority

if TYPE_CHECKING:
    from tocsin.chaos.judge import Case, PropertyVerdict


@dataclass(slots=True)
class Target:
    """What an in-process fault can reach while it is armed.

    Attributes:
        params: the declaration's defaults, overridden by the spec.
        seed: the occurrence's private random number.
        memory: whatever the fault wants to keep between injection and healing.
        step: the worker's logical clock at the call.
    """

    model: nn.Module
    pages: PageStore
    params: Mapping[str, Any]
    seed: int
    memory: dict[str, Any] = field(default_factory=dict)
    step: int = -1

    def below(self, bound: int, purpose: str) -> int:
        """An integer in [0, bound), private to this occurrence and purpose."""
        return draw_below(bound, self.seed, purpose)

    def unit(self, purpose: str) -> float:
        """A float in [0, 1), private to this occurrence and purpose."""
        return draw_unit(self.seed, purpose)


Inject = Callable[[Any, Target], Evidence | None]
"""`(call, target) -> Evidence`, or None when this call does not offer the place: try the next."""
Heal = Callable[[Target], None]
HealVerify = Callable[[Target], bool]


@dataclass(slots=True)
class Fault:
    """One declared fault.

    Attributes:
        id: `family.name`, which is also the path of its file.
        inject: changes one place and returns the readings before and after; for scopes PROCESS
            and CLIENT see the declarations there.
        operator, phase: the seam at which a WORKER fault reaches in.
        expect: detectors of which at least one must see it: check ids, or `service.…`.
        priority: of the alert it must cause.
        params: defaults of what the spec may set.
    """

    id: str
    inject: Callable[..., Any]
    scope: Scope
    operator: Operator | None
    phase: Phase
    expect: tuple[str, ...]
    priority: Priority
    source: str
    params: Mapping[str, Any]
    module: str
    heal_with: Heal | None = None
    verify_heal_with: HealVerify | None = None

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.inject) or "").partition("\n")[0]

    def heal(self, heal: Heal) -> Heal:
        """Decorator: what takes the fault away; without one it lasts for its call only."""
        self.heal_with = heal
        return heal

    def heal_verify(self, verify: HealVerify) -> HealVerify:
        """Decorator: whether the place reads as it should again."""
        self.verify_heal_with = verify
        return verify


def fault(
    fault_id: str,
    *,
    expect: tuple[str, ...],
    priority: Priority,
    source: str,
    scope: Scope = Scope.WORKER,
    operator: Operator | None = None,
    phase: Phase = Phase.AFTER,
    params: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Fault]:
    """Declare a fault; the decorated function becomes a `Fault`.

    The operator of a WORKER fault comes from the annotation of its first parameter.
    """

    def declare(inject: Callable[..., Any]) -> Fault:
        at = operator
        if at is None and scope is Scope.WORKER:
            first = next(iter(inspect.signature(inject).parameters.values()))
            annotation = first.annotation
            if not (isinstance(annotation, type) and issubclass(annotation, Call)):
                raise TypeError(f"{fault_id}: annotate the first parameter with one call record")
            at = annotation.operator
        return Fault(
            id=fault_id,
            inject=inject,
            scope=scope,
            operator=at,
            phase=phase,
            expect=expect,
            priority=priority,
            source=source,
            params=types.MappingProxyType(dict(params or {})),
            module=inject.__module__,
        )

    return declare


@dataclass(frozen=True, slots=True)
class Property:
    """One declared property of a whole history.

    Attributes:
        id: `family.name`, which is also the path of its file.
        judge: pure function of the recorded run to a verdict.
        sins: names of the self-test mutations that it must flag (chaos/selftest.py).
        advice: what to do when it is violated.
    """

    id: str
    judge: "Callable[[Case], PropertyVerdict]"
    sins: tuple[str, ...]
    advice: str
    module: str

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.judge) or "").partition("\n")[0]


def prop(
    property_id: str, *, sins: tuple[str, ...], advice: str
) -> "Callable[[Callable[[Case], PropertyVerdict]], Property]":
    """Declare a property; the decorated function becomes a `Property`."""

    def declare(judge: "Callable[[Case], PropertyVerdict]") -> Property:
        return Property(
            id=property_id, judge=judge, sins=sins, advice=advice, module=judge.__module__
        )

    return declare


@cache
def faults() -> Mapping[str, Fault]:
    """Every declared fault by id."""
    return types.MappingProxyType(discover("tocsin.chaos.faults", Fault))


@cache
def properties() -> Mapping[str, Property]:
    """Every declared property by id."""
    return types.MappingProxyType(discover("tocsin.chaos.properties", Property))
