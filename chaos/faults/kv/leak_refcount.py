"""Pages of a request that has ended are never given back."""

from tocsin.chaos.contract import Target, fault
from tocsin.core.calls import BatchCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "kv.leak_refcount",
    expect=("service.page_audit",),
    priority=Priority.P1,
    source="vllm-project/vllm#46283, vllm-project/vllm-ascend#16662: an abort leaks its pages, "
    "until nothing is admitted any more",
    phase=Phase.BEFORE,
    params={"pages": 2},
)
def leak_refcount(call: BatchCall, target: Target) -> Evidence | None:
    """Leave free pages counted as those of a request that is no longer there.

    It is what a missed free leaves behind when a request was aborted or ended in an error: no
    answer is wrong, the pool is smaller for good. Params: `pages` how many. Lasts until they are
    given back.
    """
    wanted = target.params["pages"]
    if not isinstance(wanted, int) or wanted < 1:
        raise SpecError(f"kv.leak_refcount: pages is {wanted!r}, expected an integer above 0")
    if not target.live_rows():
        return None
    before = _free(target)
    if not before:
        return None
    holder = f"an-ended-request-{target.seed % 10_000}"
    lost = target.pages.mislay(holder, wanted)
    target.memory["holder"] = holder
    return Evidence(
        place=f"pages {', '.join(map(str, lost))}, counted for {holder}",
        before=f"{before} free pages",
        after=f"{_free(target)} free pages",
    )


def _free(target: Target) -> int:
    """Pages that belong to nobody; page 0 is the null page."""
    return sum(not target.pages.tag(p).owner for p in range(1, target.pages.data.shape[0]))


@leak_refcount.heal
def heal(target: Target) -> None:
    """Make up for the missed free."""
    if "holder" in target.memory:
        target.pages.release(target.memory["holder"])


@leak_refcount.heal_verify
def is_healed(target: Target) -> bool:
    """No page is counted for the request that is not there."""
    holder = target.memory.get("holder", "")
    pages = range(1, target.pages.data.shape[0])
    return not holder or all(holder not in target.pages.tag(page).holders for page in pages)
