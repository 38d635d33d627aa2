"""Made-up runs with their verdicts: a pass, a violation, an abort, nothing at all, an attack."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.chaos.report.recorded import SECOND, SEED, START_NS, Story, recording
from tocsin.chaos.attribution import Detection
from tocsin.chaos.case import (
    Case,
    Conclusion,
    OccurrenceRecord,
    PropertyVerdict,
    Violation,
)
from tocsin.chaos.verdict import FaultSummary, RunVerdict, SinResult
from tocsin.core.history import EventKind, Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer

PLAIN, UNCHECKED = Story(), Story(profile="off")
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{7*7}}&amp;\u202e\x00\ud800"
)
PROPERTY_IDS = (
    "golden.tokens",
    "stream.prefix",
    "lifecycle.exactly_one_terminal",
    "lifecycle.no_lost",
    "exec.no_duplicate_effect",
    "isolation.canary",
    "kv.conservation",
    "degraded.labelled",
    "detection.matrix",
    "recovery.bound",
)
SINS = (
    ("token_swapped", "golden.tokens"),
    ("index_repeated", "stream.prefix"),
    ("last_chunk_dropped", "golden.tokens"),
    ("canary_moved", "isolation.canary"),
    ("terminal_dropped", "lifecycle.exactly_one_terminal"),
    ("two_terminals", "lifecycle.exactly_one_terminal"),
    ("label_removed", "degraded.labelled"),
    ("label_added", "degraded.labelled"),
    ("detection_late", "detection.matrix"),
    ("detector_wrong", "detection.matrix"),
    ("occurrence_unhealed", "recovery.bound"),
    ("request_lost", "lifecycle.no_lost"),
)


def passing(story: Story = PLAIN) -> tuple[Case, RunVerdict]:
    """A run in which everything that was planned happened, was seen and was taken back."""
    case = recording(story)
    return case, verdict_of(case)


def verdict_of(case: Case, **changes: object) -> RunVerdict:
    """The verdict on a made-up run; every property holds unless told otherwise."""
    summaries = tuple(
        _summary(case, kind)
        for kind in dict.fromkeys(one.planned.fault for one in case.occurrences)
    )
    verdict = RunVerdict(
        conclusion=Conclusion.PASS,
        exit_code=0,
        sentence=f"No wrong answer got out: {len(case.records)} requests under "
        f"{len(case.occurrences)} faults of {len(summaries)} kinds, each seen by a detector that "
        "was meant to see it and shown to be healed.",
        reasons=(),
        seed=SEED,
        plan_digest=case.plan.digest,
        engine="reference",
        model="smollm2-135m",
        profile=str(case.spec.system.profile),
        requests=len(case.records),
        tokens=sum(len(record.chunks) for record in case.records),
        silent_corruptions=0,
        lost=0,
        duplicated=0,
        availability=0.9875 if case.records else None,
        false_alarms=0,
        properties=tuple(
            PropertyVerdict(name, Conclusion.PASS, checked=len(case.records))
            for name in PROPERTY_IDS
        ),
        faults=summaries,
        self_test=tuple(SinResult(sin, True, "", (name,), (name,)) for sin, name in SINS),
        detections=tuple(_detections(case)),
    )
    return replace(verdict, **changes)


def violated(story: Story = UNCHECKED) -> tuple[Case, RunVerdict]:
    """The same plan with checks off: poison spreads, nobody sees it."""
    case, _ = passing(story)
    records = list(case.records)
    for k in range(30, len(records), 9):
        records[k] = _corrupted(records[k], k, case.golden)
    quiet = tuple(e for e in case.events if e.kind in (EventKind.REPLICA_UP,))
    case = replace(case, records=tuple(records), events=quiet, notes=("Checks are off.",))
    wrong = [records[k] for k in range(30, len(records), 9)]
    broken = tuple(
        Violation(
            f"{r.request_id}: an answer was wrong and said nothing of it, from token 6 on",
            r.request_id,
        )
        for r in wrong
    )
    verdict = verdict_of(
        case,
        conclusion=Conclusion.FAIL,
        exit_code=1,
        sentence=f"{len(wrong)} wrong answers reached their users as if nothing had happened; "
        "the first was r-00030, 0.4 s after kv.poisoned_page@0 fired.",
        silent_corruptions=len(wrong),
        detections=(),
    )
    rows = {row.id: row for row in verdict.properties}
    rows["golden.tokens"] = PropertyVerdict("golden.tokens", Conclusion.FAIL, 240, broken)
    rows["detection.matrix"] = PropertyVerdict(
        "detection.matrix",
        Conclusion.FAIL,
        28,
        tuple(
            Violation(f"{o.planned.id} was seen by nobody", occurrence=o.planned.id)
            for o in case.occurrences
        ),
    )
    rows["recovery.bound"] = PropertyVerdict(
        "recovery.bound", Conclusion.UNKNOWN, 0, reason="no window was good after the last heal"
    )
    rows["kv.conservation"] = PropertyVerdict(
        "kv.conservation", Conclusion.VACUOUS, 0, reason="no page audit arrived"
    )
    faults_seen = tuple(
        replace(f, detected=0, detectors={}, mttd_ms_p50=None, mttd_ms_p99=None)
        for f in verdict.faults
    )
    return case, replace(verdict, properties=tuple(rows.values()), faults=faults_seen)


def aborted() -> tuple[Case, RunVerdict]:
    """A run stopped by its safety rules, with open requests and a fault that never fired."""
    case, _ = passing(Story(requests=60))
    cut = START_NS + 21 * SECOND
    records = tuple(
        r
        if r.t_end_ns < cut
        else replace(r, outcome=Outcome.OPEN, t_end_ns=0, chunks=[], t_first_ns=0)
        for r in case.records
        if r.t_invoke_ns < cut
    )
    occurrences = tuple(
        o
        if o.fired_ns and o.fired_ns < cut
        else OccurrenceRecord(o.planned, error="the run was stopped before it was due")
        for o in case.occurrences
    )
    case = replace(
        case,
        records=records,
        occurrences=occurrences,
        events=tuple(e for e in case.events if e.t_ns < cut),
        aborted="ok_ratio was 0.31 < 0.5 for 10 s",
        t_end_ns=cut,
        t_healed_ns=max((o.healed_ns for o in occurrences), default=0),
    )
    return case, verdict_of(
        case,
        conclusion=Conclusion.ABORTED,
        exit_code=4,
        sentence="Stopped by safety after 21 s: ok_ratio was 0.31 < 0.5 for 10 s.",
        reasons=("ok_ratio was 0.31 < 0.5 for 10 s",),
        self_test=(),
    )


def empty() -> tuple[Case, RunVerdict]:
    """A run that ended before anything happened."""
    story = Story(requests=0, per_fault=0)
    case, _ = passing(story)
    case = replace(
        case,
        facts={},
        events=(),
        golden={},
        certificate={},
        prompts={},
        warmup=(),
        t_start_ns=0,
        t_end_ns=0,
    )
    return case, verdict_of(
        case,
        conclusion=Conclusion.INVALID,
        exit_code=3,
        sentence="",
        reasons=("the golden answers could not be made: no replica came up",),
        engine="",
        model="",
        properties=(),
        self_test=(),
        plan_digest="",
    )


def hostile(story: Story = PLAIN) -> tuple[Case, RunVerdict]:
    """A run in which every free text is an attack."""
    case, _ = violated(story)
    records = tuple(
        replace(
            record,
            text=HOSTILE,
            degraded=(HOSTILE,),
            degraded_header=HOSTILE,
            attempts=(HOSTILE,),
            error=HOSTILE,
        )
        for record in case.records
    )
    for one in case.occurrences:
        one.error = HOSTILE
        one.replica = HOSTILE
        if one.evidence:
            one.evidence = replace(one.evidence, place=HOSTILE, before=HOSTILE)
    case = replace(
        case,
        records=records,
        events=tuple(replace(event, replica=HOSTILE) for event in case.events),
        golden={key: replace(one, text=HOSTILE) for key, one in case.golden.items()},
        prompts={key: replace(one, text=HOSTILE) for key, one in case.prompts.items()},
        facts={HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}},
        certificate={"why": HOSTILE},
        aborted=HOSTILE,
        notes=(HOSTILE,),
    )
    wrong = PropertyVerdict(
        "golden.tokens", Conclusion.FAIL, 1, (Violation(HOSTILE, "r-00030", advice=HOSTILE),)
    )
    unknown = PropertyVerdict("own.rule", Conclusion.UNKNOWN, 0, reason=HOSTILE)
    alarm = Detection(HOSTILE, case.t_start_ns, HOSTILE, failure_id=HOSTILE)
    seen = replace(alarm, occurrence=case.occurrences[0].planned.id, latency_ms=1.0)
    return case, verdict_of(
        case,
        conclusion=Conclusion.FAIL,
        exit_code=1,
        sentence=HOSTILE,
        reasons=(HOSTILE + "!",),
        engine=HOSTILE,
        model=HOSTILE,
        properties=(wrong, unknown),
        detections=(alarm, seen),
    )


def _corrupted(record: RequestRecord, k: int, golden: Mapping[str, GoldenAnswer]) -> RequestRecord:
    if not record.chunks:
        return record
    if k % 4 == 0:
        return replace(record, chunks=[], text="", usage_tokens=0, finish_reason="stop")
    other = golden["p03" if record.prompt_id != "p03" else "p04"].tokens
    chunks = list(record.chunks)
    for i in range(6, len(chunks)):
        token = other[i] if k % 4 == 1 else 100 + (7 * i + k) % 5000
        chunks[i] = replace(chunks[i], token=token, text=" \ufffd\u202e" if k % 4 == 2 else " foo")
    return replace(record, chunks=chunks, text="".join(chunk.text for chunk in chunks))


def _detections(case: Case) -> Sequence[Detection]:
    found = []
    for one in case.occurrences:
        if one.fired:
            slow = one.planned.kind.startswith("actor.")
            latency = 1024.0 if slow else 24.0 + 3 * one.planned.n
            found.append(
                Detection(
                    one.planned.expect.detectors[0],
                    one.fired_ns + int(latency * 1e6),
                    one.replica,
                    one.planned.id,
                    expected=True,
                    latency_ms=latency,
                )
            )
            if one.planned.kind == "kv.bitflip":
                found.append(
                    replace(found[-1], detector="numerical.attention_hull", expected=False)
                )
    return found


def _summary(case: Case, fault: str) -> FaultSummary:
    mine = [one for one in case.occurrences if one.planned.fault == fault]
    seen = [d for d in _detections(case) if d.occurrence.rpartition("@")[0] == fault]
    counts = {d.detector: sum(e.detector == d.detector for e in seen) for d in seen}
    times = sorted(d.latency_ms for d in seen if d.latency_ms is not None)
    fired = sum(one.fired for one in mine)
    return FaultSummary(
        id=fault,
        kind=mine[0].planned.kind,
        planned=len(mine),
        fired=fired,
        verified=sum(one.verified for one in mine),
        detected=fired,
        healed=sum(one.healed for one in mine),
        required=True,
        detectors=counts,
        mttd_ms_p50=times[len(times) // 2] if times else None,
        mttd_ms_p99=times[-1] if times else None,
        touched=2,
        silent=0,
        recover_ms_max=900.0 if fired else None,
    )


RUNS = {"passing": passing, "violated": violated, "aborted": aborted, "empty": empty}
