"""Two writers, one slot: another request's keys and values land where this one's belong."""

from tocsin.chaos.bits import Patch
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import model_depth
from tocsin.core.calls import KVUpdateCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Priority


@fault(
    "kv.write_race",
    expect=("state.kv_page_sum",),
    priority=Priority.P0,
    source="sgl-project/sglang#35049: a late write lands on the pages of their next owner",
)
def write_race(call: KVUpdateCall, target: Target) -> Evidence | None:
    """Write a neighbour's new K and V over the slot that this request has just written.

    The late writer comes after the last layer's update, and writes the token's slot of every
    layer, as a transfer would. The slot keeps the foreign data until it is repaired or healed.
    """
    rows = target.live_rows()
    one_token_a_row = call.slot_mapping.numel() == len(target.request_ids)
    if call.depth != model_depth(target) - 1 or not one_token_a_row or len(rows) < 2:
        return None
    first = target.below(len(rows), "victim")
    other = 1 + target.below(len(rows) - 1, "racer")
    victim, racer = rows[first], rows[(first + other) % len(rows)]
    slots = [int(call.slot_mapping[row]) for row in (victim, racer)]
    if min(slots) < 0 or slots[0] == slots[1]:
        return None
    size = target.pages.page_size
    (page, offset), (page_racer, offset_racer) = (divmod(slot, size) for slot in slots)
    data = target.pages.data
    foreign = data[page_racer, :, :, offset_racer].clone()
    patch = Patch.overwrite(data[page, :, :, offset], foreign)
    target.memory["patch"] = patch
    return Evidence(
        place=f"page {page} slot {offset}, all depths, written by row {victim} then row {racer}",
        before=patch.words(patch.before),
        after=patch.words(patch.after),
        requests=(target.request_ids[victim], target.request_ids[racer]),
    )


@write_race.heal
def heal(target: Target) -> None:
    """Give the slot its own data back, unless it was written since."""
    if "patch" in target.memory:
        target.memory["patch"].undo()


@write_race.heal_verify
def is_healed(target: Target) -> bool:
    """Nothing of the foreign row is left in the slot."""
    return "patch" not in target.memory or target.memory["patch"].gone()
