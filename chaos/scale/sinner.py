"""Plants the sins of the oracle's self-test (chaos/sins.py) in single answers of a large run."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from tocsin.chaos.case import Case
from tocsin.chaos.contract import properties
from tocsin.chaos.scale.replay import ReplayEngine, whole
from tocsin.chaos.scale.tally import DUPLICATE, PROPERTIES
from tocsin.chaos.sins import SINS
from tocsin.core.draw import draw_below, draw_choice
from tocsin.core.history import Outcome, RequestRecord

RECORD_TWICE = "record_twice"
"""One request is recorded twice, each time rightly: what no look at single requests can see."""
_MIXED = 64


def expected_flags() -> dict[str, tuple[str, ...]]:
    """Each sin that the properties at scale name, and which of them must flag it."""
    units = {name: properties()[name] for name in PROPERTIES}
    found = {
        sin: tuple(name for name, unit in units.items() if sin in unit.sins)
        for sin in SINS
        if any(sin in unit.sins for unit in units.values())
    }
    return {**found, RECORD_TWICE: (DUPLICATE,)}


def one_of_each(requests: int, seed: int) -> dict[int, str]:
    """Every sin once, each in a request of its own drawn by the seed."""
    return _placed(sorted(expected_flags()), requests, seed)


def some(requests: int, seed: int, count: int) -> dict[int, str]:
    """So many sins, drawn by the seed."""
    names = sorted(expected_flags())
    return _placed([draw_choice(names, seed, "sin", i) for i in range(count)], requests, seed)


class HistorySinner:
    """Commits sins in answers of the replay engine; see `replay.Sinner`."""

    def __init__(self, case: Case, sins: Mapping[int, str]) -> None:
        """Take the plan.

        Args:
            case: golden answers, prompts and seed of the run.
            sins: number of a request → name of the sin.
        """
        self._case, self._sins = case, sins

    def sin_at(self, number: int) -> str:
        """Name of the sin of a request, empty for an honest one."""
        return self._sins.get(number, "")

    def commit(self, sin: str, record: RequestRecord) -> list[RequestRecord]:
        """What clients see instead of a clean answer; nothing changes where there is no place."""
        if sin == RECORD_TWICE:
            return [record, record]
        records = (record, *self._company)
        try:
            after = SINS[sin].commit(replace(self._case, records=records)).records
        except (StopIteration, LookupError):
            return [record]
        changed = [new for old, new in zip(records, after, strict=True) if new != old]
        return [_moved(one, record) for one in changed[:1]] or [record]

    @cached_property
    def _company(self) -> tuple[RequestRecord, ...]:
        """Other clean answers: a sin may need a donor, or an answer that was cancelled."""
        engine = ReplayEngine(self._case.golden, self._case.plan.seed, abort_ratio=0.5)
        found = [whole(record, pieces) for record, pieces in engine.answers(0, _MIXED)]
        found.sort(key=lambda one: (one.outcome is not Outcome.OK, -len(one.chunks)))
        return tuple(found)


def _placed(names: list[str], requests: int, seed: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for i, name in enumerate(names[:requests]):
        attempt = 0
        while (number := draw_below(requests, seed, "sinner", i, attempt)) in found:
            attempt += 1
        found[number] = name
    return found


def _moved(record: RequestRecord, to: RequestRecord) -> RequestRecord:
    """The record under the id and at the time of another one."""
    by_ns = to.t_invoke_ns - record.t_invoke_ns
    return replace(
        record,
        request_id=to.request_id,
        t_invoke_ns=to.t_invoke_ns,
        t_first_ns=record.t_first_ns and record.t_first_ns + by_ns,
        t_end_ns=record.t_end_ns and record.t_end_ns + by_ns,
        chunks=[replace(chunk, t_ns=chunk.t_ns + by_ns) for chunk in record.chunks],
    )
