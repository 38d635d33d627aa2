"""The prefix index returns pages of another prefix."""

from collections import defaultdict
from itertools import pairwise

from tocsin.chaos.contract import Target, fault
from tocsin.core.calls import BatchCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "kv.prefix_hash_collision",
    expect=("state.prefix_tokens",),
    priority=Priority.P0,
    source="openvinotoolkit/openvino.genai#3722, vllm-project/vllm#12621: prefixes of one hash "
    "share a page, and nobody compares their tokens",
    phase=Phase.BEFORE,
    load={"prompts": "builtin/again-6"},
)
def prefix_hash_collision(call: BatchCall, target: Target) -> Evidence | None:
    """Let each prefix of the index find the page of another prefix of the same length.

    The index is keyed by the tokens themselves, so that no two prefixes can collide by chance; this
    is what a hash in their place does once it collides. The next request that begins like an
    earlier one goes on from a stranger's context. Lasts until the entries are dropped or healed.
    """
    index, pages = target.pages.prefix_index, target.pages
    if not target.live_rows():
        return None
    by_length: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for key, page in index.items():
        if pages.prefix(page) == key:
            by_length[len(key)].append(key)
    moved: dict[tuple[int, ...], int] = {}
    for keys in by_length.values():
        if len(keys) > 1:
            first = index[keys[0]]
            for key, following in pairwise(keys):
                moved[key] = index[following]
            moved[keys[-1]] = first
    if not moved:
        return None
    before = _wrong(target)
    target.memory["was"] = {key: index[key] for key in moved}
    target.memory["is"] = moved
    index.update(moved)
    return Evidence(
        place=f"prefix index, {len(moved)} of {len(index)} prefixes",
        before=f"{before} lead to a page of other tokens",
        after=f"{_wrong(target)} lead to a page of other tokens",
    )


def _wrong(target: Target) -> int:
    return sum(target.pages.prefix(page) != key for key, page in target.pages.prefix_index.items())


@prefix_hash_collision.heal
def heal(target: Target) -> None:
    """Let each prefix find its own page again; one whose page is gone is forgotten."""
    index = target.pages.prefix_index
    for key, page in target.memory.get("is", {}).items():
        if index.get(key) != page or target.pages.prefix(page) == key:
            continue  # dropped, or written anew since
        right = target.memory["was"][key]
        if target.pages.prefix(right) == key:
            index[key] = right
        else:
            del index[key]


@prefix_hash_collision.heal_verify
def is_healed(target: Target) -> bool:
    """No entry of the fault leads to a page of other tokens."""
    index = target.pages.prefix_index
    return all(
        index.get(key) != page or target.pages.prefix(page) == key
        for key, page in target.memory.get("is", {}).items()
    )
