"""Double modular redundancy: every forward pass twice, logits compared bit by bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tocsin.bench.competitors.competitor import Attached, Calibration
from tocsin.core.errors import ContractError


class Dmr:
    """Catches what happens in one run and not in the other; weights and the cache are common.

    It goes around the forward pass. Inside a compiled one the second run would be removed as a
    common subexpression, and with it the detector.
    """

    name = "dmr"
    profile = "default"
    per_row = True
    around = True

    def attach(self, model: nn.Module, calibration: Calibration = ()) -> Attached:
        """See `Competitor`; needs no calibration."""
        return _Doubled(model)


class _Doubled:
    """The forward pass of one model, twice."""

    def __init__(self, model: nn.Module) -> None:
        self.skipped: dict[str, str] = {}
        self._model = model
        self._bad_R = torch.zeros(0, dtype=torch.bool)
        self._once = model.forward
        self._had_own = "forward" in vars(model)
        self._attached = True
        model.forward = self._twice

    def begin(self) -> None:
        """See `Attached`."""
        self._bad_R = torch.zeros_like(self._bad_R)

    def flagged(self) -> Tensor:
        """See `Attached`."""
        return self._bad_R

    def detach(self) -> None:
        """See `Attached`."""
        if not self._attached:
            return
        self._attached = False
        if self._had_own:
            self._model.forward = self._once
        else:
            del self._model.forward

    def _twice(self, *args: Any, **kwargs: Any) -> Any:
        with _put_back(kwargs.get("cache", kwargs.get("past_key_values"))):
            first = self._once(*args, **kwargs)
            first_RX = first.logits.flatten(start_dim=1)
        second = self._once(*args, **kwargs)
        # A NaN differs from itself: a row that holds one is flagged.
        self._bad_R = (first_RX != second.logits.flatten(start_dim=1)).any(dim=1)
        return second


@contextmanager
def _put_back(cache: Any) -> Iterator[None]:
    """Take what the run inside added out of a Transformers cache, or do nothing without one.

    Raises:
        ContractError: the cache cannot give up its newest positions.
    """
    if cache is None:
        yield
        return
    before = int(cache.get_seq_length())
    yield
    if not cache.is_croppable:
        raise ContractError(
            f"dmr: {type(cache).__name__} cannot be cropped, expected a static or dynamic cache; "
            "use one of these"
        )
    cache.crop(before - int(cache.get_seq_length()))
