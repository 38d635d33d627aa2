"""How a fault and a property are declared, and the registries that find all of them."""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from tocsin.core.clock import Clock, SystemClock, is_real
from tocsin.core.discovery import discover
from tocsin.core.draw import draw_below, draw_unit
from tocsin.core.errors import BackendError, SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.pods import Pod, Pods
from tocsin.core.terms import Operator, Phase, Priority

if TYPE_CHECKING:  # a judge reads declarations in a second, without loading torch
    from pathlib import Path

    from torch import nn

    from tocsin.chaos.judge import Case, PropertyVerdict
    from tocsin.chaos.ray_session import RaySession
    from tocsin.chaos.road_thread import RoadThread
    from tocsin.core.protocols import PageStore


@dataclass(slots=True)
class Target:
    """What an in-process fault can reach while it is armed.

    Attributes:
        params: the declaration's defaults, overridden by the spec.
        seed: the occurrence's private random number.
        memory: whatever the fault wants to keep between injection and healing.
        step: the worker's logical clock at the call.
        request_ids: request of each row of the step under way, empty for an idle row.
        clock: of the worker.
    """

    model: "nn.Module"
    pages: "PageStore"
    params: Mapping[str, Any]
    seed: int
    memory: dict[str, Any] = field(default_factory=dict)
    step: int = -1
    request_ids: tuple[str, ...] = ()
    clock: Clock = field(default_factory=SystemClock)

    @property
    def real_time(self) -> bool:
        """Whether the worker's time is the machine's, and not made for a test or a simulation."""
        return is_real(self.clock)

    def live_rows(self) -> tuple[int, ...]:
        """Rows of the step under way that belong to a request."""
        return tuple(row for row, request in enumerate(self.request_ids) if request)

    def below(self, bound: int, purpose: str) -> int:
        """An integer in [0, bound), private to this occurrence and purpose."""
        return draw_below(bound, self.seed, purpose)

    def unit(self, purpose: str) -> float:
        """A float in [0, 1), private to this occurrence and purpose."""
        return draw_unit(self.seed, purpose)


@dataclass(slots=True)
class ProcessTarget:
    """What a fault on a process can reach: the process, told apart from a later one by its start.

    Attributes:
        pid: the process, started_ticks: its start time in clock ticks since boot.
        clock: for the short waits until the kernel shows what was done.
        replacement: pid of the process that serves in its place, None while there is none,
            `ELSEWHERE` for one of another machine; the function itself is None where nobody
            replaces it.
        folder: of its node, for notes that it reads; None: it reads none.
    """

    pid: int
    started_ticks: int
    params: Mapping[str, Any]
    seed: int
    clock: Clock
    replacement: Callable[[], int | None] | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    folder: "Path | None" = None


ELSEWHERE = 0
"""In place of a pid: the replacement lives on another machine, and only its heartbeats tell."""


@dataclass(slots=True)
class PodTarget:
    """What a fault on a pod can reach: the pods of the release, and the one that it is aimed at.

    Attributes:
        pod: as it was read when it was aimed at.
        clock: for the short waits until the API shows what was done.
        replaced: whether a replica that came up since has generated.
    """

    pods: Pods
    pod: Pod
    params: Mapping[str, Any]
    seed: int
    clock: Clock
    replaced: Callable[[], bool]
    memory: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Raises:
    """What an injector returns whose fault is an exception: the proof, and what to raise."""

    evidence: Evidence
    error: BackendError


@dataclass(slots=True)
class RayTarget:
    """What a fault on Ray itself can reach: the session's own processes and logs.

    Attributes:
        node: id of the node that it is aimed at; empty: the whole cluster.
        replacement: as in `ProcessTarget`.
    """

    session: "RaySession"
    node: str
    params: Mapping[str, Any]
    seed: int
    clock: Clock
    replacement: Callable[[], int | None] | None = None
    memory: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class RoadTarget:
    """What a fault on the network can reach: the road that the run's own load travels on.

    Attributes:
        clock: for the short waits until the road has met bytes.
    """

    road: "RoadThread"
    params: Mapping[str, Any]
    seed: int
    clock: Clock
    memory: dict[str, Any] = field(default_factory=dict)


Inject = Callable[[Any, Target], Evidence | Raises | None]
"""`(call, target) -> Evidence`, or None when this call does not offer the place: try the next."""
Heal = Callable[[Any], None]
HealVerify = Callable[[Any], bool]
"""Both take the target of the injection, with the memory that it left there."""


@dataclass(slots=True)
class Fault:
    """One declared fault.

    Attributes:
        id: `family.name`, which is also the path of its file.
        inject: changes one place and returns the readings before and after; for the scopes other
            than WORKER see the declarations there.
        operators, phase: the seams at which a WORKER fault reaches in; empty in other scopes.
        expect: detectors of which at least one must see it: check ids, or `service.…`.
        priority: how grave it is where nothing contains it.
        params: defaults of what the spec may set. One name is common to all WORKER faults that
            have it: `times`, the number of calls to change before the fault is spent.
        load: of the workload, what it takes for the fault to be felt: so much at least, such
            prompts. Experiments that a program makes have it.
        company: id of another fault without which nobody feels this one, empty: none.
    """

    id: str
    inject: Callable[..., Any]
    scope: Scope
    operators: tuple[Operator, ...]
    phase: Phase
    expect: tuple[str, ...]
    priority: Priority
    source: str
    params: Mapping[str, Any]
    module: str
    load: Mapping[str, Any] = field(default_factory=dict)
    company: str = ""
    heal_with: Heal | None = None
    verify_heal_with: HealVerify | None = None

    def resolve(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults overridden by `params`.

        Raises:
            SpecError: the fault has no parameter of that name.
        """
        unknown = sorted(set(params) - set(self.params))
        if unknown:
            raise SpecError(
                f"{self.id}: params holds {unknown}, known are {sorted(self.params)}; "
                "correct the experiment"
            )
        return {**self.params, **params}

    @property
    def operator(self) -> Operator | None:
        """The first of the operators, None outside scope WORKER."""
        return self.operators[0] if self.operators else None

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
    phase: Phase = Phase.AFTER,
    params: Mapping[str, Any] | None = None,
    load: Mapping[str, Any] | None = None,
    company: str = "",
) -> Callable[[Callable[..., Any]], Fault]:
    """Declare a fault; the decorated function becomes a `Fault`.

    The operators of a WORKER fault come from the annotation of its first parameter: one call
    record or a union of them.
    """

    def declare(inject: Callable[..., Any]) -> Fault:
        at = _operators(fault_id, inject) if scope is Scope.WORKER else ()
        return Fault(
            id=fault_id,
            inject=inject,
            scope=scope,
            operators=at,
            phase=phase,
            expect=expect,
            priority=priority,
            source=source,
            params=types.MappingProxyType(dict(params or {})),
            module=inject.__module__,
            load=types.MappingProxyType(dict(load or {})),
            company=company,
        )

    return declare


def load_for(chosen: Iterable[Fault], **usual: Any) -> dict[str, Any]:
    """A workload in which each of these faults is felt: what is usual, more, or other prompts."""
    load = dict(usual)
    for name, value in (item for one in chosen for item in one.load.items()):
        load[name] = max(value, load.get(name, 0)) if isinstance(value, int) else value
    return load


def _operators(fault_id: str, inject: Callable[..., Any]) -> tuple[Operator, ...]:
    """Operators named by the annotation of an injector's first parameter."""
    from tocsin.core.calls import Call

    first = next(iter(inspect.signature(inject).parameters))
    annotation = typing.get_type_hints(inject).get(first)
    members = typing.get_args(annotation) or (annotation,)
    if not all(isinstance(member, type) and issubclass(member, Call) for member in members):
        raise TypeError(f"{fault_id}: annotate the first parameter with its call record(s)")
    return tuple(member.operator for member in members)


@dataclass(frozen=True, slots=True)
class Property:
    """One declared property of a whole history.

    Attributes:
        id: `family.name`, which is also the path of its file.
        judge: pure function of the recorded run to a verdict.
        sins: names of the self-test mutations that it must flag (chaos/sins*.py).
        advice: what to do when it is violated.
        conditional: an experiment may have nothing for it, or the system may not tell what it
            needs: vacuous, it then does not count unless the experiment names it.
    """

    id: str
    judge: "Callable[[Case], PropertyVerdict]"
    sins: tuple[str, ...]
    advice: str
    module: str
    conditional: bool = False

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.judge) or "").partition("\n")[0]


def prop(
    property_id: str, *, sins: tuple[str, ...], advice: str, conditional: bool = False
) -> "Callable[[Callable[[Case], PropertyVerdict]], Property]":
    """Declare a property; the decorated function becomes a `Property`."""

    def declare(judge: "Callable[[Case], PropertyVerdict]") -> Property:
        return Property(
            id=property_id,
            judge=judge,
            sins=sins,
            advice=advice,
            module=judge.__module__,
            conditional=conditional,
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
