"""What a competitor is: a detector that attaches to a model and says which rows it flags.

Shape suffixes: R rows of the step, T tokens of a row, D features.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tocsin.core.errors import ContractError

Calibration = Sequence[Tensor]
"""Clean prompts for detectors that must see clean runs first: input ids, int64 [R, T] each."""


class Attached(Protocol):
    """A competitor at work on one model."""

    @property
    def skipped(self) -> Mapping[str, str]:
        """Module or operator → the reason that it is not looked at; never silently."""
        ...

    def begin(self) -> None:
        """Forget the last step; called before every forward pass."""
        ...

    def flagged(self) -> Tensor:
        """What was wrong in the last forward pass.

        Returns:
            bool [R]; bool without axes from a detector that cannot tell rows apart.
        """
        ...

    def detach(self) -> None:
        """Restore the model; calling it again does nothing."""
        ...


class Competitor(Protocol):
    """One detector of the table.

    Attributes:
        name, profile: of its rows in both tables.
        per_row: whether `flagged` says it row by row; otherwise one trial a step is all it allows.
        around: whether it goes around the whole forward pass, and so around a compiled one.
    """

    name: str
    profile: str
    per_row: bool
    around: bool

    def attach(self, model: nn.Module, calibration: Calibration = ()) -> Attached:
        """Attach to a model in evaluation mode.

        Raises:
            ContractError: the model or the calibration is not what the detector needs.
            EnvironmentFault: its package is not installed.
        """
        ...


class RowFlags:
    """Flags of the rows of one forward pass, set by forward hooks; the base of most competitors.

    The number of rows is that of the model's `input_ids`. Hooks run in the order of their
    registration, so a fault whose hook was there first is seen.
    """

    def __init__(self, model: nn.Module) -> None:
        """Learn the rows of each pass from the inputs of `model`."""
        self.skipped: dict[str, str] = {}
        self._bad_R = torch.zeros(0, dtype=torch.bool)
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._undo: list[Callable[[], None]] = []
        self.keep(model.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True))

    @property
    def rows(self) -> int:
        """Rows of the pass that runs or ran last."""
        return self._bad_R.shape[0]

    def begin(self) -> None:
        """See `Attached`."""
        self._bad_R.zero_()

    def flagged(self) -> Tensor:
        """See `Attached`."""
        return self._bad_R.clone()

    def detach(self) -> None:
        """See `Attached`."""
        while self._undo:
            self._undo.pop()()

    def keep(self, handle: Any) -> None:
        """Remove this hook at `detach`."""
        self._undo.append(handle.remove)

    def flag(self, bad: Tensor) -> None:
        """Flag rows without a device synchronisation: bool [R], or without axes for all."""
        self._bad_R.logical_or_(bad)

    def by_row(self, x: Tensor) -> Tensor:
        """The tensor as [R, …]; as [1, …] where its first axis is not the rows'."""
        return x.reshape(self.rows if x.shape[0] == self.rows else 1, -1)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        if self._bad_R.shape[0] != ids.shape[0]:
            self._bad_R = torch.zeros(ids.shape[0], dtype=torch.bool, device=self._device)


def operators(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module that computes without modules of its own, and every decoder layer.

    A decoder layer's output is the residual stream, which no module of its own adds up.
    """
    for name, module in model.named_modules():
        is_leaf = next(module.children(), None) is None and not isinstance(module, nn.ModuleList)
        if is_leaf or (hasattr(module, "self_attn") and hasattr(module, "mlp")):
            yield name, module


def floats(values: Any) -> Iterator[Tensor]:
    """The floating-point tensors among a module's arguments or results."""
    for value in values if isinstance(values, tuple | list) else (values,):
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
            yield value


def head_of(model: nn.Module) -> nn.Module:
    """The module whose output is the logits.

    Raises:
        ContractError: the model has none.
    """
    find = getattr(model, "get_output_embeddings", None)
    head = find() if find is not None else getattr(model, "lm_head", None)
    if not isinstance(head, nn.Module):
        raise ContractError(
            f"competitors: {type(model).__name__} has no output embedding, "
            "expected a causal language model; attach to one that has lm_head"
        )
    return head
