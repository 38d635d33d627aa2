"""Answers worth a look: those that differ from the golden ones, and those that are degraded."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tocsin.chaos.case import Case
from tocsin.chaos.report.model import DegradedAnswer, TokenCell, TokenDiff
from tocsin.chaos.report.wording import short, visible
from tocsin.chaos.triage import Category, ForeignIndex, Triage, triage
from tocsin.core.history import Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer

DIFFS_MOST = 12
DEGRADED_MOST = 50
_OF_A_CATEGORY = 4
_BEFORE, _AFTER = 3, 14
_TEXT_LETTERS = 800

Differing = tuple[RequestRecord, GoldenAnswer, Triage]

MEANING = {
    Category.EQUAL: "the tokens are those of the golden answer; it ended in another way",
    Category.TIE_FLIP: "the two best tokens were nearly equal: numerics alone can do this",
    Category.CONFIDENT_FLIP: "the golden token was clearly the best: this is corruption",
    Category.FOREIGN: "it holds text of another request: a leak between users",
    Category.STRUCTURAL: "tokens are missing, repeated or cut off, or it ended for another reason",
}
_WORST_FIRST = (
    Category.FOREIGN,
    Category.CONFIDENT_FLIP,
    Category.STRUCTURAL,
    Category.TIE_FLIP,
    Category.EQUAL,
)


def triages_of(case: Case) -> dict[str, Triage]:
    """How each honest answer that is not the golden one is wrong, by request id.

    An answer that ended early (cancelled, broken off, refused) need only be a prefix.
    """
    suspects: list[tuple[RequestRecord, GoldenAnswer]] = []
    for record in case.records:
        golden = case.golden.get(record.prompt_id)
        if golden is None or record.malformed:
            continue
        wanted = _cut(golden, record)
        if record.tokens != wanted.tokens or _ended_otherwise(record, wanted):
            suspects.append((record, wanted))
    if not suspects:
        return {}
    foreign = ForeignIndex(case.golden)
    tau = float(case.certificate.get("tau", 0.0))
    found = {
        record.request_id: triage(record.tokens, _finish(record), wanted, foreign, tau)
        for record, wanted in suspects
    }
    return {key: one for key, one in found.items() if one.category is not Category.EQUAL}


def differing(case: Case, triages: Mapping[str, Triage]) -> tuple[tuple[TokenDiff, ...], int]:
    """The worst differing answers, silent ones before labelled ones, and how many there are."""
    found = [
        (record, case.golden[record.prompt_id], triages[record.request_id])
        for record in case.records
        if record.request_id in triages and record.prompt_id in case.golden
    ]
    found.sort(
        key=lambda item: (
            bool(item[0].degraded),
            _WORST_FIRST.index(item[2].category),
            item[0].t_invoke_ns,
        )
    )
    worst = _varied(found)
    return tuple(_diff(k, case, *item) for k, item in enumerate(worst, start=1)), len(found)


def _varied(found: Sequence[Differing]) -> list[Differing]:
    """The worst of the answers, but not only of one category where there are several."""
    seen: Counter[Category] = Counter()
    ranked: list[tuple[bool, int]] = []
    for place, (_, _, one) in enumerate(found):
        seen[one.category] += 1
        ranked.append((seen[one.category] > _OF_A_CATEGORY, place))
    return [found[place] for place in sorted(place for _, place in sorted(ranked)[:DIFFS_MOST])]


def degraded_answers(
    case: Case,
) -> tuple[tuple[DegradedAnswer, ...], tuple[tuple[str, int], ...], int]:
    """The first labelled answers, how often each label occurs, and how many answers carry any."""
    labelled = [record for record in case.records if record.degraded or record.degraded_header]
    counts = Counter(label for record in labelled for label in record.degraded)
    rows = tuple(
        DegradedAnswer(
            request_id=short(record.request_id, 60),
            labels=tuple(short(label, 60) for label in record.degraded[:6]),
            header=short(record.degraded_header, 80),
            tokens=len(record.chunks),
            attempts=tuple(short(name, 40) for name in record.attempts[:6]),
        )
        for record in labelled[:DEGRADED_MOST]
    )
    by_label = tuple((short(label, 60), count) for label, count in counts.most_common(8))
    return rows, by_label, len(labelled)


def _cut(golden: GoldenAnswer, record: RequestRecord) -> GoldenAnswer:
    """The golden answer as far as this request could get: its length, or where it ended early."""
    length = record.max_new_tokens
    if record.outcome is not Outcome.OK:
        length = min(length, len(record.chunks))
    if length >= len(golden.tokens):
        return golden
    return replace(golden, tokens=golden.tokens[:length], finish_reason="length")


def _finish(record: RequestRecord) -> str:
    return record.finish_reason if record.outcome is Outcome.OK else ""


def _ended_otherwise(record: RequestRecord, golden: GoldenAnswer) -> bool:
    return _finish(record) not in ("", golden.finish_reason)


def _diff(
    k: int, case: Case, record: RequestRecord, golden: GoldenAnswer, found: Triage
) -> TokenDiff:
    first = max(0, found.first_index)
    wanted = _cut(golden, record).tokens
    last = min(max(len(wanted), len(record.chunks)), first + _AFTER)
    received = record.tokens
    cells = tuple(
        TokenCell(
            index,
            wanted[index] if index < len(wanted) else None,
            received[index] if index < len(received) else None,
        )
        for index in range(max(0, first - _BEFORE), last)
    )
    told = found.category in (Category.FOREIGN, Category.STRUCTURAL)
    detail = f"; {found.detail}" if told and found.detail else ""
    return TokenDiff(
        anchor=f"diff-{k}",
        request_id=short(record.request_id, 60),
        prompt_id=short(record.prompt_id, 60),
        prompt_text=short(case.prompts[record.prompt_id].text, 300)
        if record.prompt_id in case.prompts
        else "",
        category=found.category.value.replace("_", " "),
        meaning=short(MEANING[found.category] + detail, 240),
        first_index=first,
        margin=found.margin,
        labels=tuple(short(label, 60) for label in record.degraded[:6]),
        attempts=tuple(short(name, 40) for name in record.attempts[:6]),
        cells=cells,
        golden_text=visible(golden.text, _TEXT_LETTERS),
        received_text=visible(
            record.text or "".join(chunk.text for chunk in record.chunks), _TEXT_LETTERS
        ),
    )
