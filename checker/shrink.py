"""Shrinking: the smallest call that fails the same check for the same reason.

Axes are cut first, then optional fields, then numbers are made round, then the dtype plain. A
candidate counts only if the check fails as before, and, where a reference says what ought to be
there, if the same call without the recorded deviation passes. Axes: see reproduction/axes.py.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tocsin.checker.contract import Check
from tocsin.checker.reproduction.axes import (
    axes_of,
    elements,
    tokens_kept,
    with_tensors,
)
from tocsin.checker.reproduction.packed import shorter
from tocsin.checker.reproduction.plain import plainer
from tocsin.checker.reproduction.reasons import reasons_of
from tocsin.checker.reproduction.subject import (
    Subject,
    bare,
    hints,
    kept_only,
    rebuilt,
    subject_of,
    twin,
    without,
)
from tocsin.checker.rounding import unit_roundoff
from tocsin.core.calls import AttentionCall, Call, VarlenAttentionCall

_SAFE = 1.5
"""A ratio this far from its limit is over it on any machine."""

_AS_MUCH = 4.0

_WORK_MAX = 400_000_000
"""Elements that all candidates together may have: some seconds on one core, and always the same
number of candidates on any machine."""

_TRIES_MAX = 1500
_TRY_COST = 20_000  # elements that a try of a small call is worth


@dataclass(frozen=True, slots=True)
class Reading:
    """What a check says of a call.

    Attributes:
        ratio: the worst one; NaN when there is one.
        alarms: [T] bool, which tokens (or rows, or the call) are over the limit.
    """

    ratio: float
    alarms: Tensor
    reasons: frozenset[str]

    @property
    def fails(self) -> bool:
        """Whether the check alarms."""
        return bool(self.alarms.any())


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A minimal case.

    Attributes:
        call: fails the check.
        ratio: by how much.
        twin: the same call without the fault, which passes; None where no reference says so.
        before, after: tensor elements of the recorded call and of this one.
        tries: candidates that were looked at.
    """

    call: Call
    ratio: float
    twin: Call | None
    before: int
    after: int
    tries: int


def read(unit: Check, call: Call) -> Reading:
    """Run one check on one call."""
    with torch.no_grad():
        ratio = unit(call).detach().reshape(-1).to("cpu", torch.float32)
    alarms = ~(ratio <= 1.0)
    worst = float(ratio[alarms].amax()) if bool(alarms.any()) else math.nan
    if not bool(alarms.any()):
        worst = float(ratio.amax()) if ratio.numel() else 0.0
        return Reading(worst, alarms, frozenset())
    return Reading(worst, alarms, reasons_of(unit.id, call, worst))


def shrink(unit: Check, call: Call) -> Shrunk:
    """The smallest call found that fails `unit` for the reason that `call` does.

    A call that does not fail comes back as it is.
    """
    with torch.no_grad():
        return _Search(unit, call).run()


class _Search:
    """The state of one search: the best subject so far, and what it may still cost."""

    def __init__(self, unit: Check, call: Call) -> None:
        self.unit = unit
        self.recorded = call
        self.first = read(unit, call)
        self.tries = 0
        self.work = 0
        self.best, self.deviation = self._begin(call)
        self.alarms = self.first.alarms

    def run(self) -> Shrunk:
        before = elements(self.recorded)
        if self.first.fails:
            self._quiet()
            self._form()
            while self._optional_fields() | self._axes() | self._packed():
                pass
            for candidate in plainer(self.best, self.first.ratio):
                # Each builds on those that were taken before it.
                self._offer(candidate(self.best))
        healthy = twin(self.best) if self.deviation else None
        found = read(self.unit, self.best.call)
        return Shrunk(
            self.best.call, found.ratio, healthy, before, elements(self.best.call), self.tries
        )

    def _begin(self, call: Call) -> tuple[Subject, bool]:
        """The recorded call as a subject, and whether its fault is a deviation from a reference."""
        if not self.first.fails:
            return bare(call), False
        subject = subject_of(call)
        again = rebuilt(subject)
        if not subject.delta or again is None or not self._same(again.call):
            return bare(call), False
        healthy = read(self.unit, twin(again))
        return again, subject.deviates and not healthy.fails

    def _same(self, call: Call) -> bool:
        found = read(self.unit, call)
        if not found.fails or found.reasons != self.first.reasons:
            return False
        floor = min(_SAFE, self.first.ratio)
        return math.isnan(self.first.ratio) or found.ratio >= floor

    def _offer(self, candidate: Subject | None, kept: Mapping[str, Tensor] | None = None) -> bool:
        """Take the candidate if it fails as the recorded call does."""
        if candidate is None or not self._affordable(candidate.call):
            return False
        found = read(self.unit, candidate.call)
        if not found.fails or found.reasons != self.first.reasons:
            return False
        if not math.isnan(self.first.ratio) and not found.ratio >= min(_SAFE, self.first.ratio):
            return False
        if self.deviation:
            if read(self.unit, twin(candidate)).fails:
                return False
        elif not self._alarms_agree(found.alarms, kept) or not self._about_as_much(found.ratio):
            return False
        self.best, self.alarms = candidate, found.alarms
        return True

    def _alarms_agree(self, alarms: Tensor, kept: Mapping[str, Tensor] | None) -> bool:
        """Without a reference: a token that was in order must not fail because others are gone."""
        packed = isinstance(self.best.call, VarlenAttentionCall)
        if kept is None and packed and alarms.shape != self.alarms.shape:  # a row of it is gone
            return int(alarms.sum()) <= int(self.alarms.sum())
        if kept is None:
            return alarms.shape == self.alarms.shape and bool((alarms <= self.alarms).all())
        numbers = tokens_kept(axes_of(self.best.call), kept)
        if alarms.numel() != numbers.numel() or int(numbers.max()) >= self.alarms.numel():
            return int(alarms.sum()) <= int(self.alarms.sum())
        return bool((alarms == self.alarms[numbers]).all())

    def _about_as_much(self, ratio: float) -> bool:
        """Without a reference: a number that grows much worse is another failure."""
        first = self.first.ratio
        return not math.isfinite(first) or ratio <= _AS_MUCH * first

    def _affordable(self, call: Call) -> bool:
        self.tries += 1
        self.work += elements(call) + _TRY_COST
        return self.tries <= _TRIES_MAX and self.work <= _WORK_MAX

    def _quiet(self) -> None:
        """Rounding does not count as a deviation, unless the failure is made of it."""
        delta = {}
        for name, one in self.best.delta.items():
            now = getattr(self.best.call, name)
            slight = one.abs() <= 2 * unit_roundoff(now.dtype) * now.abs().to(torch.float64)
            delta[name] = one.masked_fill(slight & now.isfinite(), 0)
        self._offer(rebuilt(replace(self.best, delta=delta)))

    def _form(self) -> None:
        """What is said in short is said in full, so that cutting does not change its meaning."""
        call = self.best.call
        self._offer(rebuilt(replace(self.best, call=dataclasses.replace(call, rows=None))))
        call = self.best.call
        if isinstance(call, AttentionCall) and call.causal:
            queries, keys = call.q.shape[-2], call.k.shape[-2]
            seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
            mask = call.mask
            if mask is None:
                mask = seen
            elif mask.dtype is torch.bool:
                mask = mask & seen
            else:
                mask = mask.masked_fill(~seen, -math.inf)
            self._offer(
                rebuilt(
                    replace(self.best, call=with_tensors(call, {"causal": False, "mask": mask}))
                )
            )

    def _optional_fields(self) -> bool:
        """Leave out what the failure does not need."""
        taken = False
        # Last first: what bounds a check (norms) goes before what it compares (sums).
        for field in reversed(dataclasses.fields(self.best.call)):
            value = getattr(self.best.call, field.name)
            if field.default is None and isinstance(value, Tensor):
                taken |= self._offer(without(self.best, field.name))
        return taken

    def _axes(self) -> bool:
        """Cut each axis, all at once where the fault is at one place."""
        before = elements(self.best.call)
        axes = axes_of(self.best.call)
        likely = hints(self.best, self.alarms, axes)
        cut = {
            name: torch.tensor([likely.get(name, 0)])
            for name, size in axes.sizes.items()
            if size > 1 and name not in axes.uneven and likely.get(name, 0) < size
        }
        if not self._keep(cut):
            for name in sorted(axes.sizes, key=lambda one: -axes.sizes[one]):
                self._axis(name)
        return elements(self.best.call) < before

    def _axis(self, name: str) -> None:
        """Cut one axis: to the place of the fault, or by ever smaller pieces."""
        axes = axes_of(self.best.call)
        size = axes.sizes.get(name, 1)
        if size <= 1:
            return
        if name in axes.uneven:
            self._uneven_axis(name, size)
            return
        likely = hints(self.best, self.alarms, axes).get(name, 0)
        for index in dict.fromkeys((likely, 0, size - 1)):
            if index < size and self._keep({name: torch.tensor([index])}):
                return
        pieces = 2
        while (size := axes_of(self.best.call).sizes.get(name, 1)) > 1 and pieces <= 2 * size:
            pieces = 2 if self._piecewise(name, size, pieces) else pieces * 2
            if self.tries > _TRIES_MAX or self.work > _WORK_MAX:
                return

    def _uneven_axis(self, name: str, size: int) -> None:
        """As many from each tensor: what one has more than another, it keeps."""
        for count in _halves(size):
            if not self._keep({name: torch.arange(size - count, size)}):
                self._keep({name: torch.arange(min(count, size))})
            size = axes_of(self.best.call).sizes.get(name, 1)

    def _piecewise(self, name: str, size: int, pieces: int) -> bool:
        """Keep one piece of an axis, or all but one."""
        for part in torch.arange(size).tensor_split(min(pieces, size)):
            gone = torch.ones(size, dtype=torch.bool)
            gone[part] = False
            rest = gone.nonzero().flatten()
            if self._keep({name: part}) or (pieces > 2 and self._keep({name: rest})):
                return True
        return False

    def _keep(self, kept: Mapping[str, Tensor]) -> bool:
        if not kept:
            return False
        made = kept_only(self.best, kept, axes_of(self.best.call))
        if made is None or elements(made[0].call) >= elements(self.best.call):
            return False
        return self._offer(*made)

    def _packed(self) -> bool:
        """Sequences of a packed batch and answers: not axes, and cut all the same."""
        taken = False
        found: Iterator[Callable[[Subject], Subject | None]] = shorter(self.best.call)
        for candidate in found:
            made = candidate(self.best)
            if made is not None and _size(made.call) < _size(self.best.call):
                taken |= self._offer(made)
        return taken


def _halves(size: int) -> Iterator[int]:
    while size > 1:
        size = max(1, size // 2)
        yield size


def _size(call: Call) -> tuple[int, int]:
    """Elements, then characters and lengths."""
    text = getattr(call, "text", "")
    total = sum(int(getattr(call, name, 0) or 0) for name in ("max_seqlen_q", "max_seqlen_k"))
    return elements(call), len(text) + total
