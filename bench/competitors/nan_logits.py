"""NaN in the logits only: what the serving engines ship."""

from typing import Any

import torch
from torch import Tensor, nn

from tocsin.bench.competitors.competitor import Attached, Calibration, RowFlags, head_of


class NanLogits:
    """Counts a row as corrupt when its logits hold a NaN, without a synchronisation of its own.

    Source: vLLM, `VLLM_COMPUTE_NANS_IN_LOGITS` (vllm-project/vllm#18777), which takes
    `isnan` over the vocabulary of each row; an infinite logit is not counted there, nor here.
    """

    name = "nan-logits"
    profile = "default"
    per_row = True
    around = False

    def attach(self, model: nn.Module, calibration: Calibration = ()) -> Attached:
        """See `Competitor`; needs no calibration."""
        flags = RowFlags(model)

        def after(module: nn.Module, args: Any, logits: Tensor) -> None:
            flags.flag(torch.isnan(flags.by_row(logits)).any(dim=1))

        flags.keep(head_of(model).register_forward_hook(after))
        return flags
