"""A decoding row is placed one position beside the length of its cache."""

from tocsin.chaos.bits import Patch
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import decode_places
from tocsin.core.calls import BatchCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "kv.off_by_one_pos",
    expect=("state.position_ledger",),
    priority=Priority.P0,
    source="unslothai/unsloth#3699, huggingface/transformers#48161: positions off by the padding",
    phase=Phase.BEFORE,
    params={"offset": -1},
)
def off_by_one_pos(call: BatchCall, target: Target) -> Evidence | None:
    """Move the position that one decoding row feeds in: rotation and slot both follow it.

    With an offset of -1 the new key and value overwrite those of the token before, and the slot
    that the row reads for the new token was never written. Params: `offset` in positions, not 0.
    Lasts for this step only: the next one is built from the ledger, the overwritten slot is not.
    """
    offset = int(target.params["offset"])
    if offset == 0:
        raise SpecError("kv.off_by_one_pos: offset is 0, expected 1, -1 or another step aside")
    places = [
        place for place in decode_places(call, target) if int(call.position_ids[place.row]) > 0
    ]
    if not places:
        return None
    place = places[target.below(len(places), "row")]
    element = call.position_ids.view(-1)[place.row]
    patch = Patch.overwrite(element, max(0, int(element) + offset))
    return Evidence(
        place=f"position_ids[{place.row}], cache of {int(patch.before)} tokens",
        before=str(int(patch.before)),
        after=str(int(patch.after)),
        requests=(place.request_id,),
    )
