"""The metadata of a packed attention launch does not describe its tensors."""

import torch

from tocsin.chaos.contract import Target, fault
from tocsin.core.calls import VarlenAttentionCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "attn.cu_seqlens",
    expect=("memory.cu_seqlens",),
    priority=Priority.P0,
    source="Dao-AILab/flash-attention#1773: a wrong max_seqlen or cu_seqlens raises nothing",
    phase=Phase.BEFORE,
    params={"kind": "last"},
)
def cu_seqlens(call: VarlenAttentionCall, target: Target) -> Evidence | None:
    """Corrupt the key lengths of one launch, in place, before it goes out.

    Params: `kind` last (one row keeps its first key only, the array ends short of the total),
    decreasing (a row ends before it begins), int64 (right numbers, wrong dtype for the kernel),
    max_seqlen (half of the longest row). Lasts for this launch only.
    """
    lengths = call.cu_seqlens_k.diff().tolist()
    rows = [row for row in target.live_rows() if row < len(lengths) and lengths[row] >= 2]
    if not rows:
        return None
    row = rows[target.below(len(rows), "row")]
    before = _words(call)
    match target.params["kind"]:
        case "last":
            call.cu_seqlens_k[row + 1 :] -= lengths[row] - 1
        case "decreasing":
            call.cu_seqlens_k[row + 1] = call.cu_seqlens_k[row] - 1
        case "int64":
            call.cu_seqlens_k = call.cu_seqlens_k.to(torch.int64)
        case "max_seqlen":
            call.max_seqlen_k = max(lengths) // 2
        case other:
            raise SpecError(
                f"attn.cu_seqlens: kind is {other!r}, "
                "expected last, decreasing, int64 or max_seqlen"
            )
    return Evidence(
        place=f"cu_seqlens_k and max_seqlen_k, row {row}",
        before=before,
        after=_words(call),
        requests=(target.request_ids[row],),
    )


def _words(call: VarlenAttentionCall) -> str:
    cu = call.cu_seqlens_k
    dtype = str(cu.dtype).removeprefix("torch.")
    return f"{dtype} {cu.tolist()}, longest {call.max_seqlen_k}"
