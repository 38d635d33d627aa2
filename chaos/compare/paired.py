"""The same request in two runs: how much longer it took, with an interval.

Requests are drawn from the seed and their number alone, so two runs of one plan send the same ones;
comparing each with itself takes the difference between prompts out of the noise (Netflix ChAP
compares whole populations, and needs hours of traffic for it).
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tocsin.chaos.compare.model import PairedRatio
from tocsin.chaos.report.model import Span
from tocsin.core.history import Outcome, RequestRecord

PAIRS_LEAST = 8
_Z_95 = 1.959964
WHOLE_RUN = "whole run"

Measure = Callable[[RequestRecord], float | None]


def first_token_ms(record: RequestRecord) -> float | None:
    """From sending to the first token; None: there was none."""
    return (record.t_first_ns - record.t_invoke_ns) / 1e6 if record.t_first_ns else None


def between_tokens_ms(record: RequestRecord) -> float | None:
    """Mean time between two tokens of a stream; None: it has no two."""
    chunks = record.chunks
    if len(chunks) < 2 or not record.stream:
        return None
    return (chunks[-1].t_ns - chunks[0].t_ns) / 1e6 / (len(chunks) - 1)


def whole_answer_ms(record: RequestRecord) -> float | None:
    """From sending to the end; None: it did not end."""
    return (record.t_end_ns - record.t_invoke_ns) / 1e6 if record.t_end_ns else None


MEASURES: dict[str, Measure] = {
    "first token": first_token_ms,
    "between tokens": between_tokens_ms,
    "whole answer": whole_answer_ms,
}


def paired_ratios(
    a: Iterable[RequestRecord],
    b: Iterable[RequestRecord],
    phases: Sequence[Span],
    origin_ns: int,
) -> tuple[PairedRatio, ...]:
    """Every measure over the whole run, then in each phase of A.

    Args:
        a, b: records of the load; only requests that both runs answered make a pair.
        phases, origin_ns: the phases of A, and when A began.
    """
    others = {one.request_id: one for one in b if _answered(one)}
    pairs = [
        (one, others[one.request_id])
        for one in a
        if _answered(one)
        and one.request_id in others
        and others[one.request_id].prompt_id == one.prompt_id
    ]
    found = []
    for measure, of in MEASURES.items():
        found.append(_ratio(measure, WHOLE_RUN, pairs, of))
        for phase in phases:
            if phase.state == WHOLE_RUN:
                continue
            inside = [pair for pair in pairs if _sent_in(pair[0], phase, origin_ns)]
            found.append(_ratio(measure, phase.state, inside, of))
    return tuple(found)


def _ratio(
    measure: str, phase: str, pairs: Sequence[tuple[RequestRecord, RequestRecord]], of: Measure
) -> PairedRatio:
    logs = [
        math.log(after / before)
        for before, after in ((of(one), of(other)) for one, other in pairs)
        if before and after and before > 0 and after > 0
    ]
    if len(logs) < PAIRS_LEAST:
        return PairedRatio(measure, phase, len(logs), None, None, None)
    values = np.array(logs)
    mean = float(values.mean())
    half = _Z_95 * float(values.std(ddof=1)) / math.sqrt(len(logs))
    low, ratio, high = (math.exp(one) for one in (mean - half, mean, mean + half))
    return PairedRatio(measure, phase, len(logs), ratio, low, high)


def _answered(record: RequestRecord) -> bool:
    return record.outcome is Outcome.OK and not record.malformed


def _sent_in(record: RequestRecord, phase: Span, origin_ns: int) -> bool:
    return phase.start_s <= (record.t_invoke_ns - origin_ns) / 1e9 < phase.end_s
