"""The calls of one run, kept by reference until its verdict is in: no copy, no synchronisation."""

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import Tensor

from tocsin.checker.lanes import Entry
from tocsin.core.calls import Call

_ALIVE_ANYWAY = frozenset(
    {
        "weight",
        "bias",
        "key_cache",
        "value_cache",
        "block_sums",
        "block_norms",
        "bias_sums",
        "block_weights",
        "weight_row_sums",
        "weight_trusted",
        "weight_norm_max",
        "inv_freq",
    }
)
"""Fields that live as long as the model: to keep them costs nothing."""

_PLACE = frozenset({"module", "depth", "rows"})


class KeptCalls:
    """References under a byte budget; a call that no longer fits is let go at once.

    Attributes:
        bytes_max: of activations that live longer for our sake; 0 keeps nothing.
    """

    def __init__(self, bytes_max: int = 0) -> None:
        """Nothing is kept before a gate asks for it."""
        self._heard: list[Call | Entry] = []
        self.bytes_max = bytes_max
        self._left = bytes_max
        self._readers: dict[type[Call], Callable[[Call], Any]] = {}

    def keep(self, call: Call) -> None:
        """Keep a call of any size, if there is room."""
        if not self.bytes_max:
            return
        read = self._readers.get(type(call))
        if read is None:
            read = self._readers[type(call)] = _reader(type(call))
        size = 0
        for value in read(call):
            if isinstance(value, Tensor):
                size += value.nbytes
        if size <= self._left:
            self._left -= size
            self._heard.append(call)

    def keep_small(self, call: Call) -> None:
        """Keep a call that waits for the end of the step anyway: it needs no room of ours."""
        if self.bytes_max:
            self._heard.append(call)

    def keep_entry(self, entry: Entry, size: int) -> None:
        """Keep a call that was taken as tensors; 0 bytes where it waits anyway."""
        if size <= self._left:
            self._left -= size
            self._heard.append(entry)

    @property
    def calls(self) -> list[Call]:
        """In the order in which they were heard."""
        return [one[0].build(*one[1]) if isinstance(one, tuple) else one for one in self._heard]

    def clear(self) -> None:
        """Let all go."""
        if self._heard:
            self._heard = []
        self._left = self.bytes_max


def _reader(kind: type[Call]) -> Callable[[Call], Any]:
    """The values of the fields that may hold activations."""
    known = _ALIVE_ANYWAY | _PLACE
    names = [one.name for one in dataclasses.fields(kind) if one.name not in known]
    if len(names) == 1:
        only = attrgetter(names[0])
        return lambda call: (only(call),)
    return attrgetter(*names)
