"""Seams in a Transformers decoder: attention, rotary embedding, gated activation, residuals."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from tocsin.checker.attach.attention import (
    PREFIX,
    SITES,
    AttentionSite,
    RopeTable,
    forget,
    register_checked,
)
from tocsin.checker.attach.modules import ModuleAdapter, depth_of
from tocsin.checker.attach.rotary import CURRENT, RopePlace, rope_plan, unwrap, wrap
from tocsin.checker.attach.taps import Forward, Look, Shelf
from tocsin.checker.attach.telling import Teller, first_of
from tocsin.checker.collection import can_be_read_off
from tocsin.checker.lanes import Plan
from tocsin.core.calls import ResidualCall, SwiGLUCall
from tocsin.core.seams import Seams
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


class _Stream:
    """The residual stream through one decoder layer: its two sums.

    Attributes:
        sums: tellers of both, first the one after attention.
    """

    def __init__(self, seams: Seams, name: str, depth: int | None) -> None:
        """No thread is in the layer."""
        self._seams, self._name, self._depth = seams, name, depth
        self._shelf = Shelf()
        self.sums = (self._sum("attention_add"), self._sum("mlp_add"))

    def read_off(self) -> bool:
        """Whether both sums are put together from other calls, so that nothing need be kept."""
        found = all(can_be_read_off(one.plan, self._seams) for one in self.sums)
        for one in self.sums:
            one.plan.read_off = found
        return found

    def around(self) -> Look | None:
        """Of the layer: what came in, and its second sum."""
        if self.read_off():
            return None
        shelf, add = self._shelf, self._adds(self.sums[1])

        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            kept = shelf.now()
            kept.x, kept.delta = first_of(args, kwargs), None

        def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            add(output[0] if isinstance(output, tuple) else output)
            shelf.now().x = None

        return Look(before=before, after=after)

    def delta(self) -> Look | None:
        """Of a module whose output is added to the stream."""
        if self.read_off():
            return None
        shelf = self._shelf

        def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            kept = shelf.now()
            if kept.x is not None:
                kept.delta = output[0] if isinstance(output, tuple) else output

        return Look(after=after)

    def middle(self) -> Look | None:
        """Of the norm between the two halves: its input is the first sum."""
        if self.read_off():
            return None
        add = self._adds(self.sums[0])
        return Look(before=lambda args, kwargs: add(first_of(args, kwargs)))

    def _sum(self, place: str) -> Teller:
        depth, module = self._depth, f"{self._name}.{place}"

        def build(x: Tensor, delta: Tensor, output: Tensor) -> ResidualCall:
            rows = output.shape[0]
            return ResidualCall(
                module=module, depth=depth, rows=rows, x=x, delta=delta, output=output
            )

        return Teller(
            self._seams,
            lambda: Plan(ResidualCall, module, depth, build, activations=(0, 1, 2), made=3),
        )

    def _adds(self, teller: Teller) -> Callable[[Tensor], None]:
        """Announces one of the two sums of the layer."""
        shelf, announce = self._shelf, teller.announce

        def add(output: Tensor) -> None:
            kept = shelf.now()
            x, delta = kept.x, kept.delta
            if x is None or delta is None:
                return
            kept.x, kept.delta = output, None
            announce(x, delta, output)

        return add


class TransformersAdapter(ModuleAdapter):
    """Seams of a decoder whose attention goes through `ALL_ATTENTION_FUNCTIONS`."""

    def _attach(self) -> None:
        self._tables: dict[str | None, RopeTable] = {}
        super()._attach()
        names = {module: name for name, module in self.model.named_modules()}
        attentions = [m for m in names if hasattr(m, "q_proj") and hasattr(m, "k_proj")]
        if not attentions:
            self.skipped["attention"] = "no module has q_proj and k_proj"
            return
        for module in attentions:
            self._attach_attention(names[module], module)
        self._wrap_rotary({type(module).__module__ for module in attentions})
        self._wrap_attention(attentions)
        for module, name in names.items():
            if hasattr(module, "self_attn") and hasattr(module, "mlp"):
                self._attach_layer(name, module)

    def _attach_attention(self, name: str, module: nn.Module) -> None:
        kind = getattr(module, "layer_type", None)
        if kind not in self._tables:  # one tensor for all layers: what is shared is checked once
            self._tables[kind] = self._rope_table(kind)
        site = AttentionSite(self.seams, name, depth_of(name), self._tables[kind])
        SITES[module] = site
        self._undo.append(partial(forget, module))
        teller = Teller(self.seams, partial(rope_plan, site))
        self.taps.add(module, partial(_rope_look, teller), _ROPE, state=teller.log)
        self.taps.follow(site.refresh)

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
        sandwich = hasattr(layer, "pre_feedforward_layernorm")
        middle = getattr(
            layer, "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm", None
        )
        after_mlp = getattr(layer, "post_feedforward_layernorm", None) if sandwich else layer.mlp
        after_attention = layer.post_attention_layernorm if sandwich else layer.self_attn
        if not isinstance(middle, nn.Module) or not isinstance(after_mlp, nn.Module):
            self.skipped[f"{name} (residual)"] = "its norms are not where Llama or Gemma has them"
            return

        stream = _Stream(self.seams, name, depth_of(name))
        for module, look in (
            (layer, stream.around),
            (after_attention, stream.delta),
            (middle, stream.middle),
            (after_mlp, stream.delta),
        ):
            self.taps.add(module, look, _RESIDUAL, state=stream.read_off)
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
        gate = _Gate(self.seams, name, depth_of(name), activation)
        for module, look in (
            (mlp.gate_proj, Look(after=gate.keep_gate)),
            (mlp.up_proj, Look(after=gate.keep_up)),
            (mlp.down_proj, Look(before=gate.before_down)),
        ):
            unless = partial(_unless, gate.read_off, look)
            self.taps.add(module, unless, _SWIGLU, state=gate.read_off)


class _Gate:
    """A gated activation: what came before it, until its result is an input."""

    def __init__(self, seams: Seams, name: str, depth: int | None, activation: str) -> None:
        """No thread is in the layer."""
        self._seams, self._shelf = seams, Shelf()

        def build(gate: Tensor, up: Tensor, output: Tensor) -> SwiGLUCall:
            return SwiGLUCall(
                module=name,
                depth=depth,
                rows=gate.shape[0],
                gate=gate,
                up=up,
                output=output,
                activation=activation,
            )

        settings = (activation,)
        self._teller = Teller(
            seams,
            lambda: Plan(SwiGLUCall, name, depth, build, (), settings, settings, (0, 1, 2), made=3),
        )

    def keep_gate(self, args: Any, kwargs: Any, output: Tensor) -> None:
        """Of the gate projection."""
        self._shelf.now().gate = output

    def keep_up(self, args: Any, kwargs: Any, output: Tensor) -> None:
        """Of the other projection."""
        self._shelf.now().up = output

    def before_down(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Of the projection behind: its input is the result."""
        kept = self._shelf.now()
        gate, up = kept.gate, kept.up
        if gate is None or up is None:
            return
        kept.gate = kept.up = None
        self._teller.announce(gate, up, first_of(args, kwargs))

    def read_off(self) -> bool:
        """Whether the call is put together from others, so that nothing need be kept."""
        self._teller.plan.read_off = can_be_read_off(self._teller.plan, self._seams)
        return self._teller.plan.read_off


def _unless(read_off: Callable[[], bool], look: Look) -> Look | None:
    return None if read_off() else look


def _rope_look(teller: Teller) -> Look:
    """Let the rotary function know which attention module it works for."""
    teller.renew()
    place = RopePlace(teller.plan, teller.announce, teller.log())

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept = CURRENT.now()
        kept.place, kept.position_ids = place, kwargs.get("position_ids")

    def leave() -> None:  # also after an exception, or the next model would be heard in our name
        kept = CURRENT.now()
        kept.place = kept.position_ids = None

    def wrap(forward: Forward) -> Forward:
        here = CURRENT.by_thread

        def inside(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():  # what fails in a trace is run again without one
                enter(args, kwargs)
                output = forward(*args, **kwargs)
                leave()
                return output
            here.place, here.position_ids = place, kwargs.get("position_ids")
            try:
                return forward(*args, **kwargs)
            finally:
                here.place = here.position_ids = None

        return inside

    return Look(before=enter, leave=leave, wrap=wrap)
