"""Known-bad histories: each takes a clean copy of a run and commits one sin."""

from dataclasses import replace

from tocsin.chaos import sins_of_service  # noqa: F401 - declares the others
from tocsin.chaos.case import Case
from tocsin.chaos.sin import SECOND, SINS, sin, with_event, with_record
from tocsin.core.history import Chunk, Event, EventKind, Outcome, RequestRecord

__all__ = ["SINS"]


def _surest_index(case: Case, record: RequestRecord) -> int:
    """Index of the token that the golden decode was surest of: no near tie excuses its change."""
    margins = case.golden[record.prompt_id].margins
    return max(range(len(record.chunks)), key=lambda i: margins[i] if i < len(margins) else 0.0)


def _changed(chunk: Chunk) -> Chunk:
    return replace(chunk, token=chunk.token + 1 if chunk.token else 7)


@sin
def swap_token(case: Case) -> Case:
    """One token of a completed answer is another one."""
    record = case.records[0]
    index = _surest_index(case, record)
    chunks = list(record.chunks)
    chunks[index] = _changed(chunks[index])
    return with_record(case, 0, chunks=chunks)


@sin
def drop_last_token(case: Case) -> Case:
    """A completed answer lacks its last token."""
    return with_record(case, 0, chunks=case.records[0].chunks[:-1])


@sin
def drop_middle_token(case: Case) -> Case:
    """A completed answer has a gap."""
    chunks = case.records[0].chunks
    return with_record(case, 0, chunks=[*chunks[:1], *chunks[2:]])


@sin
def wrong_finish(case: Case) -> Case:
    """An answer says that it ended another way than it did."""
    other = "stop" if case.records[0].finish_reason == "length" else "length"
    return with_record(case, 0, finish_reason=other)


@sin
def replace_answer(case: Case) -> Case:
    """A request receives the whole answer of another prompt."""
    victim = case.records[0]
    own = case.golden[victim.prompt_id].tokens
    donor = next(
        record
        for record in case.records
        if record.prompt_id != victim.prompt_id and record.tokens[-4:] != own[-4:]
    )
    chunks = [
        replace(chunk, t_ns=victim.t_invoke_ns + 1 + i) for i, chunk in enumerate(donor.chunks)
    ]
    return with_record(
        case,
        0,
        chunks=chunks,
        text=donor.text,
        stream=donor.stream,
        usage_tokens=len(chunks),
        finish_reason=donor.finish_reason,
    )


@sin
def duplicate_index(case: Case) -> Case:
    """One token arrives twice."""
    chunks = case.records[0].chunks
    return with_record(case, 0, chunks=[*chunks[:2], chunks[1], *chunks[2:]])


@sin
def restart_stream(case: Case) -> Case:
    """A resumed stream begins again at index 0."""
    chunks = case.records[0].chunks
    return with_record(case, 0, chunks=[*chunks[:2], *chunks])


@sin
def wrong_token_in_cancelled(case: Case) -> Case:
    """A request that its client cancelled had received a wrong token."""
    record = case.records[0]
    index = _surest_index(case, record)
    chunks = [*record.chunks[:index], _changed(record.chunks[index])]
    return with_record(
        case, 0, chunks=chunks, outcome=Outcome.CANCELLED, terminals=0, finish_reason=""
    )


@sin
def token_after_end(case: Case) -> Case:
    """A token arrives after the end of its answer."""
    return with_record(case, 0, t_end_ns=case.records[0].chunks[-1].t_ns - 1)


@sin
def drop_terminal(case: Case) -> Case:
    """A request never ends."""
    return with_record(case, 0, outcome=Outcome.OPEN, terminals=0, finish_reason="", t_end_ns=0)


@sin
def second_terminal(case: Case) -> Case:
    """An answer ends twice."""
    return with_record(case, 0, terminals=2)


@sin
def answer_to_timeout(case: Case) -> Case:
    """A client waits in vain for the end of its answer."""
    return with_record(
        case, 0, outcome=Outcome.INFO, terminals=0, finish_reason="", error="planted time-out"
    )


@sin
def refuse_all(case: Case) -> Case:
    """Every request before the fault was refused; nearly nothing after it was answered."""
    records = tuple(
        record
        if record.degraded
        else replace(
            record,
            outcome=Outcome.FAIL,
            terminals=1,
            chunks=[],
            t_first_ns=0,
            text="",
            finish_reason="",
            error="planted refusal",
        )
        for record in case.records
    )
    # The refusals lie before the fault, so that only their number is at issue, not recovery.
    early_ns = min(record.t_invoke_ns for record in records)
    moved = tuple(
        record if record.degraded else replace(record, t_invoke_ns=early_ns, t_end_ns=early_ns + 1)
        for record in records
    )
    return _unfaulted(replace(case, records=moved))


def _unfaulted(case: Case) -> Case:
    """The case without its fault and the alarm of it."""
    events = tuple(event for event in case.events if event.kind is not EventKind.CHECK_FAILED)
    return replace(case, events=events, occurrences=())


@sin
def move_canary(case: Case) -> Case:
    """An answer holds the canary word of another prompt."""
    record = case.records[0]
    own = case.golden[record.prompt_id].text.casefold()
    word = next(
        prompt.canary
        for prompt in case.prompts.values()
        if prompt.id != record.prompt_id and prompt.canary.casefold() not in own
    )
    last = record.chunks[-1]
    chunks = [*record.chunks[:-1], replace(last, text=f"{last.text} {word}")]
    return with_record(case, 0, chunks=chunks, text=f"{record.text} {word}")


@sin
def leak_page(case: Case) -> Case:
    """One KV page is neither free nor used."""
    return _with_audit(case, pages_free=-1)


@sin
def double_page(case: Case) -> Case:
    """One KV page is counted twice."""
    return _with_audit(case, pages_cached=1)


def _with_audit(case: Case, **change: int) -> Case:
    reading = next(event.data for event in case.events if event.kind is EventKind.PAGE_AUDIT)
    changed = {key: value + change.get(key, 0) for key, value in reading.items()}
    return with_event(case, EventKind.PAGE_AUDIT, data=changed)


@sin
def remove_degraded_flag(case: Case) -> Case:
    """An answer that was served degraded does not say so."""
    index = next(i for i, record in enumerate(case.records) if record.degraded)
    return with_record(case, index, degraded=(), degraded_header="")


@sin
def add_degraded_flag(case: Case) -> Case:
    """An answer says that it is degraded, and nothing on the servers' side does."""
    return with_record(case, 0, degraded=("attention:planted",))


@sin
def late_detection(case: Case) -> Case:
    """The right detector alarms, too late."""
    one = case.occurrences[0]
    late_ns = one.fired_ns + int(one.planned.expect.within_s * 1e9) + 10_000_000
    return with_event(case, EventKind.CHECK_FAILED, t_ns=late_ns)


@sin
def wrong_detector(case: Case) -> Case:
    """Only a detector alarms that does not mean this fault."""
    data = {"findings": [{"check": "self.other"}]}
    return with_event(case, EventKind.CHECK_FAILED, data=data)


@sin
def missed_detection(case: Case) -> Case:
    """Nobody sees the fault."""
    events = tuple(event for event in case.events if event.kind is not EventKind.CHECK_FAILED)
    return replace(case, events=events)


@sin
def false_alarm(case: Case) -> Case:
    """A check alarms where no fault is active."""
    alarm = Event(
        EventKind.CHECK_FAILED,
        case.t_start_ns,
        "self-test-other",
        data={"findings": [{"check": "self.test"}]},
    )
    return replace(case, events=(*case.events, alarm))


@sin
def slow_recovery(case: Case) -> Case:
    """After the fault was healed, nothing is answered for longer than is allowed."""
    one = case.occurrences[0]
    delay_ns = int(one.planned.expect.recover_within_s * 1e9) + SECOND
    records = tuple(
        _delayed(record, delay_ns) if record.t_end_ns >= one.healed_ns else record
        for record in case.records
    )
    return replace(case, records=records, t_end_ns=case.t_end_ns + delay_ns)


def _delayed(record: RequestRecord, delay_ns: int) -> RequestRecord:
    return replace(
        record,
        t_first_ns=record.t_first_ns + delay_ns,
        t_end_ns=record.t_end_ns + delay_ns,
        chunks=[replace(chunk, t_ns=chunk.t_ns + delay_ns) for chunk in record.chunks],
    )


@sin
def unhealed_occurrence(case: Case) -> Case:
    """A fault was never shown to be gone."""
    one = replace(case.occurrences[0], state="unhealed", healed_ns=0)
    return replace(case, occurrences=(one,))


@sin
def truncated_as_success(case: Case) -> Case:
    """An answer lacks its last token and adds up all the same."""
    record = case.records[0]
    chunks = record.chunks[:-1]
    text = "".join(chunk.text for chunk in chunks) if record.stream else record.text
    return with_record(case, 0, chunks=chunks, usage_tokens=len(chunks), text=text)


@sin
def finish_without_end(case: Case) -> Case:
    """A stream gives its finish reason and breaks before its end."""
    return with_record(case, 0, outcome=Outcome.INFO, error="planted cut")


@sin
def refusal_without_words(case: Case) -> Case:
    """A request that met the fault is refused, and nobody says why."""
    one = case.occurrences[0]
    index = next(
        i for i, r in enumerate(case.records) if r.t_invoke_ns <= one.fired_ns <= r.t_end_ns
    )
    return with_record(
        case, index, outcome=Outcome.FAIL, http_status=500, finish_reason="", error=""
    )
