"""Where in a worker's memory a fault can strike: rows that serve somebody, and their pages."""

from dataclasses import dataclass

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
