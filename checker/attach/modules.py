"""Seams at the modules of any torch model: linear, embedding, RMSNorm; without a family's help."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.functional import linear

from tocsin.checker.attach.references import (
    BLOCK_SIZE,
    NormForm,
    has_norm_shape,
    linear_reference,
    norm_form,
    row_norm_max,
    row_sums,
)
from tocsin.checker.attach.taps import Forward, Look, Taps
from tocsin.checker.attach.telling import Teller, first_of
from tocsin.checker.lanes import Plan, static_form
from tocsin.core.calls import EmbeddingCall, LinearCall, LogitsCall, RMSNormCall
from tocsin.core.errors import ContractError
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator, Phase

_DEPTH = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.|$)")
_TRACED = tuple(
    (operator, Phase.AFTER)
    for operator in (
        Operator.LINEAR,
        Operator.RMS_NORM,
        Operator.ROPE,
        Operator.ATTENTION,
        Operator.SWIGLU,
        Operator.RESIDUAL,
        Operator.LOGITS,
    )
)
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
        self.taps = Taps(seams)
        self._undo: list[Callable[[], None]] = []
        # Outside inference mode, or the references could not be written to or saved later.
        with torch.inference_mode(mode=False), torch.no_grad():
            self._attach()
        self.taps.add(model, lambda: Look(wrap=seams.around), *_TRACED)
        self.taps.open()
        self._undo.append(self.taps.close)
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

    def _attach_linear(self, name: str, module: nn.Linear) -> None:
        if not module.weight.is_floating_point() or module.weight.dim() != 2:
            self.skipped[name] = f"its weight is {module.weight.dtype}, expected a floating matrix"
            return
        seams, depth = self.seams, depth_of(name)
        reference = linear_reference(module)

        def build(x: Tensor, output: Tensor) -> LinearCall:
            return LinearCall(
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
                block_weights=reference.block_weights,
                block_size=BLOCK_SIZE,
            )

        def plan() -> Plan:
            trusted = (
                reference.block_sums,
                reference.block_norms,
                reference.bias_sums,
                reference.bias_norms,
                reference.block_weights,
            )
            static = static_form(module.weight, module.bias, *trusted, BLOCK_SIZE)
            return Plan(LinearCall, name, depth, build, trusted, static, (BLOCK_SIZE,))

        self._tell(module, Teller(seams, plan), partial(_linear_forward, module))
        if module is output_head(self.model):
            self._attach_head(name, module)

    def _attach_head(self, name: str, module: nn.Linear) -> None:
        """The module that makes logits is also looked at as such."""
        norm_max, sums = row_norm_max(module), row_sums(module)

        def build(hidden: Tensor, logits: Tensor, weight: Tensor) -> LogitsCall:
            return LogitsCall(
                module=name,
                rows=logits.shape[0],
                logits=logits,
                hidden=hidden,
                weight=weight,
                weight_norm_max=norm_max,
                weight_row_sums=sums,
            )

        def plan() -> Plan:
            trusted = (norm_max, sums)
            static = static_form(module.weight, *trusted)
            return Plan(LogitsCall, name, None, build, trusted, static)

        teller = Teller(self.seams, plan)

        def look() -> Look:
            teller.renew()
            announce = teller.announce

            def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
                announce(first_of(args, kwargs), output, module.weight.detach())

            return Look(after=after)

        self.taps.add(module, look, (Operator.LOGITS, Phase.AFTER))

    def _attach_embedding(self, name: str, module: nn.Embedding) -> None:
        seams = self.seams
        scale = getattr(module, "scalar_embed_scale", None)

        def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            input_ids = first_of(args, kwargs)
            seams.emit(
                EmbeddingCall(
                    module=name,
                    rows=input_ids.shape[0],
                    input_ids=input_ids,
                    weight=module.weight,
                    # A scaled lookup (Gemma) is not a plain one: its output is not announced.
                    output=output if scale is None else None,
                )
            )

        self.taps.add(module, lambda: Look(after=after), (Operator.EMBEDDING, Phase.AFTER))
        if scale is not None:
            self.skipped[f"{name} (output)"] = "the family scales the embedding after the lookup"

    def _attach_norm(self, name: str, module: nn.Module) -> None:
        form = norm_form(module)
        if not isinstance(form, NormForm):
            self.skipped[name] = form
            return
        seams, depth = self.seams, depth_of(name)
        eps, offset, trusted = form.eps, form.offset, form.effective

        def build(x: Tensor, output: Tensor) -> RMSNormCall:
            weight: Any = module.weight
            return RMSNormCall(
                module=name,
                depth=depth,
                rows=x.shape[0],
                x=x,
                weight=weight if offset == 0.0 else weight + offset,
                eps=eps,
                output=output,
                weight_trusted=trusted,
            )

        def plan() -> Plan:
            static = static_form(module.weight, trusted, eps)
            return Plan(RMSNormCall, name, depth, build, (trusted,), static, (eps,))

        self._tell(module, Teller(seams, plan))

    def _tell(
        self,
        module: nn.Module,
        teller: Teller,
        inner: Callable[[Teller], Forward | None] = lambda teller: None,
    ) -> None:
        """Tell of the calls of a module that makes one tensor of one.

        Args:
            inner: a forward that takes the place of the module's own and tells of it, if any.
        """

        def look() -> Look:
            teller.renew()
            announce = teller.announce

            def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
                announce(first_of(args, kwargs), output)

            return Look(after=after, forward=inner(teller), wrap=teller.wrap())

        operator = teller.plan.kind.operator
        self.taps.add(module, look, (operator, Phase.AFTER), state=teller.log)


def _linear_forward(module: nn.Linear, teller: Teller) -> Forward | None:
    """The forward of a plain linear module that tells of itself, in one frame."""
    parameters = module._parameters
    if type(module).forward is not nn.Linear.forward or "weight" not in parameters:
        return None
    plan, announce, log = teller.plan, teller.announce, teller.log()
    if log is None:

        def announcing(input: Tensor) -> Tensor:
            output = linear(input, parameters["weight"], parameters["bias"])  # type: ignore[arg-type]
            announce(input, output)
            return output

        return announcing

    def forward(input: Tensor) -> Tensor:
        output = linear(input, parameters["weight"], parameters["bias"])  # type: ignore[arg-type]
        if is_dynamo_compiling():
            announce(input, output)
        else:
            log.put((plan, (input, output)))
        return output

    return forward


def depth_of(name: str) -> int | None:
    """Index of the transformer layer in a qualified module name."""
    match = _DEPTH.search(name)
    return int(match.group(1)) if match else None


def output_head(model: nn.Module) -> nn.Module | None:
    """The module that makes logits, None where the model has none."""
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if callable(getter) else getattr(model, "lm_head", None)
    return head if isinstance(head, nn.Module) else None
