"""A small history without fault, made of a run's own clean answers, for sins to be planted in."""

from dataclasses import replace

from tocsin.chaos.case import Case, OccurrenceRecord, Prompt
from tocsin.chaos.plan import Expectation, Occurrence, Plan, redraw
from tocsin.chaos.spec import Experiment, FaultSpec, WhenSpec
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.history import Chunk, Event, EventKind, Outcome, RequestRecord
from tocsin.core.system import OBSERVED, LoadRequest

SAMPLE_MOST = 48
SAMPLE_LEAST = 6
_MS = 1_000_000
_T0 = 10**9
_GAP_NS = 100 * _MS
REPLICA = "self-test"
LABEL = "attention:self-test"
_CRC = 0x5E1F7E57
_HELD = {"pid": 1, "rss_bytes": 2**30, "shm_bytes": 0, "fds": 40, "threads": 20}


def clean_copy(case: Case) -> Case | None:
    """A small history without fault, made of this run's clean answers; None: there are too few."""
    records = _sample(case)
    if len(records) < SAMPLE_LEAST:
        return None
    labelled = records[2]
    labelled.degraded, labelled.degraded_header = (LABEL,), LABEL
    fired_ns = _T0 + 2 * _GAP_NS
    spec = _spec(case.spec)
    occurrence = _planted(spec, fired_ns)
    cancelled = _cancelled(records[0], _T0 + len(records) * _GAP_NS)
    again = _again(records[3], _T0 + (len(records) + 1) * _GAP_NS)
    keyed = {one.request_id: _keyed(case, one) for one in (records[3], again)}
    records += [cancelled, _shed(records[0], fired_ns + 50 * _MS), again]
    last_ns = max(record.t_end_ns for record in records)
    sampled = case.golden[records[1].prompt_id]
    return replace(
        case,
        spec=spec,
        plan=Plan(spec.name, spec.seed, case.plan.digest, (occurrence.planned,)),
        facts={**case.facts, "observes": sorted(OBSERVED), "second_run": _twice()},
        records=tuple(records),
        requests={**case.requests, **keyed},
        golden={**case.golden, sampled.prompt_id: replace(sampled, logit_crcs=(_CRC,))},
        events=(
            *_of_fault(fired_ns),
            Event(
                EventKind.DEGRADED,
                labelled.t_invoke_ns + _MS,
                REPLICA,
                request_id=labelled.request_id,
                data={"reason": LABEL, "on": True},
            ),
            *_of_requests(records[1], cancelled),
            Event(EventKind.HEALTH, fired_ns, "client", data={"health_ok": True}),
            Event(EventKind.RESOURCES, _T0, REPLICA, data={"when": "before", **_HELD}),
            Event(EventKind.RESOURCES, last_ns, REPLICA, data={"when": "after", **_HELD}),
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


def _spec(spec: Experiment) -> Experiment:
    """The experiment of the copy: one fault, limits of the properties at their defaults."""
    return spec.model_copy(
        update={
            "steady_state": spec.steady_state.model_copy(
                update={"window_s": 0.1, "good_windows": 2, "probes": ()}
            ),
            "budget": spec.budget.model_copy(update={"availability": 0.5}),
            "faults": (FaultSpec(id="self-test", kind="self.test", when=WhenSpec(at=(0,))),),
            "checks": (),
        }
    )


def _of_fault(fired_ns: int) -> tuple[Event, ...]:
    """The alarm, the reaction and the alert of the planted fault."""
    alert = {
        "alert": "self_test",
        "priority": "P0",
        "route": "p0-page",
        "incident": "self-test@0",
        "run": "self-test",
        "repro": "repro/self-test",
        "result": "ok",
    }
    finding = {"findings": [{"check": "self.test"}]}
    return (
        Event(EventKind.CHECK_FAILED, fired_ns + 20 * _MS, REPLICA, data=finding),
        Event(EventKind.PAGES_QUARANTINED, fired_ns + 21 * _MS, REPLICA),
        Event(EventKind.ALERT_SENT, fired_ns + 30 * _MS, "board", data=alert),
    )


def _of_requests(sampled: RequestRecord, cancelled: RequestRecord) -> tuple[Event, ...]:
    """The logits of one token, and the pages of a cancelled request that are free again."""
    logits = {"index": 0, "crc": _CRC}
    freed = {"pages": 1, "steps": 1}
    return (
        Event(EventKind.LOGITS, sampled.t_first_ns, REPLICA, 1, sampled.request_id, logits),
        Event(
            EventKind.PAGES_FREED, cancelled.t_end_ns + _MS, REPLICA, 2, cancelled.request_id, freed
        ),
    )


def _cancelled(record: RequestRecord, t_ns: int) -> RequestRecord:
    """The same request, given up by its client after two tokens."""
    begun = _retimed(record, t_ns)
    chunks = begun.chunks[:2]
    return replace(
        begun,
        request_id="self-test-cancelled",
        outcome=Outcome.CANCELLED,
        chunks=chunks,
        t_end_ns=chunks[-1].t_ns + _MS,
        text="".join(chunk.text for chunk in chunks),
        usage_tokens=-1,
        finish_reason="",
        terminals=0,
    )


def _again(record: RequestRecord, t_ns: int) -> RequestRecord:
    """The same request, sent again under its key: it has the same answer."""
    return replace(_retimed(record, t_ns), request_id="self-test-again", replayed=True)


def _keyed(case: Case, record: RequestRecord) -> LoadRequest:
    sent = case.requests.get(record.request_id) or LoadRequest(
        record.request_id, record.prompt_id, "", {}, record.stream, record.max_new_tokens
    )
    return replace(sent, request_id=record.request_id, idempotency_key="self-test")


def _shed(record: RequestRecord, t_ns: int) -> RequestRecord:
    """The same request, turned away for want of room."""
    return replace(
        record,
        request_id="self-test-shed",
        t_invoke_ns=t_ns,
        t_first_ns=0,
        t_end_ns=t_ns + _MS,
        outcome=Outcome.FAIL,
        http_status=429,
        retry_after="1",
        error="no room; come again",
        chunks=[],
        text="",
        usage_tokens=-1,
        finish_reason="",
        attempts=(),
    )


def _twice() -> dict[str, dict[str, object]]:
    """What two runs of one seed have in common: everything."""
    once: dict[str, object] = {
        "plan_digest": "p",
        "history_digest": "h",
        "outcomes": {"self-test@0": "healed"},
    }
    return {"first": once, "second": dict(once)}


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


def _planted(spec: Experiment, fired_ns: int) -> OccurrenceRecord:
    """One fault as it should be: seen after 20 ms, its page put aside, healed after 100 ms."""
    expect = Expectation("required", ("self.test",), 0.05, "P0", "quarantine_kv", 0.3)
    place = Occurrence(
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
        expect=expect,
    )
    drawn = redraw(spec, [place])[0]
    return OccurrenceRecord(
        planned=replace(drawn, expect=expect),
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
