"""The oracle's own test, in every run: known sins planted in a copy of the history must be found.

The copy holds a sample of the run's own clean answers, set close together in time, and one fault,
one degraded answer and one page audit as they should be. It must be found clean; then each sin is
committed alone and must be flagged by the properties that name it, and by no other.
"""

from collections.abc import Mapping
from dataclasses import replace

from tocsin.chaos.case import Case, Conclusion, OccurrenceRecord, Prompt, PropertyVerdict
from tocsin.chaos.contract import Property
from tocsin.chaos.plan import Expectation, Occurrence
from tocsin.chaos.sins import SINS
from tocsin.chaos.verdict import SinResult
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.history import Chunk, Event, EventKind, Outcome, RequestRecord

SAMPLE_MOST = 48
SAMPLE_LEAST = 6
_MS = 1_000_000
_T0 = 10**9
_GAP_NS = 100 * _MS
REPLICA = "self-test"
LABEL = "attention:self-test"


def self_test(case: Case, units: Mapping[str, Property]) -> tuple[SinResult, ...]:
    """Plant each sin that some of the properties must flag.

    Returns:
        One result a sin. Without enough clean answers to plant in, or when the copy is not found
        clean, nothing is caught: the run cannot show that its oracle can say no.
    """
    wanted = {name: _expected(name, units) for name in SINS}
    wanted = {name: expected for name, expected in wanted.items() if expected}
    base = clean_copy(case)
    before = _flags(base, units) if base is not None else {}
    if base is None or any(before.values()):
        flagged = tuple(sorted(name for name, count in before.items() if count))
        return tuple(
            SinResult(name, False, SINS[name].meaning, expected, flagged)
            for name, expected in wanted.items()
        )
    results = []
    for name, expected in wanted.items():
        after = _flags(SINS[name].commit(base), units)
        flagged = tuple(sorted(unit for unit, count in after.items() if count))
        results.append(SinResult(name, flagged == expected, SINS[name].meaning, expected, flagged))
    return tuple(results)


def clean_copy(case: Case) -> Case | None:
    """A small history without fault, made of this run's clean answers; None: there are too few."""
    records = _sample(case)
    if len(records) < SAMPLE_LEAST:
        return None
    labelled = records[2]
    labelled.degraded, labelled.degraded_header = (LABEL,), LABEL
    last_ns = max(record.t_end_ns for record in records)
    fired_ns = _T0 + 2 * _GAP_NS
    occurrence = _planted(fired_ns)
    return replace(
        case,
        spec=case.spec.model_copy(
            update={
                "steady_state": case.spec.steady_state.model_copy(
                    update={"window_s": 0.1, "good_windows": 2, "probes": ()}
                ),
                "budget": case.spec.budget.model_copy(update={"availability": 0.5}),
            }
        ),
        records=tuple(records),
        events=(
            Event(
                EventKind.CHECK_FAILED,
                fired_ns + 20 * _MS,
                REPLICA,
                data={"findings": [{"check": "self.test"}]},
            ),
            Event(
                EventKind.DEGRADED,
                labelled.t_invoke_ns + _MS,
                REPLICA,
                request_id=labelled.request_id,
                data={"reason": LABEL, "on": True},
            ),
            Event(EventKind.PAGE_AUDIT, last_ns, REPLICA, data=_audit()),
        ),
        occurrences=(occurrence,),
        prompts={
            name: prompt if prompt.canary else Prompt(name, prompt.text, f"canary{name}")
            for name, prompt in case.prompts.items()
        },
        warmup=(),
        t_start_ns=_T0,
        t_faults_ns=fired_ns,
        t_healed_ns=occurrence.healed_ns,
        t_end_ns=last_ns,
        aborted="",
    )


def _sample(case: Case) -> list[RequestRecord]:
    """Copies of clean answers, evenly chosen, each beginning a tenth of a second after the last."""
    clean = [
        record
        for record in case.honest
        if record.outcome is Outcome.OK
        and not record.degraded
        and len(record.chunks) >= 3
        and record.prompt_id in case.golden
        and case.golden[record.prompt_id].tokens == record.tokens
        and case.golden[record.prompt_id].finish_reason == record.finish_reason
        and [chunk.index for chunk in record.chunks] == list(range(len(record.chunks)))
        and record.terminals == 1
    ]
    # The longest answers hold most; of equally long ones, as they came.
    clean.sort(key=lambda record: -len(record.chunks))
    chosen = clean[:SAMPLE_MOST]
    by_prompt: dict[str, list[RequestRecord]] = {}
    for record in chosen:
        by_prompt.setdefault(record.prompt_id, []).append(record)
    mixed = [r for group in zip_longest_groups(list(by_prompt.values())) for r in group]
    return [_retimed(record, _T0 + i * _GAP_NS) for i, record in enumerate(mixed)]


def zip_longest_groups(groups: list[list[RequestRecord]]) -> list[list[RequestRecord]]:
    """First of each group, then second of each…, so that neighbours differ in prompt."""
    most = max((len(group) for group in groups), default=0)
    return [[group[i] for group in groups if i < len(group)] for i in range(most)]


def _retimed(record: RequestRecord, t_ns: int) -> RequestRecord:
    """A copy that begins at a time and takes a token a millisecond."""
    chunks = [
        Chunk(t_ns + (i + 1) * _MS, chunk.index, chunk.token, chunk.text)
        for i, chunk in enumerate(record.chunks)
    ]
    text = "".join(chunk.text for chunk in chunks)
    return replace(
        record,
        t_invoke_ns=t_ns,
        t_first_ns=chunks[0].t_ns,
        t_end_ns=chunks[-1].t_ns + _MS,
        chunks=chunks,
        text=text if record.stream else record.text,
        usage_tokens=len(chunks),
        attempts=(REPLICA,),
        degraded=(),
        degraded_header="",
    )


def _planted(fired_ns: int) -> OccurrenceRecord:
    """One fault as it should be: seen after 20 ms, healed after 100 ms."""
    planned = Occurrence(
        id="self-test@0",
        fault="self-test",
        kind="self.test",
        n=0,
        scope=Scope.WORKER,
        clock="decode_step",
        at=0,
        replica=0,
        seed=0,
        params={},
        expect=Expectation("required", ("self.test",), 0.05, "P0", "", 0.3),
    )
    return OccurrenceRecord(
        planned=planned,
        replica=REPLICA,
        state="healed",
        ordered_ns=fired_ns - _MS,
        fired_ns=fired_ns,
        healed_ns=fired_ns + 100 * _MS,
        evidence=Evidence("self-test", "before", "after"),
        orders=1,
    )


def _audit() -> dict[str, int]:
    return {
        "pages_total": 8,
        "pages_free": 5,
        "pages_used": 0,
        "pages_cached": 3,
        "pages_quarantined": 0,
        "running": 0,
        "waiting": 0,
    }


def _expected(sin: str, units: Mapping[str, Property]) -> tuple[str, ...]:
    return tuple(sorted(unit.id for unit in units.values() if sin in unit.sins))


def _flags(case: Case, units: Mapping[str, Property]) -> dict[str, int]:
    """Violations by property; a property that breaks or cannot tell counts as having flagged."""
    counts = {}
    for unit in units.values():
        verdict = _safely(case, unit)
        counts[unit.id] = len(verdict.violations) + (verdict.conclusion is Conclusion.UNKNOWN)
    return counts


def _safely(case: Case, unit: Property) -> PropertyVerdict:
    try:
        return unit.judge(case)
    except Exception as error:  # noqa: BLE001 - recorded: a property that breaks is not an oracle
        return PropertyVerdict(unit.id, Conclusion.UNKNOWN, 0, reason=str(error))
