"""Activation ranges: each operator's largest magnitude within twice what clean runs showed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tocsin.bench.competitors.competitor import (
    Attached,
    Calibration,
    RowFlags,
    floats,
    operators,
)
from tocsin.core.errors import ContractError

FACTOR = 2.0
"""Measured on clean held-out prompts: ×1.0 flags all of them, ×1.5 a third, ×2.0 none."""


class AbsMax:
    """Calibrated first, then one maximum an output; the comparisons wait for the end of the step.

    Source: Ranger (arXiv:2003.13874) and FT2 (HPDC'25) bound activations so; theirs clip, this
    one flags. NaN counts as out of range.
    """

    name = "absmax-x2"
    profile = "default"
    per_row = True
    around = False

    def attach(self, model: nn.Module, calibration: Calibration = ()) -> Attached:
        """See `Competitor`.

        Raises:
            ContractError: there is nothing to calibrate on.
        """
        if not calibration:
            raise ContractError(
                "absmax-x2: there are no calibration prompts, expected at least one; "
                "pass clean input ids"
            )
        return _Ranges(model, calibrate(model, calibration))


def calibrate(model: nn.Module, calibration: Calibration) -> list[float]:
    """The largest magnitude of each operator's output over clean prompts, in module order."""
    points = [module for _, module in operators(model)]
    peaks = [0.0] * len(points)

    def after(index: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            for x in floats(output):
                peaks[index] = max(peaks[index], float(x.abs().max()))

        return hook

    handles = [module.register_forward_hook(after(i)) for i, module in enumerate(points)]
    try:
        with torch.no_grad():
            for ids_RT in calibration:
                model(input_ids=ids_RT, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return peaks


class _Ranges(RowFlags):
    """One maximum a point and row, compared with the limits of all points at once."""

    def __init__(self, model: nn.Module, peaks: list[float]) -> None:
        super().__init__(model)
        self._limits_P1 = torch.tensor(peaks, device=self._device)[:, None] * FACTOR
        self._seen_PR = torch.zeros(len(peaks), 0, device=self._device)
        self.keep(model.register_forward_pre_hook(self._make_room))
        for index, (_, module) in enumerate(operators(model)):
            self.keep(module.register_forward_hook(self._after(index)))

    def begin(self) -> None:
        """See `Attached`."""
        super().begin()
        self._seen_PR.zero_()

    def flagged(self) -> Tensor:
        """See `Attached`; not `>`, so that a NaN is out of range."""
        return ~(self._seen_PR <= self._limits_P1).all(dim=0)

    def _make_room(self, module: nn.Module, args: Any) -> None:
        if self._seen_PR.shape[1] != self.rows:
            self._seen_PR = torch.zeros(self._limits_P1.shape[0], self.rows, device=self._device)

    def _after(self, index: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            for x in floats(output):
                # A rotary table has one row for all; a module that ran twice keeps its last.
                self._seen_PR[index].copy_(self.by_row(x).abs().amax(dim=1))

        return hook
