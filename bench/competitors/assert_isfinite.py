"""`isfinite().all()` on every operator's inputs and outputs: what most people write first."""

from typing import Any

import torch
from torch import Tensor, nn

from tocsin.bench.competitors.competitor import Attached, Calibration, RowFlags, floats, operators


class AssertIsfinite:
    """One device synchronisation a tensor, as an `assert` makes it; catches NaN and ±Inf only.

    An assertion ends the step at the first bad tensor. Here the step goes on, so that trials can
    be counted row by row: a clean step, which is what is timed, costs the same.
    """

    name = "assert-isfinite"
    profile = "default"
    per_row = True
    around = False

    def attach(self, model: nn.Module, calibration: Calibration = ()) -> Attached:
        """See `Competitor`; needs no calibration."""
        flags = RowFlags(model)

        def look(x: Tensor) -> None:
            if not torch.isfinite(x).all():
                flags.flag(~torch.isfinite(flags.by_row(x)).all(dim=1))

        def before(module: nn.Module, args: tuple[Any, ...]) -> None:
            for x in floats(args):
                look(x)

        def after(module: nn.Module, args: Any, output: Any) -> None:
            for x in floats(output):
                look(x)

        for _, module in operators(model):
            flags.keep(module.register_forward_pre_hook(before))
            flags.keep(module.register_forward_hook(after))
        return flags
