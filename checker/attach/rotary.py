"""The rotary function of a modeling file, wrapped while some model of the file is attached."""

import sys
import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tocsin.checker.attach.attention import AttentionSite
from tocsin.core.calls import RopeCall


class _Current(threading.local):
    """The attention module that this thread is in, None outside attached models."""

    site: AttentionSite | None = None
    position_ids: Tensor | None = None


CURRENT = _Current()
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
    def apply_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        rotated = original(q, k, cos, sin, *args, **kwargs)
        site = CURRENT.site
        position_ids = CURRENT.position_ids
        if site is None or position_ids is None:
            return rotated
        seams = site.seams
        q_out, k_out = rotated
        seams.emit(
            RopeCall(
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
        )
        return q_out, k_out

    return apply_rotary_pos_emb


def is_wrapped(module_name: str) -> bool:
    """Whether a modeling file's rotary function is replaced just now."""
    return module_name in _USERS
