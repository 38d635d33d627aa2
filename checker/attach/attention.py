"""Checked twins of Transformers' attention implementations, inert outside attached models."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from tocsin.core.calls import AttentionCall
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator, Phase

PREFIX = "tocsin_checked_"
_ATTENTION = (Operator.ATTENTION, Phase.AFTER)


@dataclass(slots=True)
class RopeTable:
    """Inverse frequencies as they were at attach, None where the family changes them itself."""

    inv_freq: Tensor | None
    scale: float


@dataclass(slots=True, eq=False)
class AttentionSite:
    """What the wrapped functions need to know of one attention module."""

    seams: Seams
    module: str
    depth: int | None
    rope: RopeTable


SITES: dict[nn.Module, AttentionSite] = {}
"""Attention modules of all attached models."""


def forget(module: nn.Module) -> None:
    """The model of this module is detached."""
    SITES.pop(module, None)


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
    """An attention function that runs `implementation` and announces the call."""

    def checked_attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        modeling: Any = sys.modules[type(module).__module__]
        own_eager: Any = getattr(modeling, "eager_attention_forward", None)
        function = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, own_eager)
        output_RSHE, weights = function(module, query, key, value, attention_mask, **kwargs)
        site = SITES.get(module)
        if site is not None and _ATTENTION in site.seams.listening:
            _emit_attention(
                site, implementation, module, query, key, value, attention_mask, kwargs, output_RSHE
            )
        return output_RSHE, weights

    return checked_attention


def _emit_attention(
    site: AttentionSite,
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    kwargs: dict[str, Any],
    output_RSHE: Tensor,
) -> None:
    is_flash = "flash" in implementation
    if is_flash and attention_mask is not None and attention_mask.dim() == 2:
        attention_mask = attention_mask[:, None, None, :].bool()
    window = kwargs.get("sliding_window")
    if is_flash and window and key.shape[2] > window:
        return  # the kernel masks by itself in a way that the record cannot say
    is_causal = kwargs.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    causal = bool(is_causal) and query.shape[2] > 1
    if not is_flash:
        # Eager never masks by itself; the others do only where they were given no mask.
        causal = causal and attention_mask is None and implementation != "eager"
    softcap = kwargs.get("softcap") if implementation != "sdpa" else None
    site.seams.emit(
        AttentionCall(
            module=site.module,
            depth=site.depth,
            rows=query.shape[0],
            q=query,
            k=key,
            v=value,
            mask=attention_mask,
            causal=causal,
            scale=kwargs.get("scaling"),
            output=output_RSHE.transpose(1, 2),
            backend=implementation,
            softcap=softcap,
        )
    )
