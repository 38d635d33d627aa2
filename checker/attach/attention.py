"""Checked twins of Transformers' attention implementations, inert outside attached models."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from tocsin.checker.attach.telling import Teller
from tocsin.checker.lanes import Plan
from tocsin.core.calls import AttentionCall
from tocsin.core.seams import Collector, Log, Seams
from tocsin.core.terms import Operator, Phase

PREFIX = "tocsin_checked_"
_WRITTEN = (
    "key_sums",
    "key_reach",
    "value_sums",
    "value_norms",
    "value_low",
    "value_high",
)
_ATTENTION = (Operator.ATTENTION, Phase.AFTER)
_SITE = "tocsin_site"


@dataclass(slots=True)
class RopeTable:
    """Inverse frequencies as they were at attach, None where the family changes them itself."""

    inv_freq: Tensor | None
    scale: float


class AttentionSite:
    """What the wrapped functions need to know of one attention module.

    Attributes:
        teller: tells of its attention calls.
        heard: somebody listens to them; collect: and takes them without a record; log: where they
            may be put down; detailed: somebody wants what an engine noted when it wrote the keys
            and values. All as of `refresh`.
    """

    __slots__ = (
        "collect",
        "depth",
        "detailed",
        "heard",
        "log",
        "module",
        "rope",
        "seams",
        "teller",
    )

    def __init__(self, seams: Seams, module: str, depth: int | None, rope: RopeTable) -> None:
        """Nobody listens yet."""
        self.seams, self.module, self.depth, self.rope = seams, module, depth, rope
        self.heard = self.detailed = False
        self.collect: Collector | None = None
        self.log: Log | None = None
        self.teller = Teller(seams, partial(_plan, self))

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of the module belongs to no attached model."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Nor does one that was stored."""
        return type(None), ()

    def refresh(self) -> None:
        """Find out, between two steps, who listens and how: a call must not ask for it."""
        self.heard = _ATTENTION in self.seams.listening
        self.collect = self.seams.lean.get(Operator.ATTENTION)
        self.log = self.teller.log()
        self.detailed = Operator.ATTENTION in self.seams.detailed


class Sites:
    """Attention modules of all attached models: a module has its site as an attribute.

    A table of all would be asked for its length by every graph, and each further attach would
    have all of them traced anew.
    """

    def __setitem__(self, module: nn.Module, site: AttentionSite) -> None:
        """This module's model is attached."""
        setattr(module, _SITE, site)


SITES = Sites()


def forget(module: nn.Module) -> None:
    """The model of this module is detached."""
    vars(module).pop(_SITE, None)


def register_checked(implementation: str) -> str:
    """Register the checked twin of an attention implementation; returns its name.

    The twin stays registered: it is inert for modules that are not attached.
    """
    name = PREFIX + implementation
    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, _checked(implementation))
        masks: dict[str, Any] = AttentionMaskInterface._global_mapping
        if implementation in masks:
            AttentionMaskInterface.register(name, masks[implementation])
    return name


def _checked(implementation: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """An attention function that runs `implementation` and tells of the call."""
    of_one: dict[str, Any] = getattr(ALL_ATTENTION_FUNCTIONS, "_local_mapping", {})
    of_all: dict[str, Any] = AttentionInterface._global_mapping

    def checked_attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        function = of_one.get(implementation) or of_all.get(implementation)
        if function is None:
            modeling: Any = sys.modules[type(module).__module__]
            own_eager: Any = getattr(modeling, "eager_attention_forward", None)
            function = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, own_eager)
        output_RSHE, weights = function(module, query, key, value, attention_mask, **kwargs)
        site: AttentionSite | None = getattr(module, _SITE, None)
        # A graph is told of every call: who listens may not be asked while one is traced.
        if site is not None and (is_dynamo_compiling() or site.heard):
            _tell(
                site, implementation, module, query, key, value, attention_mask, kwargs, output_RSHE
            )
        return output_RSHE, weights

    return checked_attention


def _tell(
    site: AttentionSite,
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kwargs: dict[str, Any],
    output_RSHE: Tensor,
) -> None:
    is_causal = kwargs.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    causal = bool(is_causal) and query.shape[2] > 1
    if "flash" not in implementation:
        # Eager never masks by itself; the others do only where they were given no mask.
        causal = causal and mask is None and implementation != "eager"
    else:
        if mask is not None and mask.dim() == 2:
            mask = mask[:, None, None, :].bool()
        window = kwargs.get("sliding_window")
        if window and key.shape[2] > window:
            return  # the kernel masks by itself in a way that the record cannot say
    compiling = is_dynamo_compiling()
    noted = not compiling and site.detailed and "tocsin_step" in kwargs
    tensors = (
        key,
        query,
        value,
        output_RSHE.transpose(1, 2),
        mask,
        causal,
        kwargs.get("scaling"),
        implementation,
        kwargs.get("softcap") if implementation != "sdpa" else None,
        *(_noted(site, kwargs["tocsin_step"]) if noted else _NOTHING_NOTED),
    )
    if compiling or site.collect is None:
        site.teller.announce(*tensors)
    elif site.log is None:
        site.collect(site.teller.plan, *tensors)
    else:
        site.log.put((site.teller.plan, tensors))


_NOTHING_NOTED = (None,) * len(_WRITTEN)


def _noted(site: AttentionSite, step: Any) -> tuple[Tensor | None, ...]:
    """What an engine noted when it wrote the keys and values, if it did."""
    noted = getattr(step, "written", None)
    written = {} if noted is None else noted(site.depth)
    return tuple(map(written.get, _WRITTEN))


def _plan(site: AttentionSite) -> Plan:
    """The attention of one module."""

    def build(
        k: Tensor,
        q: Tensor,
        v: Tensor,
        output: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float | None,
        backend: str,
        softcap: float | None,
        *written: Tensor | None,
    ) -> AttentionCall:
        return AttentionCall(
            module=site.module,
            depth=site.depth,
            rows=q.shape[0],
            q=q,
            k=k,
            v=v,
            mask=mask,
            causal=causal,
            scale=scale,
            output=output,
            backend=backend,
            softcap=softcap,
            **dict(zip(_WRITTEN, written, strict=True)),
        )

    # Keys and values may be a cache's own memory, which grows in place from step to step.
    return Plan(AttentionCall, site.module, site.depth, build, activations=(1, 3), counted=1)
