"""Where in a worker's memory a fault can strike: rows that serve somebody, and their pages."""

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from tocsin.chaos.contract import Target
from tocsin.core.calls import BatchCall


@dataclass(frozen=True, slots=True)
class Place:
    """The page in which a decoding row works.

    Attributes:
        row: row of the step.
        index: number of the page in the row's table.
        offset: slot of the page that this step writes; slots below it hold earlier tokens.
    """

    row: int
    request_id: str
    index: int
    page: int
    offset: int


@dataclass(slots=True)
class RepointedEntry:
    """An entry of a block table that a fault let name another page.

    Attributes:
        table: the step's table [R,n]; an engine that makes a new one for each step drops it, and
            the damage with it.
        before, after: the pages that the entry named.
    """

    table: weakref.ref[Tensor]
    row: int
    index: int
    before: int
    after: int

    @classmethod
    def point(cls, table: Tensor, place: Place, page: int) -> "RepointedEntry":
        """Let the entry through which a row writes name `page`."""
        before = int(table[place.row, place.index])
        table[place.row, place.index] = page
        after = int(table[place.row, place.index])
        return cls(weakref.ref(table), place.row, place.index, before, after)

    def gone(self) -> bool:
        """The table is no more, or its entry names another page than the fault's."""
        table = self.table()
        return table is None or int(table[self.row, self.index]) != self.after

    def undo(self) -> None:
        """Name the page again that was named before, unless the entry was written since."""
        table = self.table()
        if table is not None and not self.gone():
            with torch.inference_mode():
                table[self.row, self.index] = self.before


def is_decode(call: BatchCall) -> bool:
    """Every row adds one token; a prefill chunk adds several to one row."""
    rows = len(call.request_ids)
    return rows > 0 and call.input_ids.numel() == rows


def decode_places(call: BatchCall, target: Target) -> tuple[Place, ...]:
    """For each row that serves a request: the page that this decode step writes."""
    if not is_decode(call):
        return ()
    size = target.pages.page_size
    places = []
    for row, request_id in enumerate(call.request_ids):
        table = target.pages.table(request_id) if request_id else ()
        index, offset = divmod(int(call.position_ids[row]), size)
        if index < len(table):
            places.append(Place(row, request_id, index, table[index], offset))
    return tuple(places)


def model_depth(target: Target) -> int:
    """Number of transformer layers, which is the second axis of the page pool."""
    return int(target.pages.data.shape[1])


def chosen_depth(target: Target) -> int:
    """The depth that the spec names, or one drawn for this occurrence."""
    depth = target.params["depth"]
    return target.below(model_depth(target), "depth") if depth is None else int(depth)
