"""The rotary function of a modeling file, wrapped while some model of the file is attached."""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tocsin.checker.attach.attention import AttentionSite
from tocsin.checker.attach.taps import Shelf
from tocsin.checker.lanes import Plan, static_form
from tocsin.core.calls import RopeCall
from tocsin.core.seams import Log


@dataclass(frozen=True, slots=True)
class RopePlace:
    """Where a rotation is told of.

    Attributes:
        log: where it may be put down, with its plan; None: it is announced.
    """

    plan: Plan
    announce: Callable[..., None]
    log: Log | None


CURRENT = Shelf()
"""The attention module that a forward is in, none outside attached models."""

_LOCK = threading.Lock()
_USERS: dict[str, tuple[int, Callable[..., Any]]] = {}
"""Modeling module → how many attached models use it, and its own function."""


def wrap(module_name: str) -> None:
    """Put the announcing function in place of a modeling file's own, once for all models."""
    modeling: Any = sys.modules[module_name]
    with _LOCK:
        users, original = _USERS.get(module_name, (0, None))
        if original is None:
            original = modeling.apply_rotary_pos_emb
            modeling.apply_rotary_pos_emb = _announcing_rotary(original)
        _USERS[module_name] = (users + 1, original)


def unwrap(module_name: str) -> None:
    """Put the modeling file's own function back when the last attached model has gone."""
    with _LOCK:
        users, original = _USERS[module_name]
        if users > 1:
            _USERS[module_name] = (users - 1, original)
            return
        del _USERS[module_name]
        modeling: Any = sys.modules[module_name]
        modeling.apply_rotary_pos_emb = original


def _announcing_rotary(original: Callable[..., Any]) -> Callable[..., Any]:
    here = CURRENT.by_thread

    def apply_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        rotated = original(q, k, cos, sin, *args, **kwargs)
        if is_dynamo_compiling():
            kept = CURRENT.now()
            if kept.place is not None and kept.position_ids is not None:
                kept.place.announce(q, k, cos, sin, kept.position_ids, *rotated)
            return rotated
        place, position_ids = here.place, here.position_ids
        if place is None or position_ids is None:
            return rotated
        q_out, k_out = rotated
        tensors = (q, k, cos, sin, position_ids, q_out, k_out)
        if place.log is not None:
            place.log.put((place.plan, tensors))
        else:
            place.announce(*tensors)
        return rotated

    return apply_rotary_pos_emb


def rope_plan(site: AttentionSite) -> Plan:
    """The rotations of one attention module."""

    def build(
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        position_ids: Tensor,
        q_out: Tensor,
        k_out: Tensor,
    ) -> RopeCall:
        return RopeCall(
            module=site.module,
            depth=site.depth,
            rows=q.shape[0],
            q=q,
            k=k,
            cos=cos,
            sin=sin,
            position_ids=position_ids,
            q_out=q_out,
            k_out=k_out,
            inv_freq=site.rope.inv_freq,
            table_scale=site.rope.scale,
        )

    return Plan(
        RopeCall,
        site.module,
        site.depth,
        build,
        (site.rope.inv_freq,),
        static_form(id(site.rope.inv_freq), site.rope.scale),
        (site.rope.scale,),
        (0, 1, 5, 6),
        made=2,
    )


def is_wrapped(module_name: str) -> bool:
    """Whether a modeling file's rotary function is replaced just now."""
    return module_name in _USERS
