"""A NaN stays behind in the unused tail of a page of values."""

from tocsin.chaos.bits import Patch
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import chosen_depth, decode_places
from tocsin.core.calls import BatchCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "kv.poisoned_page",
    expect=("state.kv_page_sum",),
    priority=Priority.P0,
    source="vllm-project/vllm#50283 and #39283: NaN in a recycled block empties later answers",
    phase=Phase.BEFORE,
    params={"value": "nan", "depth": None},
)
def poisoned_page(call: BatchCall, target: Target) -> Evidence | None:
    """Leave one NaN in the last row of a V page that nobody has written or will write this step.

    The mask hides the row's weight, not its value: 0 * NaN is NaN, and from there every later
    token of every request on the page is lost, with HTTP 200. Params: `value` nan, inf or -inf.
    """
    last = target.pages.page_size - 1
    places = [place for place in decode_places(call, target) if place.offset < last]
    if not places:
        return None
    place = places[target.below(len(places), "row")]
    depth = chosen_depth(target)
    data = target.pages.data
    column = target.below(data.shape[-1], "column")
    element = data[place.page, depth, 1, last, column]
    patch = Patch.overwrite(element, float(target.params["value"]))
    target.memory["patch"] = patch
    return Evidence(
        place=f"page {place.page} depth {depth} V[{last}, {column}], unused tail",
        before=patch.words(patch.before),
        after=patch.words(patch.after),
        requests=(place.request_id,),
    )


@poisoned_page.heal
def heal(target: Target) -> None:
    """Put the old value back, unless the row was written or zeroed since."""
    if "patch" in target.memory:
        target.memory["patch"].undo()


@poisoned_page.heal_verify
def is_healed(target: Target) -> bool:
    """The element no longer reads the poison."""
    return "patch" not in target.memory or target.memory["patch"].gone()
