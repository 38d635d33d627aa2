"""Choosing tokens: greedy, or seeded with temperature, top-k and top-p.

Axes: R rows · V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tocsin.core.calls import LogitProcessorCall, SamplerCall
from tocsin.core.draw import draw_unit
from tocsin.core.requests import Sampling
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator


@dataclass(frozen=True, slots=True)
class Choice:
    """What one row would release.

    Attributes:
        margin: top-1 minus top-2 logit; 0.0 where the logits are not numbers.
    """

    token: int
    margin: float


def sample(
    logits: Tensor, rows: Sequence[tuple[Sampling, int] | None], seams: Seams
) -> tuple[Choice | None, ...]:
    """One token a row that asks for one.

    The draw of a token depends on the request's seed and the token's index alone. Greedy takes
    the first largest logit; NaN counts as largest, so that a row of NaN yields token 0: this is
    what makes a poisoned request end in silence, and it is left as it is.

    Args:
        logits: [R,V] float32.
        rows: how each row samples and the index of its token in the answer; None: it does not.
    """
    scaled = _scaled(logits, rows)
    processed = _processed(scaled, rows)
    if processed is not scaled and seams.wanted(Operator.LOGIT_PROCESSOR):
        # What the seam holds to account is the mask: it begins where the temperature is done, and
        # where no row has a mask nothing was processed.
        call = LogitProcessorCall(
            before=scaled, after=processed, allowed=processed > float("-inf"), rows=len(rows)
        )
        seams.emit(call)
        processed = call.after
    token_ids = processed.argmax(dim=-1)
    drawn = [
        (row, asks) for row, asks in enumerate(rows) if asks is not None and not asks[0].greedy
    ]
    for row, (sampling, index) in drawn:
        token_ids[row] = _draw(torch.softmax(processed[row].double(), dim=-1), sampling, index)
    if seams.wanted(Operator.SAMPLER):
        token_ids = _announce(processed, token_ids, rows, seams)
    top2 = torch.topk(logits, 2, dim=-1).values
    margins = (top2[:, 0] - top2[:, 1]).nan_to_num(nan=0.0).tolist()
    return tuple(
        None if asks is None else Choice(token, margin)
        for asks, token, margin in zip(rows, token_ids.tolist(), margins, strict=True)
    )


def _scaled(logits: Tensor, rows: Sequence[tuple[Sampling, int] | None]) -> Tensor:
    """Logits over each row's temperature; the same tensor when every row is greedy."""
    divisors = [1.0 if asks is None or asks[0].greedy else asks[0].temperature for asks in rows]
    if all(divisor == 1.0 for divisor in divisors):
        return logits
    return logits / torch.tensor(divisors, dtype=logits.dtype, device=logits.device).unsqueeze(-1)


def _processed(scaled: Tensor, rows: Sequence[tuple[Sampling, int] | None]) -> Tensor:
    """The same with -inf where top-k or top-p leaves a token out; no copy if none does."""
    processed = scaled
    for row, asks in enumerate(rows):
        if asks is None or asks[0].greedy or (asks[0].top_p >= 1.0 and asks[0].top_k <= 0):
            continue
        if processed is scaled:
            processed = scaled.clone()
        processed[row] = _filtered(scaled[row], asks[0])
    return processed


def _filtered(logits_V: Tensor, sampling: Sampling) -> Tensor:
    """One row with the tokens left out that top-k and top-p do not allow."""
    if 0 < sampling.top_k < logits_V.shape[0]:
        kth = torch.topk(logits_V, sampling.top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < kth, float("-inf"))
    if sampling.top_p < 1.0:
        ordered, order = torch.softmax(logits_V, dim=-1).sort(descending=True, stable=True)
        # A token stays while the mass before it is below top_p: the first one always does.
        left_out = order[ordered.cumsum(0) - ordered >= sampling.top_p]
        logits_V = logits_V.index_fill(0, left_out, float("-inf"))
    return logits_V


def _draw(probs_V: Tensor, sampling: Sampling, index: int) -> int:
    """Inverse of the distribution function at a number that seed and index alone decide."""
    mass = probs_V.cumsum(0)
    point = draw_unit(sampling.seed, "token", index) * mass[-1]
    token = int(torch.searchsorted(mass, point, right=True))
    return min(token, probs_V.shape[0] - 1)


def _announce(
    processed: Tensor,
    token_ids: Tensor,
    rows: Sequence[tuple[Sampling, int] | None],
    seams: Seams,
) -> Tensor:
    """Tell the sampler's seam; a greedy row's distribution is that of its logits.

    Where every row is greedy there are no filters to hold to account, only the choice: to look
    for the filters' traces in all of [R,V] would take longer than the choice did.
    """
    probs = torch.softmax(processed, dim=-1)
    if all(asks is None or asks[0].greedy for asks in rows):
        call = SamplerCall(probs=probs, token_ids=token_ids, temperature=0.0, rows=len(rows))
        seams.emit(call)
        return token_ids if call.token_ids is None else call.token_ids
    samplings = [Sampling() if asks is None else asks[0] for asks in rows]
    device = processed.device
    drawn = [asks is not None and not asks[0].greedy for asks in rows]
    draws = torch.tensor(
        [
            draw_unit(asks[0].seed, "token", asks[1]) if asks and one else 0.0
            for asks, one in zip(rows, drawn, strict=True)
        ],
        dtype=torch.float64,
    )
    # A tensor may not be asked by whoever checks: a number says that there is nothing to look for.
    unlimited = all(one.top_k == -1 for one in samplings)
    call = SamplerCall(
        probs=probs,
        token_ids=token_ids,
        temperature=torch.tensor([one.temperature for one in samplings]).to(device),
        top_p=torch.tensor([one.top_p for one in samplings]).to(device),
        top_k=-1 if unlimited else torch.tensor([one.top_k for one in samplings]).to(device),
        draws=draws.to(device) if any(drawn) else None,
        rows=len(rows),
    )
    seams.emit(call)
    return token_ids if call.token_ids is None else call.token_ids
