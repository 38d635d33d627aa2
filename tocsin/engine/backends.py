"""The attention backends: `flash`, `sdpa` and `math`, from the preferred one to the last resort.

Axes: R rows · H query heads · K key/value heads · g = H / K · S positions a row · L key positions
(whole pages) · E head size. Every backend works on each row's own pages, the mask hides the tail
of the last one, so the bits of a row depend on its own length only, and a NaN in the hidden tail
of V still leaks (0 * NaN), as it does in real paged kernels.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tocsin.core.errors import BackendError


@dataclass(slots=True)
class Launch:
    """What one launch works with besides q, k and v; made once a step, from its metadata.

    Attributes:
        mask: bool [R,1,S,L], True = may attend.
        bias_packed: float [R,1,g*S,L], the same as 0 and -inf, for queries packed by group.
        lengths_k: keys of each row, rounded up to whole pages.
        cu_seqlens_q, cu_seqlens_k: [R+1] int32.
    """

    mask: Tensor
    bias_packed: Tensor
    lengths_k: tuple[int, ...]
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int

    def under(self, mask: Tensor) -> "Launch":
        """The same launch under another mask.

        Args:
            mask: [R,1,S,L], bool (True = may attend) or added to the scores.
        """
        bias = mask.to(self.bias_packed.dtype)
        if mask.dtype is torch.bool:
            bias = torch.zeros_like(bias).masked_fill_(~mask, float("-inf"))
        groups = self.bias_packed.shape[2] // mask.shape[2]
        return replace(self, bias_packed=bias.repeat(1, 1, groups, 1))


Backend = Callable[[Tensor, Tensor, Tensor, Launch, float], Tensor]
"""`(q_RHSE, k_RKLE, v_RKLE, launch, scale) -> output_RHSE`."""


def attend(name: str, q: Tensor, k: Tensor, v: Tensor, launch: Launch, scale: float) -> Tensor:
    """Attention of all rows on the named backend: output [R,H,S,E].

    Raises:
        BackendError: there is no such backend, or its kernel raised.
    """
    backend = _BACKENDS.get(name)
    if backend is None:
        raise BackendError(
            f"attention: backend is {name!r}, known are {sorted(_BACKENDS)}; choose one of these"
        )
    try:
        return backend(q, k, v, launch, scale)
    except RuntimeError as error:
        raise BackendError(
            f"attention: backend {name} raised {error}; run the step on the fallback"
        ) from error


def _flash(q: Tensor, k: Tensor, v: Tensor, launch: Launch, scale: float) -> Tensor:
    """flash-attn on CUDA where it is installed; else the flash kernel of torch."""
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and _flash_attn() is not None:
        return _flash_attn_varlen(q, k, v, launch, scale)
    return _by_length(q, k, v, launch, scale, _CUDA_KERNELS if q.is_cuda else _CPU_FLASH)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, launch: Launch, scale: float) -> Tensor:
    """Torch's composite kernel, one row after the other."""
    kernels = _CUDA_KERNELS if q.is_cuda else [SDPBackend.MATH]
    return _by_length(q, k, v, launch, scale, kernels, rows_max=1)


def _by_length(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    launch: Launch,
    scale: float,
    kernels: list[SDPBackend],
    rows_max: int = 1 << 30,
) -> Tensor:
    """Torch's attention over neighbouring rows of one length at a time.

    A wider launch would give a short row other bits (the kernels choose their blocking by the
    number of keys, masked or not); the CPU flash kernel gives each row of a batch the bits that
    it has alone, the composite one does not, so that it gets one row a call (tested).
    """
    packed = _packed(q, k)
    output = torch.empty_like(packed)
    with sdpa_kernel(kernels):
        first = 0
        while first < len(launch.lengths_k):
            length, last = launch.lengths_k[first], first + 1
            while last < min(len(launch.lengths_k), first + rows_max):
                if launch.lengths_k[last] != length:
                    break
                last += 1
            rows = slice(first, last)
            output[rows] = scaled_dot_product_attention(
                packed[rows],
                k[rows, :, :length],
                v[rows, :, :length],
                attn_mask=launch.bias_packed[rows, :, :, :length],
                scale=scale,
            )
            first = last
    return output.reshape(q.shape)


def _math(q: Tensor, k: Tensor, v: Tensor, launch: Launch, scale: float) -> Tensor:
    """Products and softmax written out in fp32, one row after the other."""
    packed = _packed(q, k).float()
    output = torch.empty_like(packed)
    for row, length in enumerate(launch.lengths_k):
        k_KLE, v_KLE = k[row, :, :length].float(), v[row, :, :length].float()
        scores = packed[row] @ k_KLE.transpose(1, 2) * scale
        scores += launch.bias_packed[row, :, :, :length].float()
        output[row] = torch.softmax(scores, dim=-1) @ v_KLE
    return output.to(q.dtype).reshape(q.shape)


_CPU_FLASH = [SDPBackend.FLASH_ATTENTION]
_CUDA_KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_BACKENDS: dict[str, Backend] = {"flash": _flash, "sdpa": _sdpa, "math": _math}


def _packed(q: Tensor, k: Tensor) -> Tensor:
    """Queries that share a key head side by side: [R,H,S,E] → [R,K,g*S,E]."""
    return q.reshape(k.shape[0], k.shape[1], -1, k.shape[3])


@cache
def _flash_attn() -> Any:
    """The flash_attn package, None where it is not installed."""
    if importlib.util.find_spec("flash_attn") is None:
        return None
    return importlib.import_module("flash_attn")


def _flash_attn_varlen(q: Tensor, k: Tensor, v: Tensor, launch: Launch, scale: float) -> Tensor:
    """The packed kernel: keys of all rows one after the other, without their tails."""
    lengths = launch.cu_seqlens_k.diff().tolist()
    k_TKE, v_TKE = (
        torch.cat([rows[row, :, :length].transpose(0, 1) for row, length in enumerate(lengths)])
        for rows in (k, v)
    )
    output_THE = _flash_attn().flash_attn_varlen_func(
        q.transpose(1, 2).reshape(-1, q.shape[1], q.shape[3]),
        k_TKE.contiguous(),
        v_TKE.contiguous(),
        launch.cu_seqlens_q,
        launch.cu_seqlens_k,
        launch.max_seqlen_q,
        launch.max_seqlen_k,
        softmax_scale=scale,
        causal=True,
    )
    output: Tensor = output_THE.view(q.shape[0], q.shape[2], q.shape[1], q.shape[3])
    return output.transpose(1, 2)
