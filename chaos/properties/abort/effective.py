"""A request that its client gave up stops, and its pages are free again soon."""

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.core.history import Event, EventKind, Outcome, RequestRecord

STEPS_MOST = 4
SECONDS_MOST = 10.0


@prop(
    "abort.effective",
    sins=("late_free", "never_freed", "token_after_cancel"),
    advice="follow the cancel from the broken connection to the scheduler: who still holds the "
    "request, and until which step",
    conditional=True,
)
def judge(case: Case) -> PropertyVerdict:
    """After a cancel no token is sent, and the pages are free within `steps` (4) of the engine.

    Also within `seconds` (10) of the client's cancel, unless the replica died or was away then. A
    request that had ended by itself when the cancel came frees nothing: its replica must be seen
    at rest with no page in use (dynamo#12389: aborts that left a service wedged).
    """
    cancelled = [one for one in case.honest if one.outcome is Outcome.CANCELLED]
    freed: dict[str, Event] = {}
    for event in case.events:
        if event.kind is EventKind.PAGES_FREED:
            freed.setdefault(event.request_id, event)
    params = case.spec.check_params(judge.id)
    steps_most = int(params.get("steps", STEPS_MOST))
    late_ns = int(params.get("seconds", SECONDS_MOST) * 1e9)
    told = bool(freed) or "frees" in case.facts.get("observes", ())
    rested = _rested(case)
    checked = 0
    violations: list[Violation] = []
    unknown: list[str] = []
    for record in cancelled:
        reason, doubt = _late_token(record), ""
        if told and not reason:
            checked += 1
            reason, doubt = _held(case, record, freed.get(record.request_id), steps_most, late_ns)
            if doubt and rested.get(record.attempts[-1] if record.attempts else ""):
                doubt = ""
        if reason:
            text = f"{record.request_id}: {reason}"
            violations.append(Violation(text, request_id=record.request_id))
        if doubt:
            unknown.append(f"{record.request_id}: {doubt}")
    return conclude(
        judge.id,
        checked,
        violations,
        unknown="; ".join(unknown[:5]),
        nothing="no request was cancelled"
        if told
        else "the system does not tell when the pages of a cancelled request are free",
    )


def _late_token(record: RequestRecord) -> str:
    late = [chunk for chunk in record.chunks if record.t_end_ns and chunk.t_ns > record.t_end_ns]
    return f"{len(late)} tokens arrived after its cancel" if late else ""


def _held(
    case: Case, record: RequestRecord, event: Event | None, steps_most: int, late_ns: int
) -> tuple[str, str]:
    """Why its pages were held for too long, and why that cannot be told; empty when neither."""
    if event is None:
        if not record.attempts or _away(case, record, 2**62):
            return "", ""  # no replica has it any more
        return "", f"{record.attempts[-1]} did not tell when its pages were free"
    steps = int(event.data.get("steps", 0))
    if steps > steps_most:
        return f"its pages were free after {steps} steps, expected {steps_most} at most", ""
    took_ns = event.t_ns - record.t_end_ns
    if took_ns > late_ns and not _away(case, record, event.t_ns):
        return f"its pages were free {took_ns / 1e9:.1f} s after its cancel", ""
    return "", ""


def _away(case: Case, record: RequestRecord, until_ns: int) -> bool:
    """Whether a replica that had it died or stood still between its start and then.

    Or whether its client may not have been heard: the network or Ray itself was unwell.
    """
    return any(
        (
            one.planned.scope.takes_all
            or (one.planned.scope.takes_replica and one.replica in record.attempts)
        )
        and one.fired
        and one.fired_ns <= until_ns
        and record.t_invoke_ns <= (one.healed_ns or case.t_end_ns)
        for one in case.occurrences
    )


def _rested(case: Case) -> dict[str, bool]:
    """Replicas that were seen at rest last, and whether no page was in use there."""
    found: dict[str, bool] = {}
    for event in case.events:
        if event.kind is EventKind.PAGE_AUDIT and not event.data.get("running"):
            found[event.replica] = event.data.get("pages_used") == 0
    return found
