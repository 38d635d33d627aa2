"""The page pool shrinks under load, and requests take each other's pages."""

from tocsin.chaos.contract import Target, fault
from tocsin.core.calls import BatchCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority

_ROOM = 4
"""Pages beyond those of the longest request under way: it must be able to come to its end."""


@fault(
    "kv.eviction_storm",
    expect=("service.preemption_rate",),
    priority=Priority.P1,
    source="inference-sim/inference-sim#297: a pool below what runs preempts and replays for ever",
    phase=Phase.BEFORE,
    params={"left": None},
    load={"concurrency": 12, "max_new_tokens": 40},
)
def eviction_storm(call: BatchCall, target: Target) -> Evidence | None:
    """Let only so many pages be in use at a time from now on.

    Whoever needs a page takes those of the request that was admitted last, which is replayed from
    its start. Params: `left` pages, None: half of those in use now, and at least four more than the
    longest request has. It must hold a whole request: one that cannot fit is ended with an error.
    It begins when more pages than that are in use, so that somebody loses some at once; lasts until
    it is healed.
    """
    pages, live = target.pages, [name for name in call.request_ids if name]
    if not live:
        return None
    used = {page for name in pages.running() for page in pages.table(name)}
    longest = max(len(pages.table(name)) for name in live)
    left = target.params["left"]
    if left is not None and (not isinstance(left, int) or left < 1):
        raise SpecError(f"kv.eviction_storm: left is {left!r}, expected None or at least 1")
    limit = max(len(used) // 2, longest + _ROOM) if left is None else left
    if limit >= len(used):
        return None
    before = pages.limit
    target.memory.update(limit=limit, before=before)
    pages.limit = limit
    return Evidence(
        place=f"page pool, {len(used)} pages in use by {len(pages.running())} requests",
        before=_words(before),
        after=_words(pages.limit),
    )


def _words(limit: int | None) -> str:
    return "all pages may be in use" if limit is None else f"{limit} pages may be in use"


@eviction_storm.heal
def heal(target: Target) -> None:
    """Give the pages back, unless somebody has set another limit since."""
    if "limit" in target.memory and target.pages.limit == target.memory["limit"]:
        target.pages.limit = target.memory["before"]


@eviction_storm.heal_verify
def is_healed(target: Target) -> bool:
    """The limit is not the fault's any more."""
    return "limit" not in target.memory or target.pages.limit != target.memory["limit"]
