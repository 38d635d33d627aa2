"""A call as Python source that makes the same call again, bit for bit (NaNs apart)."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from tocsin.core.calls import Call

_LINE = 92


def source_of(call: Call, indent: str = "    ") -> str:
    """An expression in terms of `calls`, `tensor`, `torch`, `nan` and `inf`."""
    lines = [f"calls.{type(call).__name__}("]
    for field in dataclasses.fields(call):
        value = getattr(call, field.name)
        if _is_default(value, field.default):
            continue
        lines.append(f"{indent}    {field.name}={_value(value, indent + '    ')},")
    return "\n".join([*lines, f"{indent})"])


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, Tensor) or default is dataclasses.MISSING:
        return False
    return type(value) is type(default) and value == default


def _value(value: Any, indent: str) -> str:
    if isinstance(value, Tensor):
        return _tensor(value, indent)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, tuple | list) and value and all(isinstance(v, Tensor) for v in value):
        return "(" + ", ".join(_tensor(one, indent) for one in value) + ",)"
    return repr(value)


def _tensor(value: Tensor, indent: str) -> str:
    """`tensor([…], dtype=…)`, with its axes in the order in which they lie in memory."""
    value = value.detach().to("cpu")
    dtype = f"dtype={value.dtype}"
    if value.numel() == 0:
        return f"torch.empty({tuple(value.shape)}, {dtype})"
    order = sorted(range(value.ndim), key=value.stride, reverse=True)
    if order == list(range(value.ndim)):
        return _wrapped(f"tensor({_nested(value, value.dtype)}, {dtype})", indent)
    back = sorted(range(value.ndim), key=lambda axis: order[axis])
    inner = _nested(value.permute(order), value.dtype)
    return _wrapped(f"tensor({inner}, {dtype}).permute({back})", indent)


def _nested(value: Tensor, dtype: torch.dtype) -> str:
    if value.ndim:
        return "[" + ", ".join(_nested(row, dtype) for row in value) + "]"
    if dtype is torch.float32 and math.isfinite(float(value)):
        return _float(float(str(value.numpy())))  # the shortest text that reads back the same
    number = value.item()
    return _float(number) if isinstance(number, float) else repr(number)


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def _wrapped(text: str, indent: str) -> str:
    """Long literals in lines that a person can scroll through."""
    if len(text) <= _LINE - len(indent):
        return text
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + len(word) + 1 > _LINE - len(indent) - 4:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return f"\n{indent}    ".join([*lines, line])
