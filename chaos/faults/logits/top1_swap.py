"""The two best logits of a row change places."""

import torch

from tocsin.chaos.bits import Patch
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import is_one_a_row, line_at
from tocsin.core.calls import LogitsCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Priority


@fault(
    "logits.top1_swap",
    expect=("numerical.logits_winner",),
    priority=Priority.P0,
    source="ggml-org/llama.cpp#25618, sgl-project/sglang#4175: greedy text takes another turn",
)
def top1_swap(call: LogitsCall, target: Target) -> Evidence | None:
    """Swap the largest and the second largest logit of one row.

    Every logit is one that the model may give and their sum is unchanged: no range and no
    checksum of the row shows it, only a winner computed anew does. Lasts for this call only.
    """
    logits, rows = call.logits, target.live_rows()
    if not rows or not is_one_a_row(logits, target):
        return None
    row = rows[target.below(len(rows), "row")]
    logits_V = line_at(logits, row)
    best, second = torch.topk(logits_V, 2).indices.tolist()
    swapped = logits_V.clone()
    swapped[best], swapped[second] = logits_V[second].clone(), logits_V[best].clone()
    before = int(logits_V.argmax())
    Patch.overwrite(logits_V, swapped)
    return Evidence(
        place=f"logits of row {row}, tokens {best} and {second}",
        before=f"token {before} wins",
        after=f"token {int(logits_V.argmax())} wins",
        requests=(target.request_ids[row],),
    )
