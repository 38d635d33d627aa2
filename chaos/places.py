"""Where in a worker's memory a fault can strike: rows that serve somebody, and their pages."""

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from tocsin.chaos.contract import Target
from tocsin.core.calls import AttentionCall, BatchCall
from tocsin.core.errors import SpecError


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


def masked_rows(call: AttentionCall, target: Target) -> dict[int, int]:
    """Of each decoding row that serves a request: how many keys its mask [R,1,1,L] shows it."""
    mask, rows = call.mask, len(target.request_ids)
    if mask is None or mask.dtype is not torch.bool or mask.shape[:3] != (rows, 1, 1):
        return {}
    lengths = mask.flatten(1).sum(dim=1).tolist()
    return {row: int(lengths[row]) for row in target.live_rows() if lengths[row] > 0}


def is_one_a_row(output: Tensor, target: Target) -> bool:
    """A decode step's output [R,1,X] or [R,X]: one line a row, idle rows included."""
    return output.numel() == len(target.request_ids) * output.shape[-1]


def line_at(output: Tensor, row: int) -> Tensor:
    """The line [X] of one row in an output [R,1,X] or [R,X], as a view."""
    lead = torch.unravel_index(torch.tensor(row), output.shape[:-1])
    return output.detach()[tuple(int(axis) for axis in lead)]


def rotary_frequencies(target: Target, kind: str) -> tuple[str, Tensor]:
    """Name and tensor [E/2] of the model's live table of rotary frequencies.

    Raises:
        SpecError: the model has none.
    """
    for name, buffer in target.model.named_buffers():
        if name.rpartition(".")[2] == "inv_freq":
            return name, buffer
    raise SpecError(f"{kind}: the model has no buffer named inv_freq; it rotates otherwise")
