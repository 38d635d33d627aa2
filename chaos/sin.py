"""How a known-bad history is declared, and the registry that has all of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tocsin.chaos.case import Case
from tocsin.core.history import EventKind

SECOND = 1_000_000_000
"""In nanoseconds."""


@dataclass(frozen=True, slots=True)
class Sin:
    """One mutation of a history."""

    name: str
    commit: Callable[[Case], Case]

    @property
    def meaning(self) -> str:
        """What it does, in one sentence."""
        return (self.commit.__doc__ or "").partition("\n")[0]


SINS: dict[str, Sin] = {}


def sin(commit: Callable[[Case], Case]) -> Callable[[Case], Case]:
    """Decorator: a known-bad history; it is called as its function is, and means its docstring."""
    name = commit.__name__
    SINS[name] = Sin(name, commit)
    return commit


def with_record(case: Case, index: int, **fields: Any) -> Case:
    """The case with some fields of one record replaced."""
    records = list(case.records)
    records[index] = replace(records[index], **fields)
    return replace(case, records=tuple(records))


def with_event(case: Case, kind: EventKind, **fields: Any) -> Case:
    """The case with some fields of the first event of a kind replaced."""
    events = list(case.events)
    index = next(i for i, event in enumerate(events) if event.kind is kind)
    events[index] = replace(events[index], **fields)
    return replace(case, events=tuple(events))


def with_data(case: Case, kind: EventKind, **fields: Any) -> Case:
    """The case with some of the data of the first event of a kind replaced."""
    data = next(event.data for event in case.events if event.kind is kind)
    return with_event(case, kind, data={**data, **fields})


def without(case: Case, kind: EventKind) -> Case:
    """The case without the events of a kind."""
    return replace(case, events=tuple(event for event in case.events if event.kind is not kind))
