"""Seams: the places where a check looks in and a fault reaches in; an unused seam is one branch."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tocsin.core.calls import Call
from tocsin.core.terms import Operator, Phase

Listener = Callable[[Call], None]
"""Called with the record of one operator call; a fault may change what the record points at."""


@dataclass(slots=True)
class Seams:
    """All seams of one engine or one attached model.

    Faults are heard before checks, so that a check sees what the fault did. Listeners are kept in
    tuples that are replaced, never edited: a step that is under way keeps the set it began with.
    """

    _faults: dict[tuple[Operator, Phase], tuple[Listener, ...]] = field(default_factory=dict)
    _checks: dict[tuple[Operator, Phase], tuple[Listener, ...]] = field(default_factory=dict)
    listening: frozenset[tuple[Operator, Phase]] = frozenset()

    def wanted(self, operator: Operator, phase: Phase = Phase.AFTER) -> bool:
        """Whether anybody listens; ask before building a record on the hot path."""
        return (operator, phase) in self.listening

    def emit(self, call: Call, phase: Phase = Phase.AFTER) -> None:
        """Hand the call to the faults, then to the checks."""
        key = (call.operator, phase)
        if key not in self.listening:
            return
        for listener in self._faults.get(key, ()):
            listener(call)
        for listener in self._checks.get(key, ()):
            listener(call)

    def add_fault(self, operator: Operator, phase: Phase, listener: Listener) -> Callable[[], None]:
        """Let a fault reach in; returns the function that takes it out again."""
        return self._add(self._faults, (operator, phase), listener)

    def add_check(self, operator: Operator, phase: Phase, listener: Listener) -> Callable[[], None]:
        """Let a check look in; returns the function that takes it out again."""
        return self._add(self._checks, (operator, phase), listener)

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
            self._refresh()

        return remove

    def _refresh(self) -> None:
        self.listening = frozenset(
            key for table in (self._faults, self._checks) for key, heard in table.items() if heard
        )
