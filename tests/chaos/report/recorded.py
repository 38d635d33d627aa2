"""Made-up recordings of runs, as close to real ones as a report needs to be tested."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tocsin.chaos.attribution import BY_CLIENTS
from tocsin.chaos.case import (
    Case,
    OccurrenceRecord,
    Prompt,
)
from tocsin.chaos.contract import Fault, faults
from tocsin.chaos.plan import Expectation, Occurrence, Plan
from tocsin.chaos.spec import Experiment
from tocsin.core.draw import draw_below, draw_exponential, draw_unit
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.history import Chunk, Event, EventKind, Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer

SEED = 20261129
START_NS = 5_000_000_000_000
SECOND = 1_000_000_000
WORDS = ("The", " answer", " is", " in", " the", " second", " part", " of", " it", ".", " Then")


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


def recording(story: Story) -> Case:
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
    return Case(
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
        replayed="service.idempotency" in one.planned.expect.detectors,
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
        else:
            found += [
                Event(told, t_ns, "gateway", request_id=f"m-{one.planned.id}")
                for told, detector in BY_CLIENTS.items()
                if detector in one.planned.expect.detectors
            ]
        if kind == "attn.backend_fail":
            found.append(
                Event(
                    EventKind.BREAKER, t_ns + 3, where, data={"before": "closed", "after": "open"}
                )
            )
    return found
