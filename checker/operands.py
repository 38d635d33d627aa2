"""What can be wrong with the operands of a call: one question a function, in words or empty."""

from collections.abc import Iterable

import torch
from torch import Tensor

from tocsin.checker.rounding import FLOATS, INTEGERS
from tocsin.core.calls import Call


def wrong_dtype(known: Iterable[torch.dtype], **tensors: Tensor) -> str:
    """Every operand is a dense tensor of one of the known dtypes."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            return f"{name} is a {type(tensor).__name__}, expected a tensor"
        if tensor.layout is not torch.strided:
            return f"{name} has layout {tensor.layout}, expected a dense tensor"
        if tensor.dtype not in known:
            words = sorted(str(dtype).removeprefix("torch.") for dtype in known)
            found = str(tensor.dtype).removeprefix("torch.")
            return f"{name} is {found}, expected one of {', '.join(words)}"
    return ""


def not_floating(**tensors: Tensor) -> str:
    """Every operand is a dense floating tensor that the checks can compute with."""
    return wrong_dtype(FLOATS, **tensors)


def not_integer(**tensors: Tensor) -> str:
    """Every operand is a dense tensor of int32 or int64."""
    return wrong_dtype(INTEGERS, **tensors)


def wrong_axes(count: int, **tensors: Tensor) -> str:
    """Every operand has this many axes."""
    for name, tensor in tensors.items():
        if tensor.ndim != count:
            return f"{name} is {list(tensor.shape)}, expected {count} axes"
    return ""


def no_axis(**tensors: Tensor) -> str:
    """Every operand has an axis: none is a single number."""
    for name, tensor in tensors.items():
        if tensor.ndim == 0:
            return f"{name} is a single number, expected at least one axis"
    return ""


def wrong_shape(name: str, tensor: Tensor, expected: Iterable[int]) -> str:
    """One operand has exactly this shape."""
    wanted = tuple(expected)
    if tuple(tensor.shape) == wanted:
        return ""
    return f"{name} is {list(tensor.shape)}, expected {list(wanted)}"


def differs(reference: str, like: Tensor, **tensors: Tensor) -> str:
    """Every operand has the shape of the reference."""
    for name, tensor in tensors.items():
        if tensor.shape != like.shape:
            return f"{name} is {list(tensor.shape)}, expected {list(like.shape)} as {reference}"
    return ""


def mixed_dtypes(**tensors: Tensor) -> str:
    """Operands of one kernel share a dtype; autocast makes them equal only inside the kernel."""
    dtypes = {tensor.dtype for tensor in tensors.values()}
    device = next(iter(tensors.values())).device.type
    if len(dtypes) == 1 or torch.is_autocast_enabled(device):
        return ""
    named = ", ".join(f"{n} {str(t.dtype).removeprefix('torch.')}" for n, t in tensors.items())
    return f"dtypes differ: {named}; expected one"


def strided(**tensors: Tensor) -> str:
    """The numbers of the last axis lie next to each other, as kernels read them."""
    for name, tensor in tensors.items():
        if tensor.numel() > 0 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            return f"{name} has stride {tensor.stride(-1)} on its last axis, expected 1"
    return ""


def apart(call: Call) -> str:
    """All tensors of a call live on one device."""
    first: Tensor | None = None
    for name in type(call).__dataclass_fields__:
        value = getattr(call, name)
        if isinstance(value, Tensor):
            if first is None:
                first = value
            elif value.device != first.device:
                return f"{name} is on {value.device}, the others on {first.device}"
    return ""
