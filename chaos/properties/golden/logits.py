"""Not only the tokens are golden, but the numbers behind them."""

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.core.history import EventKind


@prop(
    "golden.logits",
    sins=("wrong_logits",),
    advice="a token that is right by luck: bisect the step by operator before the next one is not",
    conditional=True,
)
def judge(case: Case) -> PropertyVerdict:
    """At sampled steps the crc32 of the top 64 logits is that of the golden decode.

    Strict, so it needs the certificate that the same shape gives the same bits; labelled answers
    came from another kernel. An answer is followed to its first token that is not golden: from
    there on `golden.tokens` speaks.
    """
    sampled = [event for event in case.events if event.kind is EventKind.LOGITS]
    told = bool(sampled) or "logits" in case.facts.get("observes", ())
    if not told:
        return conclude(judge.id, 0, [], nothing="the system does not tell its logits")
    if not case.certificate.get("bit_exact"):
        return conclude(judge.id, 0, [], nothing="without the certificate bits cannot be compared")
    records = {record.request_id: record for record in case.honest}
    checked = 0
    violations: list[Violation] = []
    for event in sampled:
        record = records.get(event.request_id)
        golden = case.golden.get(record.prompt_id) if record is not None else None
        index = int(event.data.get("index", -1))
        if record is None or golden is None:
            continue
        # The engine's own mark: a token that a dying replica told of may never reach the client.
        if record.degraded or event.data.get("degraded"):
            continue
        if not 0 <= index < len(golden.logit_crcs) or not index < len(golden.tokens):
            continue
        before = {chunk.index: chunk.token for chunk in record.chunks if chunk.index < index}
        if any(before.get(i) != golden.tokens[i] for i in range(index)):
            continue
        checked += 1
        found, wanted = int(event.data.get("crc", -1)), golden.logit_crcs[index]
        if found != wanted:
            violations.append(
                Violation(
                    f"{record.request_id}: the logits of token {index} on {event.replica} have "
                    f"crc {found:08x}, golden {wanted:08x}",
                    request_id=record.request_id,
                    evidence={"index": index, "step": event.step, "replica": event.replica},
                )
            )
    nothing = "no sampled step could be compared"
    unknown = nothing if "logits" in case.facts.get("observes", ()) and not checked else ""
    return conclude(judge.id, checked, violations, unknown=unknown, nothing=nothing)
