"""The workspace of an attention launch is overwritten before the kernel reads it."""

import torch

from tocsin.chaos.bits import Patch
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import chosen_depth, masked_rows
from tocsin.core.calls import AttentionCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority

_SCRIBBLE = 0x5A


@fault(
    "attn.workspace_clobber",
    expect=("numerical.attention_row_sum", "numerical.attention_scores"),
    priority=Priority.P0,
    source="vllm-project/vllm#25279: staging tensors are reused while the launch still reads them",
    phase=Phase.BEFORE,
    params={"tensor": "v", "bytes": 64, "depth": None},
)
def workspace_clobber(call: AttentionCall, target: Target) -> Evidence | None:
    """Scribble over the gathered keys or values of one decoding row, between gather and launch.

    The pages stay right, and their sums with them: only what was kept from when the values were
    written can tell. Params: `tensor` k or v; `bytes` of one head's row, from its first feature
    on, in whole numbers of the dtype; `depth` None draws. Lasts for this launch only.
    """
    if call.depth != chosen_depth(target):
        return None
    lengths = masked_rows(call, target)
    if not lengths:
        return None
    row = sorted(lengths)[target.below(len(lengths), "row")]
    name = ("k", "v")[("k", "v").index(target.params["tensor"])]
    gathered = call.k if name == "k" else call.v
    head = target.below(gathered.shape[1], "head")
    key = target.below(lengths[row], "key")
    count = max(1, int(target.params["bytes"]) // gathered.element_size())
    region = gathered[row, head, key, :count]
    scribble = torch.full((region.numel() * region.element_size(),), _SCRIBBLE, dtype=torch.uint8)
    patch = Patch.overwrite(region, scribble.view(region.dtype).to(region.device))
    return Evidence(
        place=f"gathered {name} of row {row} head {head} key {key} at depth {call.depth}",
        before=patch.words(patch.before),
        after=patch.words(patch.after),
        requests=(target.request_ids[row],),
    )
