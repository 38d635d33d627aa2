"""A block table keeps a page that was freed when its request was preempted."""

from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import Place, RepointedEntry, decode_places
from tocsin.core.calls import BatchCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "kv.stale_after_preempt",
    expect=("state.page_epoch", "state.page_owner"),
    priority=Priority.P0,
    source="vllm-project/vllm#52234: a stale reference is followed, HTTP 200 with garbage",
    phase=Phase.BEFORE,
)
def stale_after_preempt(call: BatchCall, target: Target) -> Evidence | None:
    """Let a table entry name a page that is no longer its request's.

    A request that was preempted and has come back is given its own old page; as long as there is
    none, a running request is given a freed page. What it reads there is of an earlier epoch and
    what it writes there is lost. Lasts while the step's block table does.
    """
    if call.block_table is None:
        return None
    places = decode_places(call, target)
    returned = [(place, old) for place in places if (old := _old_page(place, target)) is not None]
    _remember(places, target)
    if returned:
        place, stale = returned[target.below(len(returned), "row")]
        origin = "its own page before it was preempted"
    else:
        if not places:
            return None
        place = places[target.below(len(places), "row")]
        freed = _freed_pages(target, place)
        if not freed:
            return None
        stale = freed[target.below(len(freed), "page")]
        origin = "a freed page"
    entry = RepointedEntry.point(call.block_table, place, stale)
    target.memory["entry"] = entry
    return Evidence(
        place=f"block table, row {place.row} entry {place.index}: {origin}",
        before=f"page {entry.before} epoch {target.pages.tag(entry.before).epoch}",
        after=f"page {entry.after} epoch {target.pages.tag(entry.after).epoch}",
        requests=(place.request_id,),
    )


def _remember(places: tuple[Place, ...], target: Target) -> None:
    """Keep who was where: (request, entry) → page."""
    seen = target.memory.setdefault("seen", {})
    for place in places:
        seen[place.request_id, place.index] = place.page


def _old_page(place: Place, target: Target) -> int | None:
    """The page that this entry named before a preemption, when it is not the request's any more."""
    old: int | None = target.memory.get("seen", {}).get((place.request_id, place.index))
    if old is None or old == place.page or old in target.pages.table(place.request_id):
        return None
    return old


def _freed_pages(target: Target, place: Place) -> list[int]:
    """Pages that were used once and now belong to nobody; page 0 is the null page.

    Where there are some, only those of another epoch than the page that the entry names.
    """
    tags = {page: target.pages.tag(page) for page in range(1, target.pages.data.shape[0])}
    freed = [page for page, tag in tags.items() if not tag.owner and tag.epoch > 0]
    epoch = target.pages.tag(place.page).epoch
    return [page for page in freed if tags[page].epoch != epoch] or freed


@stale_after_preempt.heal
def heal(target: Target) -> None:
    """Point the entry at its page again, if the step still has it."""
    if "entry" in target.memory:
        target.memory["entry"].undo()


@stale_after_preempt.heal_verify
def is_healed(target: Target) -> bool:
    """The entry no longer names the stale page."""
    return "entry" not in target.memory or target.memory["entry"].gone()
