"""The form of a call: all that can be known of it without reading a value.

Equal forms have equal verdicts under a check that looks at metadata only, and calls of equal form
can be stacked and checked together.
"""

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from torch import Tensor

from tocsin.core.calls import (
    AttentionCall,
    Call,
    EmbeddingCall,
    KVUpdateCall,
    LinearCall,
    LogitsCall,
    ResidualCall,
    RMSNormCall,
    RopeCall,
    SwiGLUCall,
)

METADATA_ONLY = frozenset({"memory.tensor_contract", "state.kv_shape"})
"""Checks whose ratio depends on the form alone."""

FORMS_MAX = 4096

Form = tuple[Any, ...]

_KINDS: tuple[type[Call], ...] = (
    AttentionCall,
    EmbeddingCall,
    KVUpdateCall,
    LinearCall,
    LogitsCall,
    ResidualCall,
    RMSNormCall,
    RopeCall,
    SwiGLUCall,
)

_PLACE = ("module", "depth")

_READERS: dict[type[Call], Callable[[Call], tuple[Any, ...]]] = {
    kind: attrgetter(*(one.name for one in fields(kind) if one.name not in _PLACE))
    for kind in _KINDS
}


def form_of(call: Call) -> Form | None:
    """Shapes, strides, dtypes, devices, layouts and settings; None where they cannot be told."""
    read = _READERS.get(type(call))
    if read is None:
        return None
    try:
        return (
            type(call),
            *(
                (value.shape, value.stride(), value.dtype, value.device, value.layout)
                if isinstance(value, Tensor)
                else value
                for value in read(call)
            ),
        )
    except RuntimeError:  # a tensor without strides
        return None


class SoundForms:
    """Forms on which every metadata check was clean."""

    def __init__(self) -> None:
        """None is known yet."""
        self._known: set[Form] = set()

    def __contains__(self, form: Form) -> bool:
        """Whether the form was seen, and was clean."""
        return form in self._known

    def add(self, form: Form) -> None:
        """It was clean; the set starts over when it is full."""
        if len(self._known) >= FORMS_MAX:
            self._known.clear()
        self._known.add(form)
