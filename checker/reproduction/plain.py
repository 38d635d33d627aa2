"""Plainer numbers of the same shape: ones, powers of two, round numbers, and a common dtype."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from tocsin.checker.reproduction.axes import LAYOUTS, with_tensors
from tocsin.checker.reproduction.subject import Subject, rebuilt
from tocsin.core.calls import Call

Step = Callable[[Subject], Subject | None]

_LITERAL_MAX = 4096
"""Beyond it nobody reads the numbers, and each would cost a try."""


def plainer(subject: Subject, ratio: float) -> Iterator[Step]:
    """Steps to try one after the other; each is given the best subject so far."""
    for name in subject.delta:
        yield lambda best, name=name: _one_deviation(best, name)  # type: ignore[misc]
    for rule in _PLAINER:
        for name in LAYOUTS[type(subject.call)]:
            yield lambda best, name=name, rule=rule: _changed(best, name, rule)  # type: ignore[misc]
    for rule in (_power_of_two, _two_digits):
        for name in subject.delta:
            yield lambda best, name=name, rule=rule: _rounded_delta(best, name, rule)  # type: ignore[misc]
    yield _in_single_precision
    if math.isnan(ratio) or math.isinf(ratio):
        return
    for rule in (_power_of_two, _two_digits):
        for name in subject.absolute:
            yield lambda best, name=name, rule=rule: _changed(best, name, rule)  # type: ignore[misc]


def _one_deviation(best: Subject, name: str) -> Subject | None:
    """Only the worst number deviates; the others are as they ought to be."""
    if name not in best.delta or best.delta[name].numel() <= 1:
        return None
    delta, absolute = best.delta[name], best.absolute[name]
    score = delta.abs().to(torch.float64).masked_fill(absolute, math.inf)
    only = torch.zeros_like(absolute).reshape(-1)
    only[int(score.argmax())] = True
    only = only.reshape(absolute.shape)
    return rebuilt(
        replace(
            best,
            delta={**best.delta, name: torch.where(only, delta, torch.zeros_like(delta))},
            absolute={**best.absolute, name: absolute & only},
        )
    )


def _changed(best: Subject, name: str, rule: Callable[[Tensor], Tensor]) -> Subject | None:
    """One field under a rule; what follows from it is computed anew."""
    value = getattr(best.call, name)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return None
    if not 0 < value.numel() <= _LITERAL_MAX:
        return None
    number = value.to(torch.float64)
    new = torch.where(number.isfinite(), rule(number), number).to(value.dtype)
    if torch.equal(new, value) or not bool((new.isfinite() | ~value.isfinite()).all()):
        return None
    return rebuilt(replace(best, call=with_tensors(best.call, {name: new})))


def _rounded_delta(best: Subject, name: str, rule: Callable[[Tensor], Tensor]) -> Subject | None:
    if name not in best.delta or not best.delta[name].is_floating_point():
        return None
    rounded = rule(best.delta[name])
    if torch.equal(rounded, best.delta[name]):
        return None
    return rebuilt(replace(best, delta={**best.delta, name: rounded}))


def _in_single_precision(best: Subject) -> Subject | None:
    """Half precision is left behind, unless the failure needs it."""
    wide = {
        name: value.to(torch.float32)
        for name in type(best.call).__dataclass_fields__
        if isinstance(value := getattr(best.call, name), Tensor)
        and value.dtype in (torch.float16, torch.bfloat16)
    }
    return rebuilt(replace(best, call=with_tensors(best.call, wide))) if wide else None


def _ones(number: Tensor) -> Tensor:
    return torch.ones_like(number)


def _zeros(number: Tensor) -> Tensor:
    return torch.zeros_like(number)


def _power_of_two(number: Tensor) -> Tensor:
    exponent = number.abs().clamp_min(2.0**-1000).log2().round()
    return torch.where(number == 0, 0.0, number.sign() * exponent.exp2())


def _two_digits(number: Tensor) -> Tensor:
    """Two significant decimal digits."""
    magnitude = number.abs().clamp_min(1e-300).log10().floor() - 1
    step = torch.pow(torch.tensor(10.0, dtype=torch.float64), magnitude)
    return torch.where(number == 0, 0.0, (number / step).round() * step)


_PLAINER: Final = (_zeros, _ones, _power_of_two, _two_digits)


def is_small(call: Call) -> bool:
    """Whether a person can read all numbers of the call."""
    values = (getattr(call, name) for name in type(call).__dataclass_fields__)
    return sum(value.numel() for value in values if isinstance(value, Tensor)) <= _LITERAL_MAX
