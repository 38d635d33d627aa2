"""A softmax over scores that no softmax can be taken of."""

import torch

from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import chosen_depth, masked_rows
from tocsin.core.calls import AttentionCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "attn.softmax_inf",
    expect=("numerical.finite", "numerical.attention_row_sum"),
    priority=Priority.P0,
    source="pytorch/pytorch#110213, pytorch/pytorch#103749: a row of -inf is NaN on some backends",
    phase=Phase.BEFORE,
    params={"kind": "inf", "depth": None},
)
def softmax_inf(call: AttentionCall, target: Target) -> Evidence | None:
    """Let one decoding row's scores hold +inf, or nothing but -inf, in one launch.

    Params: `kind` inf (one score is +inf: its weight is inf / inf) or blind (all are -inf: the
    row attends to nothing, and the CPU's kernels return zeros for it, never NaN); `depth` None
    draws. Lasts for this launch only.
    """
    kind = target.params["kind"]
    if kind not in ("inf", "blind"):
        raise SpecError(f"attn.softmax_inf: kind is {kind!r}, expected inf or blind")
    if call.depth != chosen_depth(target) or call.mask is None:
        return None
    lengths = masked_rows(call, target)
    if not lengths:
        return None
    row = sorted(lengths)[target.below(len(lengths), "row")]
    hidden = ~call.mask
    added = torch.zeros(call.mask.shape, dtype=call.q.dtype, device=call.mask.device)
    added.masked_fill_(hidden, -torch.inf)
    before = _words(added[row])
    if kind == "inf":
        added[row, ..., target.below(lengths[row], "key")] = torch.inf
    else:
        added[row] = -torch.inf
    call.mask = added
    return Evidence(
        place=f"scores of row {row} at depth {call.depth}, {lengths[row]} keys",
        before=before,
        after=_words(added[row]),
        requests=(target.request_ids[row],),
    )


def _words(added: torch.Tensor) -> str:
    """How many keys there are of each kind."""
    counts = {
        "finite": int(added.isfinite().sum()),
        "+inf": int(added.isposinf().sum()),
        "-inf": int(added.isneginf().sum()),
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items())
