"""Seams: the places where a check looks in and a fault reaches in; an unused seam is one branch."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.compiler import is_compiling

from tocsin.core.calls import Call
from tocsin.core.terms import Operator, Phase

Listener = Callable[[Call], None]
"""Called with the record of one operator call; a fault may change what the record points at."""

Collector = Callable[..., None]
"""`(plan, *tensors)`: a check that takes the tensors of a call as they are, without a record."""

NOWHERE: Callable[[Any], object] = deque[Any](maxlen=0).append
"""Takes anything and keeps nothing, without a frame of its own."""


class Log:
    """Where the calls of a step are put down while it runs: `(plan, tensors)`, one append a call.

    Between two operators even a short function is dear: the weights that an operator has read
    are where its code would have been. What is to be done with a call is done when the step ends.

    Attributes:
        put: takes one entry; at rest it goes nowhere.
    """

    __slots__ = ("put",)

    def __init__(self) -> None:
        """No step is under way."""
        self.put: Callable[[tuple[Any, tuple[Any, ...]]], object] = NOWHERE


@dataclass(slots=True)
class Seams:
    """All seams of one engine or one attached model.

    Faults are heard before checks, so that a check sees what the fault did. Listeners are kept in
    tuples that are replaced, never edited: a step that is under way keeps the set it began with.

    Attributes:
        lean: operators whose only listener, after them, can do without a record.
        logs: of these, where calls may be put down instead.
        detailed: operators at which somebody listens, after them, who wants all that may be known
            of a call, what has to be worked out first included.
        traced: takes calls while a compiler traces the model, which hears no listener.
        around: what it does around the forward of the whole model.
        plans: what calls are announced with, by name.
        entry_of: what may be put down in a log in place of the record of a call that no module of a
            model makes; None where the record must be announced.
    """

    _faults: dict[tuple[Operator, Phase], tuple[Listener, ...]] = field(default_factory=dict)
    _checks: dict[tuple[Operator, Phase], tuple[Listener, ...]] = field(default_factory=dict)
    _collectors: dict[Listener, Collector] = field(default_factory=dict)
    _logs: dict[Listener, Log] = field(default_factory=dict)
    _plain: set[Listener] = field(default_factory=set)
    _watchers: tuple[Callable[[], None], ...] = ()
    _changes_held: int = 0
    listening: frozenset[tuple[Operator, Phase]] = frozenset()
    lean: dict[Operator, Collector] = field(default_factory=dict)
    logs: dict[Operator, Log] = field(default_factory=dict)
    detailed: frozenset[Operator] = frozenset()
    traced: Collector | None = None
    around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda forward: forward
    plans: dict[str, Any] = field(default_factory=dict)
    entry_of: Callable[[Call], tuple[Any, tuple[Any, ...]] | None] = lambda call: None

    def wanted(self, operator: Operator, phase: Phase = Phase.AFTER) -> bool:
        """Whether anybody listens; ask before building a record on the hot path."""
        return (operator, phase) in self.listening

    def checked(self, operator: Operator, phase: Phase = Phase.AFTER) -> bool:
        """Whether a check listens: a fault alone asks for nothing to be kept."""
        return bool(self._checks.get((operator, phase)))

    def emit(self, call: Call, phase: Phase = Phase.AFTER) -> None:
        """Hand the call to the faults, then to the checks."""
        key = (call.operator, phase)
        if is_compiling() or key not in self.listening:  # no tracer follows a listener
            return
        for listener in self._faults.get(key, ()):
            listener(call)
        for listener in self._checks.get(key, ()):
            listener(call)

    def add_fault(self, operator: Operator, phase: Phase, listener: Listener) -> Callable[[], None]:
        """Let a fault reach in; returns the function that takes it out again."""
        return self._add(self._faults, (operator, phase), listener)

    def add_check(
        self,
        operator: Operator,
        phase: Phase,
        listener: Listener,
        collector: Collector | None = None,
        *,
        log: Log | None = None,
        plain: bool = False,
    ) -> Callable[[], None]:
        """Let a check look in; returns the function that takes it out again.

        Args:
            plain: it does without what costs its caller work: see `detailed`.
            collector: does what the listener does, without a record; it is offered in `lean`
                while nobody else listens there.
            log: its calls may be put down there instead, and are offered in `logs` then.
        """
        if collector is not None:
            self._collectors[listener] = collector
            if log is not None:
                self._logs[listener] = log
        if plain:
            self._plain.add(listener)
        return self._add(self._checks, (operator, phase), listener)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Be told, at once, of every change of who listens; returns the function that ends it."""
        self._watchers = (*self._watchers, changed)

        def remove() -> None:
            self._watchers = tuple(other for other in self._watchers if other is not changed)

        return remove

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Several changes that the watchers are told of as one."""
        self._changes_held += 1
        try:
            yield
        finally:
            self._changes_held -= 1
            self._refresh()

    def announcer(
        self, operator: Operator, plan: Any, build: Callable[..., Call]
    ) -> Callable[..., None]:
        """The shortest way to tell whoever listens, at the time of a call, of its tensors.

        Args:
            plan: what a collector is given along with the tensors.
            build: `(*tensors) -> record`, for all others.
        """
        key = (operator, Phase.AFTER)
        self.plans[plan.name] = plan

        def announce(*tensors: Any) -> None:
            if is_compiling():
                if self.traced is not None:
                    self.traced(plan, *tensors)
                return
            collect = self.lean.get(operator)
            if collect is not None:
                collect(plan, *tensors)
            elif key in self.listening:
                self.emit(build(*tensors))

        return announce

    def _add(
        self,
        table: dict[tuple[Operator, Phase], tuple[Listener, ...]],
        key: tuple[Operator, Phase],
        listener: Listener,
    ) -> Callable[[], None]:
        table[key] = (*table.get(key, ()), listener)
        self._refresh()

        def remove() -> None:
            table[key] = tuple(other for other in table.get(key, ()) if other is not listener)
            if table is self._checks:
                self._collectors.pop(listener, None)
                self._logs.pop(listener, None)
                self._plain.discard(listener)
            self._refresh()

        return remove

    def _all_plain(self, key: tuple[Operator, Phase]) -> bool:
        return not self._faults.get(key) and self._plain.issuperset(self._checks.get(key, ()))

    def _refresh(self) -> None:
        if self._changes_held:
            return
        self.listening = frozenset(
            key for table in (self._faults, self._checks) for key, heard in table.items() if heard
        )
        lean: dict[Operator, Collector] = {}
        logs: dict[Operator, Log] = {}
        for key, heard in self._checks.items():
            operator, phase = key
            alone = len(heard) == 1 and not self._faults.get(key)
            if phase is Phase.AFTER and alone and heard[0] in self._collectors:
                lean[operator] = self._collectors[heard[0]]
                if heard[0] in self._logs:
                    logs[operator] = self._logs[heard[0]]
        self.lean, self.logs = lean, logs
        self.detailed = frozenset(
            operator
            for operator, phase in self.listening
            if phase is Phase.AFTER and not self._all_plain((operator, phase))
        )
        self.tell_watchers()

    def tell_watchers(self) -> None:
        """Something changed that they arrange themselves by."""
        for changed in self._watchers:
            changed()
