"""Whether the lengths of a packed attention launch describe the tensors that it is given."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.operands import not_integer, wrong_dtype
from tocsin.checker.ratios import alarm, violated
from tocsin.checker.structure import problem
from tocsin.core.calls import VarlenAttentionCall
from tocsin.core.terms import Phase, Priority, Profile


@check(
    "memory.cu_seqlens",
    priority=Priority.P0,
    impact="the kernel reads another request's keys or beyond the tensor: wrong text or a crash",
    catches=("attn.cu_seqlens",),
    source="Dao-AILab/flash-attention#1773, #772; pytorch/pytorch#81077",
    profile=Profile.GUARD,
    phase=Phase.BEFORE,
    remedy="rebuild the metadata from the scheduler's own lengths, under its lock",
    crosses_requests=True,
)
def cu_seqlens(call: VarlenAttentionCall) -> Tensor:
    """Infinity unless the lengths are int32, start at 0, never fall, end at the total and fit.

    A sequence of length zero is legal; a max_seqlen above the longest sequence too (captured
    graphs use an upper bound), one below it loses keys without an error. Where the ledger's
    lengths came along, a row with another length is named, and no other; without them an end
    before its beginning names its row and the neighbours, whose ends they are too, and a wrong
    total could be any row's doing, and so names all, as a wrong start always does.

    Args:
        call: cu_seqlens_q and cu_seqlens_k [R+1] and their max_seqlen; totals from the tensors, or
            from total_q and total_k; lengths_q_expected and lengths_k_expected [R] where known.

    Returns:
        ratio_R, float32, 0 or infinity; [1] where there are no rows, or the form is wrong.
    """
    if problem(call) or not _well_formed(call):
        return alarm(call)
    total_q, total_k = _totals(call)
    lost_q, bad_q = _rules(call.cu_seqlens_q, call.max_seqlen_q, total_q, call.lengths_q_expected)
    lost_k, bad_k = _rules(call.cu_seqlens_k, call.max_seqlen_k, total_k, call.lengths_k_expected)
    lost, bad = lost_q | lost_k, bad_q | bad_k
    if bad.shape[0] == 0:
        return violated(lost.reshape(1))
    if call.rows not in (None, bad.shape[0]):  # rows of something else: nobody can be named
        return violated((lost | bad.any()).reshape(1))
    return violated(bad | lost)


def _well_formed(call: VarlenAttentionCall) -> bool:
    lengths = (call.cu_seqlens_q, call.cu_seqlens_k)
    return (
        not wrong_dtype({torch.int32}, cu_seqlens_q=lengths[0], cu_seqlens_k=lengths[1])
        and all(cu.ndim == 1 and cu.numel() > 0 for cu in lengths)
        and lengths[0].shape == lengths[1].shape
        and all(
            isinstance(length, int) and not isinstance(length, bool) and length >= 0
            for length in (call.max_seqlen_q, call.max_seqlen_k)
        )
        and all(
            expected is None
            or (not not_integer(expected=expected) and expected.shape == (lengths[0].numel() - 1,))
            for expected in (call.lengths_q_expected, call.lengths_k_expected)
        )
    )


def _totals(call: VarlenAttentionCall) -> tuple[int | None, int | None]:
    """Number of packed queries and keys, None where nobody says."""
    if call.qkv is not None:
        return call.qkv.shape[0], call.qkv.shape[0]
    total_q = call.total_q if call.q is None else call.q.shape[0]
    total_k = call.total_k if call.k is None else call.k.shape[0]
    return total_q, total_k


def _rules(
    cu: Tensor, longest: int, total: int | None, expected: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scalar, true where the array as a whole is wrong; [R], true where a row is."""
    lengths = cu.to(torch.int64).diff()
    lost = cu[0] != 0
    if expected is not None:  # as the ledger's own lengths cannot fall, neither can these
        if total is not None:
            lost = lost | (expected.sum() != total)
        return lost, (lengths != expected) | (lengths < 0) | (lengths > longest)
    fell = lengths < 0
    bad = fell | (lengths > longest)
    if lengths.shape[0] > 1:
        bad[1:] |= fell[:-1]
        bad[:-1] |= fell[1:]
    if total is not None:
        lost = lost | (cu[-1] != total)
    return lost, bad
