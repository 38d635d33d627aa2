"""Seams at the modules of any torch model: linear, embedding, RMSNorm; without a family's help."""

import re
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from tocsin.checker.attach.references import (
    BLOCK_SIZE,
    NormForm,
    has_norm_shape,
    linear_reference,
    norm_form,
    row_norm_max,
)
from tocsin.core.calls import EmbeddingCall, LinearCall, LogitsCall, RMSNormCall
from tocsin.core.errors import ContractError
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator, Phase

_DEPTH = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.|$)")
_ATTACHED: WeakSet[nn.Module] = WeakSet()


class ModuleAdapter:
    """Announces the calls of a model's modules at `seams`, only where somebody listens.

    Attributes:
        attached: until `detach`.
        skipped: module or operator → the reason that it has no seam.
    """

    def __init__(self, model: nn.Module, seams: Seams) -> None:
        """Take the trusted references and hook every known module.

        Raises:
            ContractError: the model is attached already.
        """
        if model in _ATTACHED:
            raise ContractError(
                "attach: the model is attached already, expected one guard a model; "
                "call detach() on the other guard, or share it"
            )
        self.model = model
        self.seams = seams
        self.skipped: dict[str, str] = {}
        self.attached = True
        self._undo: list[Callable[[], None]] = []
        # Outside inference mode, or the references could not be written to or saved later.
        with torch.inference_mode(mode=False), torch.no_grad():
            self._attach()
        _ATTACHED.add(model)

    def detach(self) -> None:
        """Take everything out again, last first; calling it again does nothing."""
        while self._undo:
            self._undo.pop()()
        _ATTACHED.discard(self.model)
        self.attached = False

    def _attach(self) -> None:
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Linear):
                self._attach_linear(name, module)
            elif isinstance(module, nn.Embedding):
                self._attach_embedding(name, module)
            elif has_norm_shape(module):
                self._attach_norm(name, module)

    def _hook(self, module: nn.Module, hook: Callable[..., Any], **kwargs: Any) -> None:
        self._undo.append(module.register_forward_hook(hook, **kwargs).remove)

    def _pre_hook(self, module: nn.Module, hook: Callable[..., Any], **kwargs: Any) -> None:
        self._undo.append(module.register_forward_pre_hook(hook, **kwargs).remove)

    def _attach_linear(self, name: str, module: nn.Linear) -> None:
        if not module.weight.is_floating_point() or module.weight.dim() != 2:
            self.skipped[name] = f"its weight is {module.weight.dtype}, expected a floating matrix"
            return
        seams, key, depth = self.seams, (Operator.LINEAR, Phase.AFTER), depth_of(name)
        reference = linear_reference(module)
        is_head = module is output_head(self.model)
        logits_key = (Operator.LOGITS, Phase.AFTER)
        norm_max = row_norm_max(module) if is_head else None

        def linear_hook(module: nn.Linear, args: tuple[Any, ...], output: Tensor) -> None:
            listening = seams.listening
            if key in listening:
                x = args[0]
                seams.emit(
                    LinearCall(
                        module=name,
                        depth=depth,
                        rows=x.shape[0],
                        x=x,
                        weight=module.weight,
                        bias=module.bias,
                        output=output,
                        block_sums=reference.block_sums,
                        block_norms=reference.block_norms,
                        bias_sums=reference.bias_sums,
                        block_size=BLOCK_SIZE,
                    )
                )
            if is_head and logits_key in listening:
                seams.emit(
                    LogitsCall(
                        module=name,
                        rows=output.shape[0],
                        logits=output,
                        hidden=args[0],
                        weight=module.weight,
                        weight_norm_max=norm_max,
                    )
                )

        self._hook(module, linear_hook)

    def _attach_embedding(self, name: str, module: nn.Embedding) -> None:
        seams, key = self.seams, (Operator.EMBEDDING, Phase.AFTER)
        scale = getattr(module, "scalar_embed_scale", None)

        def embedding_hook(module: nn.Embedding, args: tuple[Any, ...], output: Tensor) -> None:
            if key in seams.listening:
                weight = module.weight
                input_ids = args[0]
                seams.emit(
                    EmbeddingCall(
                        module=name,
                        rows=input_ids.shape[0],
                        input_ids=input_ids,
                        weight=weight,
                        # A scaled lookup (Gemma) is not a plain one: its output is not announced.
                        output=output if scale is None else None,
                    )
                )

        self._hook(module, embedding_hook)
        if scale is not None:
            self.skipped[f"{name} (output)"] = "the family scales the embedding after the lookup"

    def _attach_norm(self, name: str, module: nn.Module) -> None:
        form = norm_form(module)
        if not isinstance(form, NormForm):
            self.skipped[name] = form
            return
        seams, key, depth = self.seams, (Operator.RMS_NORM, Phase.AFTER), depth_of(name)
        eps, offset, trusted = form.eps, form.offset, form.effective

        def norm_hook(module: Any, args: tuple[Any, ...], output: Tensor) -> None:
            if key in seams.listening:
                x = args[0]
                weight = module.weight
                seams.emit(
                    RMSNormCall(
                        module=name,
                        depth=depth,
                        rows=x.shape[0],
                        x=x,
                        weight=weight if offset == 0.0 else weight + offset,
                        eps=eps,
                        output=output,
                        weight_trusted=trusted,
                    )
                )

        self._hook(module, norm_hook)


def depth_of(name: str) -> int | None:
    """Index of the transformer layer in a qualified module name."""
    match = _DEPTH.search(name)
    return int(match.group(1)) if match else None


def output_head(model: nn.Module) -> nn.Module | None:
    """The module that makes logits, None where the model has none."""
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if callable(getter) else getattr(model, "lm_head", None)
    return head if isinstance(head, nn.Module) else None
