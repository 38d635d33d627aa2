"""A page is freed while a request still reads and writes it."""

from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import decode_places
from tocsin.core.calls import BatchCall
from tocsin.core.faulting import Evidence
from tocsin.core.protocols import PageTag
from tocsin.core.terms import Phase, Priority


@fault(
    "kv.use_after_free",
    expect=("state.page_owner", "state.page_epoch"),
    priority=Priority.P0,
    source="vllm-project/vllm#39146, vllm-project/vllm#15730: freed while a reader still uses it",
    phase=Phase.BEFORE,
)
def use_after_free(call: BatchCall, target: Target) -> Evidence | None:
    """Give the page that a decoding row works in back to the pool; its table still names it.

    The next request that needs a page is given this one, and both write it. Lasts until the
    request ends or starts over, or the page is counted as its own again.
    """
    pages = target.pages
    places = [
        place
        for place in decode_places(call, target)
        if pages.tag(place.page).owner == place.request_id
    ]
    if not places:
        return None
    place = places[target.below(len(places), "row")]
    before = pages.tag(place.page)
    pages.miscount(place.page)
    target.memory.update(request=place.request_id, page=place.page, tag=before)
    return Evidence(
        place=f"page {place.page}, entry {place.index} in the table of row {place.row}",
        before=_words(before),
        after=_words(pages.tag(place.page)),
        requests=(place.request_id,),
    )


def _words(tag: PageTag) -> str:
    return f"{tag.owner or 'nobody'}'s, epoch {tag.epoch}, held by {len(tag.holders)}"


@use_after_free.heal
def heal(target: Target) -> None:
    """Count the page as its request's again, unless it was given to somebody since."""
    if "page" in target.memory:
        target.pages.recount(target.memory["page"], target.memory["tag"])


@use_after_free.heal_verify
def is_healed(target: Target) -> bool:
    """The request's table names no page that is not the request's."""
    if "page" not in target.memory:
        return True
    page, request = target.memory["page"], target.memory["request"]
    return page not in target.pages.table(request) or (
        target.pages.tag(page).owner == request
        and target.pages.tag(page).epoch == target.memory["tag"].epoch
    )
