"""A bit of a stored key or value flips."""

from tocsin.chaos.bits import Patch, chosen_bit
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import chosen_depth, decode_places
from tocsin.core.calls import BatchCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "kv.bitflip",
    expect=("state.kv_page_sum",),
    priority=Priority.P0,
    source="vllm-project/vllm#31210: restored pages hold other data than was stored, text drifts",
    phase=Phase.BEFORE,
    params={"tensor": "v", "bit": None, "depth": None},
)
def bitflip(call: BatchCall, target: Target) -> Evidence | None:
    """Flip one bit of the K or V of an earlier token of a decoding request.

    Params: `tensor` k or v; `depth` None draws; `bit` 0 is the lowest, None the highest exponent
    bit that is not set. The flipped bit stays until it is repaired, overwritten or healed.
    """
    places = [place for place in decode_places(call, target) if place.offset > 0]
    if not places:
        return None
    place = places[target.below(len(places), "row")]
    depth = chosen_depth(target)
    half = ("k", "v").index(target.params["tensor"])
    offset = target.below(place.offset, "offset")
    data = target.pages.data
    column = target.below(data.shape[-1], "column")
    element = data[place.page, depth, half, offset, column]
    bit = chosen_bit(target.params["bit"], element)
    patch = Patch.flip(element, bit)
    target.memory["patch"] = patch
    return Evidence(
        place=f"page {place.page} depth {depth} {'KV'[half]}[{offset}, {column}] bit {bit}",
        before=patch.words(patch.before),
        after=patch.words(patch.after),
        requests=(place.request_id,),
    )


@bitflip.heal
def heal(target: Target) -> None:
    """Flip it back, unless the page was written since."""
    if "patch" in target.memory:
        target.memory["patch"].undo()


@bitflip.heal_verify
def is_healed(target: Target) -> bool:
    """The element no longer reads the flipped value."""
    return "patch" not in target.memory or target.memory["patch"].gone()
