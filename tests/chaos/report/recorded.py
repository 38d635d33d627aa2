"""Made-up recordings of runs, as close to real ones as a report needs to be tested."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tocsin.chaos.attribution import Detection
from tocsin.chaos.case import (
    Case,
    Conclusion,
    OccurrenceRecord,
    Prompt,
    PropertyVerdict,
    Violation,
)
from tocsin.chaos.contract import Fault, faults
from tocsin.chaos.plan import Expectation, Occurrence, Plan
from tocsin.chaos.spec import Experiment
from tocsin.chaos.verdict import FaultSummary, RunVerdict, SinResult
from tocsin.core.draw import draw_below, draw_exponential, draw_unit
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.history import Chunk, Event, EventKind, Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{7*7}}&amp;\u202e\x00\ud800"
)
SEED = 20261129
START_NS = 5_000_000_000_000
SECOND = 1_000_000_000
WORDS = ("The", " answer", " is", " in", " the", " second", " part", " of", " it", ".", " Then")
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


@dataclass(frozen=True)
class Story:
    """What a made-up run is like."""

    requests: int = 240
    seconds: float = 62.0
    tokens: int = 20
    per_fault: int = 2
    profile: str = "full"


def spec_of(story: Story) -> Experiment:
    """An experiment without a file."""
    return Experiment.model_validate(
        {
            "apiVersion": "chaos/v1",
            "kind": "Experiment",
            "name": "first-light",
            "hypothesis": "While pages race, weights rot and a replica dies, every completed "
            "answer equals its golden decode or says so, and service recovers in 15 s.",
            "seed": SEED,
            "system": {"profile": story.profile},
            "faults": [
                {"id": _fault_id(kind), "kind": kind, "when": {"at": [40]}}
                for kind in (faults() if story.per_fault else ())
            ],
        }
    )


def passing(story: Story = Story()) -> tuple[Case, RunVerdict]:
    """A run in which everything that was planned happened, was seen and was taken back."""
    golden = golden_answers()
    records = tuple(_record(story, k, golden) for k in range(story.requests))
    records = tuple(_around_freeze(story, record) for record in records)
    occurrences = tuple(_occurrences(story))
    warmup = tuple(
        replace(record, request_id=f"w-{k}", degraded=(), degraded_header="")
        for k, record in enumerate(records[:8])
    )
    records += tuple(_turned_away(one) for one in occurrences if one.replica == "client")
    events = tuple(sorted(_events(story, occurrences, records), key=lambda event: event.t_ns))
    case = Case(
        spec=spec_of(story),
        plan=Plan("first-light", SEED, "9f2c" * 16, tuple(o.planned for o in occurrences)),
        facts={
            "engine": "reference",
            "model": "smollm2-135m",
            "profile": story.profile,
            "dtype": "float32",
            "device": "cpu",
            "replicas": ["tocsin-worker#4hq2f", "tocsin-worker#9k1bz"],
            "url": "127.0.0.1:8000",
            "slots": 8,
            "versions": {"torch": "2.13.0", "transformers": "5.24.0", "ray": "2.60.0"},
        },
        records=records,
        warmup=warmup,
        requests={},
        events=events,
        golden=golden,
        certificate={"bit_exact": True, "tau": 0.0, "cases": 108, "kernel": "flash", "threads": 1},
        occurrences=occurrences,
        prompts={
            key: Prompt(key, f"Explain topic {key[1:]} to a careful reader.", f"canary-{key}")
            for key in golden
        },
        t_start_ns=START_NS,
        t_faults_ns=min((o.ordered_ns for o in occurrences), default=0),
        t_healed_ns=max((o.healed_ns for o in occurrences), default=0),
        t_end_ns=START_NS + int(story.seconds * SECOND),
    )
    return case, verdict_of(case)


def golden_answers(count: int = 48, length: int = 20) -> dict[str, GoldenAnswer]:
    """Golden answers to made-up prompts."""
    return {
        f"p{k:02d}": GoldenAnswer(
            prompt_id=f"p{k:02d}",
            tokens=tuple(200 + draw_below(40_000, SEED, "golden", k, i) for i in range(length)),
            margins=tuple(0.05 + 6 * draw_unit(SEED, "margin", k, i) for i in range(length)),
            reference_tokens=(),
            text="".join(WORDS[(k + i) % len(WORDS)] for i in range(length)),
            finish_reason="length",
        )
        for k in range(count)
    }


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


def violated(story: Story = Story(profile="off")) -> tuple[Case, RunVerdict]:
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


def hostile(story: Story = Story()) -> tuple[Case, RunVerdict]:
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


def _record(story: Story, k: int, golden: Mapping[str, GoldenAnswer]) -> RequestRecord:
    prompt = f"p{draw_below(len(golden), SEED, 'prompt', k):02d}"
    invoke = START_NS + int((0.4 + k / max(1, story.requests) * (story.seconds - 4)) * SECOND)
    first = invoke + int((0.06 + draw_exponential(0.05, SEED, "ttft", k)) * SECOND)
    chunks, t_ns = [], first
    for i, token in enumerate(golden[prompt].tokens[: story.tokens]):
        chunks.append(Chunk(t_ns, i, token, WORDS[(int(prompt[1:]) + i) % len(WORDS)]))
        t_ns += int((0.028 + draw_exponential(0.008, SEED, "gap", k, i)) * SECOND)
    degraded = ("attention: sdpa instead of flash",) if k % 19 == 7 else ()
    return RequestRecord(
        request_id=f"r-{k:05d}",
        prompt_id=prompt,
        t_invoke_ns=invoke,
        stream=True,
        max_new_tokens=story.tokens,
        outcome=Outcome.OK,
        t_first_ns=first,
        t_end_ns=t_ns,
        http_status=200,
        finish_reason="length",
        usage_tokens=len(chunks),
        chunks=chunks,
        text="".join(chunk.text for chunk in chunks),
        terminals=1,
        degraded=degraded,
        degraded_header=degraded[0] if degraded else "",
        attempts=("tocsin-worker#4hq2f" if k % 2 else "tocsin-worker#9k1bz",),
    )


def _turned_away(one: OccurrenceRecord) -> RequestRecord:
    """A malformed request and its explicit 400."""
    return RequestRecord(
        request_id=f"m-{one.planned.id}",
        prompt_id="",
        t_invoke_ns=one.fired_ns,
        stream=False,
        max_new_tokens=16,
        outcome=Outcome.FAIL,
        t_end_ns=one.fired_ns + 9_000_000,
        http_status=400,
        terminals=1,
        error="prompt: expected at least one token",
        malformed="empty",
    )


def _around_freeze(story: Story, record: RequestRecord) -> RequestRecord:
    """Requests that met the frozen replica waited for it; a few got an honest error."""
    at = START_NS + int(story.seconds * 0.62 * SECOND)
    k = int(record.request_id[2:])
    if not at < record.t_invoke_ns < at + 3 * SECOND or k % 2:
        return record
    if k % 7 == 0:
        return replace(
            record,
            outcome=Outcome.FAIL,
            chunks=[],
            t_first_ns=0,
            http_status=503,
            text="",
            finish_reason="",
            error="no replica could take it",
            failure_id="01JDEMO",
        )
    late = at + 3_400_000_000 - record.t_invoke_ns
    chunks = [replace(chunk, t_ns=chunk.t_ns + late) for chunk in record.chunks]
    return replace(
        record,
        chunks=chunks,
        t_first_ns=chunks[0].t_ns,
        t_end_ns=record.t_end_ns + late,
        attempts=("tocsin-worker#9k1bz", "tocsin-worker#4hq2f"),
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


def _occurrences(story: Story) -> Sequence[OccurrenceRecord]:
    """Occurrences spread over the middle of the run, kind after kind."""
    found = []
    kinds = list(faults().values())
    total = len(kinds) * story.per_fault
    for n in range(story.per_fault):
        for k, fault in enumerate(kinds):
            place = (n * len(kinds) + (5 * k + 3 * n) % len(kinds)) / max(1, total)
            found.append(_occurrence(story, fault, n, 0.12 + 0.66 * place))
    return found


def _fault_id(kind: str) -> str:
    return kind.replace(".", "-").replace("_", "-")


def _occurrence(story: Story, fault: Fault, n: int, place: float) -> OccurrenceRecord:
    name = _fault_id(fault.id)
    ordered = START_NS + int(place * story.seconds * SECOND)
    if fault.id == "actor.freeze":
        ordered = START_NS + int(story.seconds * (0.62 if n == 0 else 0.85) * SECOND)
    fired = ordered + int((0.08 + 0.5 * draw_unit(SEED, name, n)) * SECOND)
    lasts = {"actor.freeze": 3.3, "actor.kill": 5.2, "weight.bitflip": 0.9}.get(fault.id, 0.06)
    expect = Expectation("required", fault.expect, 5.0, fault.priority, "", 15.0)
    planned = Occurrence(
        f"{name}@{n}", name, fault.id, n, fault.scope, "decode_step", 40 * n, n % 2, n, {}, expect
    )
    evidence = Evidence(
        f"page {7 + n} depth 3 V[2, 5]", "0x3f8ccccd", "0x7fc00000", (f"r-{40 + n:05d}",)
    )
    if fault.scope is Scope.CLIENT:
        evidence = Evidence("body of a request", "well-formed", "empty", (f"m-{name}@{n}",))
    return OccurrenceRecord(
        planned=planned,
        replica="client"
        if fault.scope is Scope.CLIENT
        else ("tocsin-worker#9k1bz" if n % 2 else "tocsin-worker#4hq2f"),
        state="healed",
        ordered_ns=ordered,
        fired_ns=fired,
        fired_step=40 * n,
        healed_ns=fired + int(lasts * SECOND),
        evidence=evidence,
        orders=1,
    )


def _events(
    story: Story, occurrences: Sequence[OccurrenceRecord], records: Sequence[RequestRecord]
) -> Sequence[Event]:
    names = ("tocsin-worker#4hq2f", "tocsin-worker#9k1bz")
    end_ns = START_NS + int((story.seconds - 0.5) * SECOND)
    pages = {"pages_total": 192, "pages_free": 170, "pages_used": 0}
    pages |= {"pages_cached": 20, "pages_quarantined": 2, "running": 0, "waiting": 0}
    found = [Event(EventKind.REPLICA_UP, START_NS, name) for name in names]
    found += [Event(EventKind.PAGE_AUDIT, end_ns, name, data=dict(pages)) for name in names]
    found += [
        Event(
            EventKind.DEGRADED,
            record.t_first_ns,
            record.attempts[0],
            request_id=record.request_id,
            data={"reason": record.degraded[0], "on": True},
        )
        for record in records
        if record.degraded
    ]
    for one in occurrences:
        kind, t_ns, where = one.planned.kind, one.fired_ns + 24_000_000, one.replica
        if kind == "actor.kill":
            found += [
                Event(EventKind.REPLICA_DOWN, t_ns + SECOND, where),
                Event(EventKind.REQUEST_RESUMED, t_ns + 2 * SECOND, "gateway"),
                Event(EventKind.REPLICA_UP, one.healed_ns, where),
            ]
        elif kind == "actor.freeze":
            found += [
                Event(EventKind.REPLICA_STALLED, t_ns + SECOND, where),
                Event(EventKind.REPLICA_RESUMED, one.healed_ns, where),
            ]
        elif one.planned.scope is not Scope.CLIENT:
            finding = {"check": one.planned.expect.detectors[0], "priority": "P0"}
            data = {"findings": [finding], "cause": "transient", "action": "release"}
            found.append(Event(EventKind.CHECK_FAILED, t_ns, where, data=data))
            if kind.startswith("kv."):
                found.append(Event(EventKind.PAGES_QUARANTINED, t_ns + 1, where))
                found.append(Event(EventKind.REQUEST_RECOMPUTED, t_ns + 2, where))
        if kind == "attn.backend_fail":
            found.append(
                Event(
                    EventKind.BREAKER, t_ns + 3, where, data={"before": "closed", "after": "open"}
                )
            )
    return found


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
