"""One row is rotated as if it stood at another position."""

import torch

from tocsin.chaos.bits import Patch
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import rotary_frequencies
from tocsin.core.calls import RopeCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Priority


@fault(
    "rope.pos_jump",
    expect=("numerical.rope_table",),
    priority=Priority.P0,
    source="unslothai/unsloth#3699: rows are rotated by the position of another, longer one",
    params={"offset": 7},
)
def pos_jump(call: RopeCall, target: Target) -> Evidence | None:
    """Replace a decoding row's cos and sin by those of a position further on.

    The first layer has been rotated by then, all later ones of this step are rotated wrongly and
    cache keys that say so. Lengths stay right and nothing is raised. Params: `offset` in
    positions, not 0. Lasts for this step only; the keys that it wrote stay.
    """
    offset = int(target.params["offset"])
    if offset == 0:
        raise SpecError("rope.pos_jump: offset is 0, expected another number of positions")
    rows = target.live_rows()
    name, inv_freq = rotary_frequencies(target, "rope.pos_jump")
    one_position_a_row = call.cos.shape[:2] == (len(target.request_ids), 1)
    if call.depth or not rows or not one_position_a_row:
        return None
    if call.cos.shape[-1] != 2 * inv_freq.numel():
        return None
    row = rows[target.below(len(rows), "row")]
    position = int(call.position_ids.expand(len(target.request_ids), 1)[row])
    angle = (position + offset) * inv_freq.detach().double()
    angle = torch.cat((angle, angle))
    patches = [
        Patch.overwrite(table[row, 0], (turned * call.table_scale).to(table.dtype))
        for table, turned in ((call.cos, angle.cos()), (call.sin, angle.sin()))
    ]
    return Evidence(
        place=f"cos and sin of row {row} at position {position}, by {name}",
        before="; ".join(patch.words(patch.before) for patch in patches),
        after="; ".join(patch.words(patch.after) for patch in patches),
        requests=(target.request_ids[row],),
    )
