"""One request's block table points at another's private page."""

from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import Place, RepointedEntry, decode_places
from tocsin.core.calls import BatchCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "kv.page_alias",
    expect=("state.page_owner", "state.page_epoch"),
    priority=Priority.P0,
    source="ml-explore/mlx-lm#965: 16 concurrent clients get answers to each other's prompts",
    phase=Phase.BEFORE,
)
def page_alias(call: BatchCall, target: Target) -> Evidence | None:
    """Let the page that row A writes in this step be the one that row B writes.

    A reads B's keys and values and writes its own among them, B reads what A left there, and
    A's own page lacks the token for good. Lasts while the step's block table does.
    """
    if call.block_table is None:
        return None
    places = [place for place in decode_places(call, target) if _is_private(place, target)]
    if len(places) < 2:
        return None
    first = target.below(len(places), "row")
    other = 1 + target.below(len(places) - 1, "owner")
    mine, theirs = places[first], places[(first + other) % len(places)]
    entry = RepointedEntry.point(call.block_table, mine, theirs.page)
    target.memory["entry"] = entry
    return Evidence(
        place=f"block table, row {mine.row} entry {mine.index} (page of row {theirs.row})",
        before=f"page {entry.before}",
        after=f"page {entry.after}",
        requests=(mine.request_id, theirs.request_id),
    )


def _is_private(place: Place, target: Target) -> bool:
    return target.pages.tag(place.page).owner == place.request_id


@page_alias.heal
def heal(target: Target) -> None:
    """Point the entry at its own page again, if the step still has it."""
    if "entry" in target.memory:
        target.memory["entry"].undo()


@page_alias.heal_verify
def is_healed(target: Target) -> bool:
    """The entry no longer names the other's page."""
    return "entry" not in target.memory or target.memory["entry"].gone()
