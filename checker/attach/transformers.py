"""Seams in a Transformers decoder: attention, rotary embedding, gated activation, residuals."""

import sys
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from tocsin.checker.attach.attention import (
    PREFIX,
    SITES,
    AttentionSite,
    RopeTable,
    forget,
    register_checked,
)
from tocsin.checker.attach.modules import ModuleAdapter, depth_of
from tocsin.checker.attach.rotary import CURRENT, unwrap, wrap
from tocsin.core.calls import ResidualCall, SwiGLUCall
from tocsin.core.terms import Operator, Phase

_ROPE = (Operator.ROPE, Phase.AFTER)
_RESIDUAL = (Operator.RESIDUAL, Phase.AFTER)
_SWIGLU = (Operator.SWIGLU, Phase.AFTER)
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


@dataclass(slots=True)
class _Layer:
    """Tensors of the decoder layer that a thread is in, kept until the add that uses them."""

    x: Tensor | None = None
    delta: Tensor | None = None
    gate: Tensor | None = None
    up: Tensor | None = None


class TransformersAdapter(ModuleAdapter):
    """Seams of a decoder whose attention goes through `ALL_ATTENTION_FUNCTIONS`."""

    def _attach(self) -> None:
        super()._attach()
        names = {module: name for name, module in self.model.named_modules()}
        attentions = [m for m in names if hasattr(m, "q_proj") and hasattr(m, "k_proj")]
        if not attentions:
            self.skipped["attention"] = "no module has q_proj and k_proj"
            return
        for attention in attentions:
            self._attach_attention(names[attention], attention)
        self._wrap_rotary({type(module).__module__ for module in attentions})
        self._wrap_attention(attentions)
        for module, name in names.items():
            if hasattr(module, "self_attn") and hasattr(module, "mlp"):
                self._attach_layer(name, module)

    def _attach_attention(self, name: str, module: nn.Module) -> None:
        site = AttentionSite(
            self.seams, name, depth_of(name), self._rope_table(getattr(module, "layer_type", None))
        )
        SITES[module] = site
        self._undo.append(partial(forget, module))
        seams = self.seams

        def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if _ROPE in seams.listening:
                CURRENT.site = site
                CURRENT.position_ids = kwargs.get("position_ids")

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            CURRENT.site = None

        self._pre_hook(module, enter, with_kwargs=True)
        # Also after an exception, or the next unattached model would be heard in our name.
        self._hook(module, leave, always_call=True)

    def _rope_table(self, layer_type: str | None) -> RopeTable:
        """Trusted inverse frequencies of the rotary module that serves one layer type."""
        for module in self.model.modules():
            for prefix in (f"{layer_type}_", ""):
                inv_freq = getattr(module, f"{prefix}inv_freq", None)
                if not isinstance(inv_freq, Tensor):
                    continue
                kind = getattr(module, "rope_type", "default")
                kind = kind.get(layer_type, "default") if isinstance(kind, dict) else kind
                scale = float(getattr(module, f"{prefix}attention_scaling", 1.0))
                if kind in ("dynamic", "longrope"):
                    self.skipped["rope (table)"] = f"{kind} changes its frequencies by length"
                    return RopeTable(None, scale)
                return RopeTable(inv_freq.detach().double().clone(), scale)
        self.skipped["rope (table)"] = "no module has a buffer inv_freq"
        return RopeTable(None, 1.0)

    def _wrap_rotary(self, modeling: set[str]) -> None:
        for module_name in sorted(modeling):
            if not hasattr(sys.modules[module_name], "apply_rotary_pos_emb"):
                self.skipped["rope"] = f"{module_name} has no apply_rotary_pos_emb"
                continue
            wrap(module_name)
            self._undo.append(partial(unwrap, module_name))

    def _wrap_attention(self, attentions: list[Any]) -> None:
        """Switch every configuration to the checked twin of its attention implementation."""
        configs = {
            id(m.config): m.config for m in (self.model, *attentions) if hasattr(m, "config")
        }
        before = [(config, config._attn_implementation) for config in configs.values()]
        for config, implementation in before:
            if implementation is None or "|" in implementation:
                self.skipped["attention"] = f"implementation {implementation} cannot be wrapped"
                continue
            config._attn_implementation = register_checked(implementation)

        def restore() -> None:
            for config, implementation in before:
                # Somebody may have chosen another implementation since: theirs stays.
                current = config._attn_implementation
                if current is not None and current.startswith(PREFIX):
                    config._attn_implementation = (
                        implementation
                        if current == PREFIX + str(implementation)
                        else current.removeprefix(PREFIX)
                    )

        self._undo.append(restore)

    def _attach_layer(self, name: str, layer: Any) -> None:
        seams, depth = self.seams, depth_of(name)
        local = threading.local()
        sandwich = hasattr(layer, "pre_feedforward_layernorm")
        middle = getattr(
            layer, "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm", None
        )
        after_mlp = getattr(layer, "post_feedforward_layernorm", None) if sandwich else layer.mlp
        after_attention = layer.post_attention_layernorm if sandwich else layer.self_attn
        if not isinstance(middle, nn.Module) or not isinstance(after_mlp, nn.Module):
            self.skipped[f"{name} (residual)"] = "its norms are not where Llama or Gemma has them"
            return

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            wanted = _RESIDUAL in seams.listening
            local.layer = _Layer(x=args[0] if args else kwargs["hidden_states"]) if wanted else None

        def keep_delta(module: nn.Module, args: Any, output: Any) -> None:
            kept: _Layer | None = getattr(local, "layer", None)
            if kept is not None:
                kept.delta = output[0] if isinstance(output, tuple) else output

        def emit_add(output: Tensor, place: str) -> None:
            kept: _Layer | None = getattr(local, "layer", None)
            if kept is None or kept.x is None or kept.delta is None:
                return
            seams.emit(
                ResidualCall(
                    module=f"{name}.{place}",
                    depth=depth,
                    rows=output.shape[0],
                    x=kept.x,
                    delta=kept.delta,
                    output=output,
                )
            )
            kept.x, kept.delta = output, None

        def add_attention(module: nn.Module, args: tuple[Any, ...]) -> None:
            emit_add(args[0], "attention_add")

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            emit_add(output[0] if isinstance(output, tuple) else output, "mlp_add")
            local.layer = None

        self._pre_hook(layer, enter, with_kwargs=True)
        self._hook(after_attention, keep_delta)
        self._pre_hook(middle, add_attention)
        self._hook(after_mlp, keep_delta)
        self._hook(layer, leave)
        self._attach_gate(f"{name}.mlp", layer.mlp)

    def _attach_gate(self, name: str, mlp: Any) -> None:
        """SwiGLU: the input of down_proj is act(gate) * up."""
        if not all(hasattr(mlp, part) for part in ("gate_proj", "up_proj", "down_proj")):
            self.skipped[f"{name} (swiglu)"] = "has no gate_proj, up_proj and down_proj"
            return
        config = getattr(mlp, "config", self.model.config)
        act = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
        activation = _ACTIVATIONS.get(str(act))
        if activation is None:
            self.skipped[f"{name} (swiglu)"] = f"activation {act} is none of {set(_ACTIVATIONS)}"
            return
        seams, depth, local = self.seams, depth_of(name), threading.local()

        def keep_gate(module: nn.Module, args: Any, output: Tensor) -> None:
            if _SWIGLU in seams.listening:
                local.gate = output

        def keep_up(module: nn.Module, args: Any, output: Tensor) -> None:
            if _SWIGLU in seams.listening:
                local.up = output

        def emit_product(module: nn.Module, args: tuple[Any, ...]) -> None:
            if _SWIGLU not in seams.listening:
                return
            gate, up = getattr(local, "gate", None), getattr(local, "up", None)
            if gate is None or up is None:
                return
            local.gate = local.up = None
            seams.emit(
                SwiGLUCall(
                    module=name,
                    depth=depth,
                    rows=gate.shape[0],
                    gate=gate,
                    up=up,
                    output=args[0],
                    activation=activation,
                )
            )

        self._hook(mlp.gate_proj, keep_gate)
        self._hook(mlp.up_proj, keep_up)
        self._pre_hook(mlp.down_proj, emit_product)
