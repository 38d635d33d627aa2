"""The native operators on a GPU: `torch.ops.tocsin.*` of CUDA tensors run the Triton kernels.

`checker/native` declares the operators and computes them on a CPU; here four of them get their CUDA
form, with the same arguments and the same results in the same order.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tocsin.checker import native
from tocsin.checker.triton import reason
from tocsin.checker.triton.page_sum import page_sums
from tocsin.checker.triton.rms_norm import NormWeight, norm_weight, rms_norm_ratios
from tocsin.checker.triton.rope import rope_ratios
from tocsin.checker.triton.verdict import verdict
from tocsin.core.calls import RopeCall

_registered: list[Any] = []
_weights: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def register() -> str:
    """Give the operators their CUDA form, once; empty when it is there, else why not."""
    if _registered:
        return ""
    why = reason() or native.reason()
    if not why:
        library = torch.library.Library("tocsin", "IMPL", "CUDA")  # type: ignore[no-untyped-call]
        for name, function in OPERATORS.items():
            library.impl(name, function)  # type: ignore[no-untyped-call]
        _registered.append(library)  # it takes its functions along when it goes
    return why


def rms_norm(
    x: Sequence[Tensor],
    y: Sequence[Tensor],
    weight: Sequence[Tensor],
    eps: float,
    dot_ulp: float = 6.0,
    range_ulp: float = 4.0,
    headroom: float = 1.0,
) -> Tensor:
    """[3,n,T]: `rms_dot`, `rms_range` and `finite` of n norms of equal form."""
    ratios = [
        rms_norm_ratios(
            one_x,
            one_y,
            _known(one_weight),
            eps,
            dot_ulp=dot_ulp,
            range_ulp=range_ulp,
            headroom=headroom,
        )
        for one_x, one_y, one_weight in zip(x, y, weight, strict=True)
    ]
    return torch.stack(ratios, dim=1) if ratios else torch.empty(3, 0, 0)


def rope(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    q_out: Sequence[Tensor],
    k_out: Sequence[Tensor],
    cos: Sequence[Tensor],
    sin: Sequence[Tensor],
    table_scale: float = 1.0,
    norm_ulp: float = 8.0,
    sum_ulp: float = 8.0,
    headroom: float = 1.0,
) -> Tensor:
    """[3,n,R*S]: `rope_norm`, `rope_signed_sum` and `finite` of n rotations of equal form."""
    ratios = []
    for index in range(len(q)):
        call = RopeCall(
            q=q[index],
            k=k[index],
            q_out=q_out[index],
            k_out=k_out[index],
            cos=cos[index],
            sin=sin[index],
            position_ids=torch.empty(0),
            table_scale=table_scale,
        )
        ratios.append(rope_ratios(call, norm_ulp=norm_ulp, sum_ulp=sum_ulp, headroom=headroom))
    return torch.stack(ratios, dim=1) if ratios else torch.empty(3, 0, 0)


def word_sums(data: Tensor, weighted: bool = False) -> Tensor:
    """[...] int64 sums of the 64-bit words along the last axis."""
    return page_sums(data.reshape(-1, data.shape[-1]), weighted=weighted).reshape(data.shape[:-1])


def word_sums_at(data: Tensor, indices: Tensor, weighted: bool = False) -> Tensor:
    """The same for `data[indices]`, without the copy."""
    return page_sums(data, indices, weighted=weighted)


def _known(weight_D: Tensor) -> NormWeight:
    """The kernel's view of a weight, made anew when the weight was written."""
    version = 0 if weight_D.is_inference() else weight_D._version
    held = _weights.get(weight_D)  # type: ignore[no-untyped-call]
    if held is None or held[0] != version:
        held = _weights[weight_D] = (version, norm_weight(weight_D))
    made: NormWeight = held[1]
    return made


OPERATORS: Final[dict[str, Callable[..., Tensor]]] = {
    "rms_norm": rms_norm,
    "rope": rope,
    "word_sums": word_sums,
    "word_sums_at": word_sums_at,
    "verdict": verdict,
}
"""Operator → its CUDA form."""
