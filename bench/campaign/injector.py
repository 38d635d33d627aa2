"""Arms faults in a model: at its seams, in its rotary table, inside attention, in its cache."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn

from tocsin.bench.campaign import attention
from tocsin.bench.campaign.sites import SITES, Fault, Site
from tocsin.bench.campaign.words import Change
from tocsin.core.calls import Call
from tocsin.core.errors import ContractError, FaultDidNotFire
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator, Phase

_OPERATORS = sorted({site.operator for site in SITES.values() if site.operator is not None})


class Injector:
    """Reaches into one model; with nothing armed it changes nothing.

    Must be made before any detector hooks the model, so that each sees what the fault did.

    Attributes:
        changes: the first change of each armed fault that fired, by its key.
        places: where each armed fault acts, by its key: a module, or a depth of the cache.
        deaf_to: operators at whose seams nothing acts, because `act` is called for them.
    """

    def __init__(self, model: nn.Module, seams: Seams) -> None:
        """Listen at the seams and hook what has none."""
        self.changes: dict[str, Change] = {}
        self.places: dict[str, str] = {}
        self.deaf_to: set[Operator] = set()
        self._names: dict[str, tuple[str, ...]] = {}
        self._armed: dict[tuple[str, str], list[Fault]] = {}
        self._undo: list[Callable[[], object]] = []
        self._modules = dict(model.named_modules())
        self._depths = int(model.config.num_hidden_layers)  # type: ignore[union-attr,arg-type]
        for operator in _OPERATORS:
            self._undo.append(seams.add_fault(operator, Phase.AFTER, self._hear))
        for name, module in self._modules.items():
            if name.endswith("rotary_emb"):
                self._undo.append(module.register_forward_hook(self._table_hook(name)).remove)
            if name.endswith("self_attn"):
                attention.TAPS[module] = self._tap(name)
                self._undo.append(partial(attention.TAPS.pop, module, None))

    def close(self) -> None:
        """Take everything out again."""
        while self._undo:
            self._undo.pop()()

    def arm(self, faults: Iterable[Fault]) -> None:
        """From the next forward pass on these faults act, each in a place of its own.

        Transient ones act in one pass only; `rest` arms what remains for the next.
        """
        self._armed = {}
        self.changes, self.places = {}, {}
        for fault in faults:
            site = SITES[fault.site]
            if site.id.startswith("kv_"):
                continue
            place = self.places[fault.key] = self._place(site, fault)
            self._armed.setdefault((_seam(site), place), []).append(fault)

    def rest(self) -> None:
        """The step of the faults is over: only what is stored stays wrong."""
        self._armed = {
            place: kept
            for place, faults in self._armed.items()
            if (kept := [fault for fault in faults if SITES[fault.site].persistent])
        }

    def in_cache(self, faults: Iterable[Fault], layers: list[tuple[Tensor, Tensor]]) -> None:
        """Change stored keys and values; a layer that is changed becomes a copy first.

        Args:
            layers: keys and values [R,K,L,E] of each depth; the list is changed.
        """
        for fault in faults:
            if fault.site in ("kv_k", "kv_v"):
                depth = fault.below(len(layers), "depth")
                self.places[fault.key] = f"cache, depth {depth}"
                half = 0 if fault.site == "kv_k" else 1
                copies = [tensor.clone() for tensor in layers[depth]]
                self._note(fault, SITES[fault.site].inject(copies[half], fault))
                layers[depth] = (copies[0], copies[1])

    def require_fired(self, faults: Iterable[Fault]) -> None:
        """A fault that left no evidence is not a trial.

        Raises:
            FaultDidNotFire: names the first one.
        """
        for fault in faults:
            change = self.changes.get(fault.key)
            if change is None or not change.fired:
                raise FaultDidNotFire(
                    f"campaign: fault {fault.key} at {fault.site} ({fault.bits}) left "
                    f"{'no evidence' if change is None else 'its word as it was'}, expected a "
                    "changed word; the model has no such place or its seam is not announced"
                )

    def _place(self, site: Site, fault: Fault) -> str:
        names = self._names.get(site.id)
        if names is None:
            names = self._names[site.id] = self._names_of(site)
        return names[fault.below(len(names), "module")]

    def _names_of(self, site: Site) -> tuple[str, ...]:
        """Names of a site's modules as its seam announces them."""
        attentions = [name for name in self._modules if name.endswith("self_attn")]
        if site.operator in (Operator.ROPE, Operator.ATTENTION):
            found = attentions
        elif site.operator is Operator.SWIGLU:
            found = [name for name in self._modules if name.endswith(".mlp")]
        elif site.operator is Operator.RESIDUAL:
            layers = [name.removesuffix(".self_attn") for name in attentions]
            found = [f"{name}.{add}" for name in layers for add in ("attention_add", "mlp_add")]
        else:
            found = [name for name in self._modules if name.endswith(site.suffix)]
        if not found:
            raise ContractError(
                f"campaign: the model has no module for site {site.id} (…{site.suffix}), expected "
                "a Llama-like decoder; leave the site out"
            )
        return tuple(found)

    def act(self, call: Call) -> None:
        """Let the faults of this call act on it."""
        for fault in self._armed.get((str(call.operator), call.module), ()):
            self._act(fault, call)

    def _hear(self, call: Call) -> None:
        if call.operator not in self.deaf_to:
            self.act(call)

    def _act(self, fault: Fault, place: Any) -> None:
        site = SITES[fault.site]
        if site.persistent or fault.key not in self.changes:
            self._note(fault, site.inject(place, fault))

    def _note(self, fault: Fault, change: Change) -> None:
        self.changes.setdefault(fault.key, change)

    def _table_hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: tuple[Tensor, Tensor]) -> None:
            for fault in self._armed.get(("cos_sin", name), ()):
                self._act(fault, output)

        return hook

    def _tap(self, name: str) -> attention.Tap:
        def tap(which: str, tensor_RHSL: Tensor) -> None:
            for fault in self._armed.get((which, name), ()):
                self._act(fault, tensor_RHSL)

        return tap


def _seam(site: Site) -> str:
    return str(site.operator) if site.operator is not None else site.id
