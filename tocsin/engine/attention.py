"""`tocsin_paged`: the attention function that Transformers calls, and its launch metadata.

Axes: R rows · S positions a row · L key positions (whole pages) · H query heads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from tocsin.core.calls import AttentionCall, VarlenAttentionCall
from tocsin.core.errors import ContractError
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator, Phase
from tocsin.engine.backends import Launch, attend

IMPLEMENTATION = "tocsin_paged"


@dataclass(slots=True)
class AttentionContext:
    """What every attention layer of one step shares; passed through the model by keyword.

    Attributes:
        written: fields of a depth's AttentionCall that were taken when keys and values were
            written; empty in a prefill chunk. Whoever announces an attention call asks for them.
    """

    backend: str
    launch: Launch
    seams: Seams
    written: Callable[[int], Mapping[str, Tensor]]


def register() -> None:
    """Let models choose `tocsin_paged`; harmless when done twice."""
    AttentionInterface.register(IMPLEMENTATION, paged_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    tocsin_step: AttentionContext | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over gathered pages on the step's backend.

    Args:
        query: [R,H,S,E]; key, value: [R,K,L,E] whole pages, gathered.
        attention_mask: bool [R,1,S,L]; the launch holds the same.
        tocsin_step: set by the engine.

    Returns:
        output [R,S,H,E] and no weights.

    Raises:
        ContractError: the model was called outside an engine step.
        BackendError: the backend raised, or a fault at its seam did.
    """
    if tocsin_step is None:
        raise ContractError(
            f"attention: {IMPLEMENTATION} was called without a step; call the model through "
            "ReferenceEngine, or set_attn_implementation('sdpa') first"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    seams, launch = tocsin_step.seams, tocsin_step.launch
    if seams.wanted(Operator.ATTENTION, Phase.BEFORE):
        call = AttentionCall(
            q=query,
            k=key,
            v=value,
            mask=attention_mask,
            scale=scale,
            backend=tocsin_step.backend,
            depth=getattr(module, "layer_idx", None),
            rows=query.shape[0],
        )
        seams.emit(call, Phase.BEFORE)
        if call.mask is not None and call.mask is not attention_mask:
            launch = launch.under(call.mask)  # a fault's: the kernel reads it, checks hear of ours
    output = attend(tocsin_step.backend, query, key, value, launch, scale)
    return output.transpose(1, 2).contiguous(), None


def varlen_call(lengths_q: list[int], lengths_k: list[int]) -> VarlenAttentionCall:
    """The metadata of a packed launch, as the ledger has it."""
    cu_q = torch.tensor([0, *lengths_q], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    cu_k = torch.tensor([0, *lengths_k], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return VarlenAttentionCall(
        cu_seqlens_q=cu_q,
        cu_seqlens_k=cu_k,
        max_seqlen_q=max(lengths_q),
        max_seqlen_k=max(lengths_k),
        total_q=sum(lengths_q),
        total_k=sum(lengths_k),
        lengths_q_expected=torch.tensor(lengths_q),
        lengths_k_expected=torch.tensor(lengths_k),
        rows=len(lengths_q),
    )


def launch_of(
    call: VarlenAttentionCall, width: int, positions: int, groups: int, page_size: int, like: Tensor
) -> Launch:
    """Masks and row lengths, from the metadata alone: what it says wrongly is computed wrongly.

    Args:
        width: L, key positions that are gathered.
        positions: S.
        groups: query heads a key head.
        like: gives dtype and device.
    """
    cu_q, cu_k = _as_kernel_reads(call.cu_seqlens_q), _as_kernel_reads(call.cu_seqlens_k)
    lengths_q = cu_q.diff().clamp(0, call.max_seqlen_q)
    lengths_k = cu_k.diff().clamp(0, min(call.max_seqlen_k, width))
    # Bottom-right causal: the last query sees all keys, the one before it one less.
    seen_RS = lengths_k[:, None] - lengths_q[:, None] + 1 + torch.arange(positions)
    mask = (torch.arange(width) < seen_RS[:, :, None])[:, None].to(like.device)
    bias = torch.zeros(mask.shape, dtype=like.dtype, device=like.device)
    bias.masked_fill_(~mask, float("-inf"))
    rounded = [min(width, -(-length // page_size) * page_size) for length in lengths_k.tolist()]
    return Launch(
        mask=mask,
        bias_packed=bias.repeat(1, 1, groups, 1),
        lengths_k=tuple(max(page_size, length) for length in rounded),
        cu_seqlens_q=cu_q.to(like.device),
        cu_seqlens_k=cu_k.to(like.device),
        max_seqlen_q=call.max_seqlen_q,
        max_seqlen_k=call.max_seqlen_k,
    )


def _as_kernel_reads(cu_seqlens: Tensor) -> Tensor:
    """A kernel reads 32-bit integers, whatever it is handed."""
    if cu_seqlens.dtype == torch.int32:
        return cu_seqlens
    return cu_seqlens.contiguous().view(torch.int32)[: cu_seqlens.shape[0]]
