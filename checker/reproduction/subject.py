"""A call apart from its fault: what ought to be there, and how the recorded numbers deviate.

A smaller call must not fail because it is smaller. So the fields that follow from the others are
computed anew for each size, by a plain reference, and the recorded deviation is put on top. The
same call without the deviation, its twin, must pass the check.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tocsin.checker.reproduction.axes import (
    Axes,
    Kept,
    place_of,
    select,
    select_field,
    with_tensors,
)
from tocsin.checker.reproduction.mend import mended
from tocsin.checker.reproduction.reference import healthy
from tocsin.core.calls import Call, RopeCall

_OVERWRITTEN = 1e6
"""A number so many times as large as it ought to be was overwritten, not computed a bit off."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A call and its fault.

    Attributes:
        call: as recorded, or a smaller one with the same fault.
        delta: field → recorded minus healthy, float64 or int64, shaped as the field.
        absolute: field → bool, True where the number in the call stands, whatever it ought to be.
    """

    call: Call
    delta: Mapping[str, Tensor]
    absolute: Mapping[str, Tensor]

    @property
    def deviates(self) -> bool:
        """Whether anything in the call is not what the reference says."""
        return any(bool(one.any()) for one in (*self.delta.values(), *self.absolute.values()))


def subject_of(call: Call) -> Subject:
    """Take a recorded call apart."""
    delta, absolute = {}, {}
    for name, ought in healthy(call).items():
        recorded = getattr(call, name)
        if not recorded.is_floating_point():
            delta[name] = recorded.to(torch.int64) - ought.to(torch.int64)
            absolute[name] = torch.zeros_like(recorded, dtype=torch.bool)
            continue
        number = recorded.to(torch.float64)
        huge = torch.finfo(recorded.dtype).max / 1e6
        swamped = number.abs() > _OVERWRITTEN * ought.abs() + huge
        swamped = swamped | (ought.abs() > _OVERWRITTEN * number.abs() + huge)
        absolute[name] = ought.isfinite() & (~number.isfinite() | swamped)
        usable = number.isfinite() & ought.isfinite() & ~absolute[name]
        delta[name] = torch.where(usable, number - ought, 0.0)
    return Subject(call, delta, absolute)


def bare(call: Call) -> Subject:
    """A call whose fields follow from nothing: it is looked at as it is."""
    return Subject(call, {}, {})


def rebuilt(subject: Subject) -> Subject | None:
    """The subject with its derived fields computed anew; None where that cannot be done."""
    call = subject.call
    for _ in range(_passes(call)):
        ought = healthy(call)
        if any(name not in ought for name in subject.delta):
            return None
        values = {}
        for name, delta in subject.delta.items():
            now = getattr(call, name)
            if now.shape != delta.shape:
                return None
            if now.is_floating_point():
                number = torch.where(
                    subject.absolute[name], now.to(torch.float64), ought[name] + delta
                )
                values[name] = number.to(now.dtype)
            else:
                values[name] = (ought[name].to(torch.int64) + delta).to(now.dtype)
        call = with_tensors(call, values)
    return replace(subject, call=call)


def twin(subject: Subject) -> Call:
    """The same call with nothing wrong."""
    call = subject.call
    for _ in range(_passes(call)):
        ought = healthy(call)
        values = {
            name: ought[name].to(getattr(call, name).dtype)
            for name in subject.delta
            if name in ought
        }
        call = with_tensors(call, values)
    return call


def kept_only(subject: Subject, kept: Kept, axes: Axes) -> tuple[Subject, Kept] | None:
    """The subject on some indices of its axes, and what was kept in the end.

    None where that makes no call.
    """
    call = subject.call
    fixed = mended(call, kept, axes)
    if fixed is None:
        return None
    kept, extra = fixed
    tensors = {**select(call, kept), **extra}
    smaller = with_tensors(call, tensors)
    delta = {
        name: select_field(call, name, one, kept, axes.sizes) for name, one in subject.delta.items()
    }
    absolute = {
        name: select_field(call, name, one, kept, axes.sizes)
        for name, one in subject.absolute.items()
    }
    candidate = rebuilt(Subject(smaller, delta, absolute))
    return None if candidate is None else (candidate, kept)


def without(subject: Subject, name: str) -> Subject | None:
    """The subject without an optional field."""
    delta = {key: value for key, value in subject.delta.items() if key != name}
    absolute = {key: value for key, value in subject.absolute.items() if key != name}
    return rebuilt(Subject(with_tensors(subject.call, {name: None}), delta, absolute))


def hints(subject: Subject, alarms: Tensor | None, axes: Axes) -> dict[str, int]:
    """For each axis an index at which the fault most likely is."""
    found: dict[str, int] = {}
    for name, delta in subject.delta.items():
        score = delta.abs().to(torch.float64)
        now = getattr(subject.call, name)
        if now.is_floating_point():
            score = score / (now.to(torch.float64).abs() + 1e-30).clamp_max(1e300)
        score = score.masked_fill(subject.absolute[name], torch.inf).nan_to_num(nan=torch.inf)
        if bool((score > 0).any()):
            for axis, index in place_of(subject.call, name, int(score.argmax()), axes).items():
                found.setdefault(axis, index)
    for name in axes.fields:
        value = getattr(subject.call, name)
        if value.is_floating_point() and not bool(value.isfinite().all()):
            worst = int((~value.isfinite()).reshape(-1).to(torch.int8).argmax())
            for axis, index in place_of(subject.call, name, worst, axes).items():
                found.setdefault(axis, index)
    if alarms is not None and bool(alarms.any()):
        token = int(alarms.to(torch.int8).argmax())
        found = {**found, **axes.token_place(token)}
    return found


def _passes(call: Call) -> int:
    """Rotated heads follow from the table, which itself follows from the frequencies."""
    return 2 if isinstance(call, RopeCall) else 1
