"""Known-bad histories of what a service does beside its answers: reactions, alerts, readings."""

from dataclasses import replace

from tocsin.chaos.case import Case
from tocsin.chaos.sin import SECOND, sin, with_data, with_event, with_record, without
from tocsin.core.history import Event, EventKind, Outcome


@sin
def missing_reaction(case: Case) -> Case:
    """Nothing is done about a fault that was seen."""
    return without(case, EventKind.PAGES_QUARANTINED)


@sin
def wide_reaction(case: Case) -> Case:
    """A request is refused that had ended before the fault."""
    return with_record(
        case, 0, outcome=Outcome.FAIL, http_status=500, finish_reason="", error="planted refusal"
    )


@sin
def alert_to_nobody(case: Case) -> Case:
    """An alert that must page goes to the archive."""
    return with_data(case, EventKind.ALERT_SENT, route="p2-archive")


@sin
def alert_twice(case: Case) -> Case:
    """One incident pages twice."""
    alert = next(event for event in case.events if event.kind is EventKind.ALERT_SENT)
    return replace(case, events=(*case.events, alert))


@sin
def alert_lost(case: Case) -> Case:
    """An alert is given up."""
    return with_data(case, EventKind.ALERT_SENT, result="dead_letter")


@sin
def incident_without_alert(case: Case) -> Case:
    """A fault is seen, and nobody is told."""
    return without(case, EventKind.ALERT_SENT)


@sin
def healthy_while_down(case: Case) -> Case:
    """The health page says ok in the middle of a minute in which a request waits in vain."""
    record = case.records[1]
    gap_ns = 60 * SECOND
    chunks = [*record.chunks[:1], *(replace(c, t_ns=c.t_ns + gap_ns) for c in record.chunks[1:])]
    stuck = with_record(case, 1, chunks=chunks, t_end_ns=record.t_end_ns + gap_ns)
    told = Event(EventKind.HEALTH, case.t_end_ns + gap_ns // 2, "client", data={"health_ok": True})
    return replace(
        stuck, events=(*case.events, told), t_end_ns=max(case.t_end_ns, record.t_end_ns) + gap_ns
    )


@sin
def late_free(case: Case) -> Case:
    """The pages of a cancelled request are held for a hundred steps."""
    return with_data(case, EventKind.PAGES_FREED, steps=100)


@sin
def never_freed(case: Case) -> Case:
    """The pages of a cancelled request are free only a minute later."""
    freed = next(event for event in case.events if event.kind is EventKind.PAGES_FREED)
    return with_event(case, EventKind.PAGES_FREED, t_ns=freed.t_ns + 60 * SECOND)


@sin
def token_after_cancel(case: Case) -> Case:
    """A token arrives after its client gave the request up."""
    chunks = case.records[0].chunks[:3]
    return with_record(
        case,
        0,
        outcome=Outcome.CANCELLED,
        chunks=chunks,
        t_end_ns=chunks[-1].t_ns - 1,
        terminals=0,
        finish_reason="",
    )


@sin
def executed_twice(case: Case) -> Case:
    """A request that was sent again under its key is executed again."""
    index = next(i for i, r in enumerate(case.records) if r.replayed)
    return with_record(case, index, replayed=False)


@sin
def shed_in_silence(case: Case) -> Case:
    """A request is turned away, and not told when to come again."""
    index = next(i for i, r in enumerate(case.records) if r.http_status == 429)
    return with_record(case, index, retry_after="")


@sin
def starved_request(case: Case) -> Case:
    """One admitted request waits a hundred times longer than the others."""
    record = case.records[1]
    wait_ns = 100 * max(SECOND, record.t_first_ns - record.t_invoke_ns)
    return replace(
        with_record(
            case,
            1,
            t_first_ns=record.t_first_ns + wait_ns,
            t_end_ns=record.t_end_ns + wait_ns,
            chunks=[replace(chunk, t_ns=chunk.t_ns + wait_ns) for chunk in record.chunks],
        ),
        t_end_ns=max(case.t_end_ns, record.t_end_ns + wait_ns),
    )


@sin
def leak_files(case: Case) -> Case:
    """A replica holds a thousand files more than before."""
    return _held_more(case, fds=1000)


@sin
def leak_memory(case: Case) -> Case:
    """A replica holds eight times the memory that it held before."""
    return _held_more(case, rss_bytes=8 * 2**30)


@sin
def other_draw(case: Case) -> Case:
    """An occurrence was planned otherwise than the seed draws it."""
    planned = case.plan.occurrences[0]
    changed = replace(planned, seed=planned.seed ^ 1)
    return replace(case, plan=replace(case.plan, occurrences=(changed,)))


@sin
def other_history(case: Case) -> Case:
    """A second run of the same seed has another history."""
    both = case.facts["second_run"]
    second = {**both["second"], "history_digest": "planted"}
    return replace(case, facts={**case.facts, "second_run": {**both, "second": second}})


@sin
def wrong_logits(case: Case) -> Case:
    """The numbers behind a golden token are other ones."""
    return with_data(case, EventKind.LOGITS, crc=0)


def _held_more(case: Case, **more: int) -> Case:
    """The case with larger last readings of what a process holds."""
    events = [
        replace(event, data={**event.data, **{k: event.data[k] + n for k, n in more.items()}})
        if event.kind is EventKind.RESOURCES and event.data["when"] == "after"
        else event
        for event in case.events
    ]
    return replace(case, events=tuple(events))
