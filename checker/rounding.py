"""How far a correctly rounded result may be from the exact one, for each floating dtype."""

from typing import Final

import torch
from torch import Tensor

FLOATS: Final = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INTEGERS: Final = frozenset({torch.int32, torch.int64})

U32: Final = 2.0**-24
"""Unit roundoff of float32, in which every check computes."""

_ROUNDOFF: Final = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
# float32 subnormals may be flushed to zero on some devices, so there the normal range ends it.
_STEP: Final = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-126}


def unit_roundoff(dtype: torch.dtype) -> float:
    """Largest relative error of one rounding to `dtype`; float64 counts as float32.

    Checks compute in float32, so no result is held to more than that.
    """
    return _ROUNDOFF.get(dtype, U32)


def smallest_step(dtype: torch.dtype) -> float:
    """Largest absolute distance of neighbouring numbers near zero: gradual or flushed underflow."""
    return _STEP.get(dtype, 2.0**-126)


def largest(dtype: torch.dtype) -> float:
    """Largest finite number of a floating dtype."""
    return torch.finfo(dtype).max


def words(tensor: Tensor) -> Tensor:
    """The words of a floating tensor as integers, so that -0 and NaN compare as they are."""
    of_size = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(of_size[tensor.element_size()])


def norm(tensor: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    """Euclidean norm along axes, summed and returned in float32; infinite where that overflows."""
    wide = tensor.to(torch.float32) if tensor.dtype is torch.float64 else tensor
    result: Tensor = torch.linalg.vector_norm(wide, dim=dim, dtype=torch.float32)
    return result
