"""Changes that a fault makes to a call: bits, numbers, whole fields, several at once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tocsin.core.calls import Call
from tocsin.core.terms import Operator

Fault = Callable[[Any], None]
Place = tuple[Operator, str]

_WORD = {2: torch.int16, 4: torch.int32}


def flip(tensor: Tensor, bit: int, index: int | None = None) -> None:
    """Flip one bit, counted from the sign (0), of the number at `index`, or of the largest below 2.

    Below 2 the top exponent bit is 0, so flipping it makes the number explode.
    """
    flat = tensor.view(-1)
    size = flat.abs().float()
    at = int(torch.where(size < 2, size, -1).argmax()) if index is None else index
    words = flat.view(_WORD[tensor.element_size()])
    shift = tensor.element_size() * 8 - 1 - bit
    words[at] ^= -(1 << shift) if bit == 0 else 1 << shift


def put(tensor: Tensor, value: float, index: int | None = None) -> None:
    """Overwrite the largest number of a tensor, or that at `index`."""
    flat = tensor.view(-1)
    flat[int(flat.abs().float().argmax()) if index is None else index] = value


def on(field: str, change: Callable[..., None], *arguments: Any) -> Fault:
    """A change of one tensor of the call."""

    def fault(call: Call) -> None:
        change(getattr(call, field), *arguments)

    return fault


def both(*faults: Fault) -> Fault:
    def fault(call: Call) -> None:
        for one in faults:
            one(call)

    return fault


def assign(**values: Any) -> Fault:
    """Replace fields; a function is given the old value."""

    def fault(call: Call) -> None:
        for name, value in values.items():
            setattr(call, name, value(getattr(call, name)) if callable(value) else value)

    return fault


def number_faults(field: str, *, vanish: bool = True) -> dict[str, Fault]:
    """What can become of one number of an output."""
    faults = {
        "sign": on(field, flip, 0),
        "explodes": on(field, flip, 1),
        "infinity": on(field, put, torch.inf),
        "NaN": on(field, put, torch.nan),
    }
    if vanish:
        faults["vanishes"] = on(field, put, 0.0)
    return faults


def scaled(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor * factor


def moved(field: str, at: int, by: int) -> Fault:
    def fault(call: Call) -> None:
        getattr(call, field).view(-1)[at] += by

    return fault


def huge_row(field: str) -> Fault:
    """Another number of the same row becomes as large as its dtype can hold."""

    def fault(call: Call) -> None:
        tensor = getattr(call, field)
        tensor.view(-1, tensor.shape[-1])[-1, 0] = torch.finfo(tensor.dtype).max / 4

    return fault


def fresh(call: Call) -> Call:
    """A deep copy, so that a fault never reaches the next test."""
    copies = {
        name: value.clone()
        for name in type(call).__dataclass_fields__
        if isinstance(value := getattr(call, name), Tensor)
    }
    return replace(call, **copies)
