"""The package `sdcguard`: its ServeGuard, attached and polled as its documentation says."""

from typing import Any

import torch
from torch import Tensor, nn

from tocsin.bench.competitors.competitor import Attached, Calibration
from tocsin.core.errors import ContractError, EnvironmentFault


class SdcGuard:
    """Block checksums of every bf16 and fp16 linear module; float32 weights it leaves alone.

    Source: sdcguard 0.4.0, `ServeGuard().attach(model)` before compilation and `guard.poll()`
    after each step. Its state holds the worst score of a layer, not of a row.
    """

    name = "sdcguard"
    per_row = False
    around = False

    def __init__(self, share: float = 1.0) -> None:
        """Check this share of the linear modules; its documentation serves with 1/8."""
        self.share = share
        self.profile = "default" if share == 1.0 else f"share {share:g}"

    def attach(self, model: nn.Module, calibration: Calibration = ()) -> Attached:
        """See `Competitor`; needs no calibration.

        Raises:
            ContractError: it would check nothing, as on a float32 model.
            EnvironmentFault: the package is not installed.
        """
        try:
            from sdcguard import ServeGuard  # type: ignore[import-untyped]
        except ImportError as error:
            raise EnvironmentFault(
                "sdcguard: the package is not installed, expected version 0.4.0; "
                "run: pip install 'tocsin[bench]'"
            ) from error
        guard = ServeGuard()
        guard.attach(model, share=self.share)
        if not guard.layers:
            reasons = sorted(set(guard.unsupported.values()))
            guard.detach()
            raise ContractError(
                f"sdcguard: checks no layer of this model ({'; '.join(reasons)}), "
                "expected bf16 or fp16 weights; run it on such a model"
            )
        return _Polled(guard)


class _Polled:
    """One ServeGuard, polled once a step."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard
        self.skipped: dict[str, str] = {
            **guard.unsupported,
            "rms_norm, rope, attention, swiglu, residual, embedding": "it checks linear modules",
        }

    def begin(self) -> None:
        """Nothing to do: the poll after each step empties the state."""

    def flagged(self) -> Tensor:
        """See `Attached`: whether any layer alarmed; not known row by row."""
        return torch.tensor(bool(self._guard.poll(wait=True)))

    def detach(self) -> None:
        """See `Attached`."""
        self._guard.detach()
