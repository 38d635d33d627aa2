"""Paged KV memory: content sums taken when written, owners, epochs, prefix index, quarantine.

Axes: P pages · B page size · n pages asked for. Page 0 is the null page, which idle slots read.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tocsin.core.errors import CapacityError, ContractError
from tocsin.core.protocols import PageTag
from tocsin.engine.word_sums import word_sums

SHARED = "shared"
NULL_PAGE = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """What a request's table says of one page: where, since when, and whether others read it."""

    page: int
    epoch: int
    shared: bool = False


@dataclass(slots=True)
class _Page:
    """Host-side state of one page; `key` is the prefix it holds while it is in the index."""

    owner: str = ""
    epoch: int = 0
    first_position: int = 0
    length: int = 0
    holders: dict[str, None] = field(default_factory=dict)
    key: tuple[int, ...] | None = None
    quarantined: bool = False


class PagePool:
    """The pages of one engine; implements `core.protocols.PageStore`.

    Freed pages keep their contents and their sums, and the page freed last is the next to be
    given out: as in real engines, where that spreads whatever was left behind.

    Attributes:
        data: [P, depth, 2, B, width] keys (0) and values (1) of all heads.
        by_depth: of each depth the keys and the values, [P, B, heads, E], views of `data`.
        sums: [P, depth, 2, B] int64 sum of each token row's words as written, see `word_sums`.
        states: of the tokens of a sequence, from its first one up to the last that it wrote into
            the page: sum of the keys [depth, P, width] float64 (it grows with every token),
            smallest and largest value of each feature [depth, P, width], largest key norm of each
            head [depth, P, heads], all float32; see `written`.
        marks: [2, depth, P, heads, B] float32 sum (0) and norm (1) of each head's value, as
            written.
        unsummed: slots (page * B + offset) written while nobody listened: they have no sum yet.
        unwritten: the state of no token, one number for each of the four.
        prefix_hits: pages taken from the prefix index so far.
        prefix_index: page of each known prefix, by all its tokens; a fault may misdirect it.
        limit: pages that may be in use at a time, None: all of them; only a fault sets it.
    """

    def __init__(
        self,
        *,
        pages: int,
        depth: int,
        width: int,
        page_size: int,
        heads: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """All pages free and zero.

        Raises:
            ContractError: a token row is not a whole number of 64-bit words.
        """
        if width % heads:
            raise ContractError(
                f"pages: a row of {width} values for {heads} heads, expected a multiple; "
                "pass the number of key/value heads"
            )
        if width * dtype.itemsize % 8:
            raise ContractError(
                f"pages: a row of {width} {dtype} values is {width * dtype.itemsize} bytes, "
                "expected a multiple of 8; choose another dtype"
            )
        self.page_size = page_size
        shape = (pages + 1, depth, 2, page_size)
        self.data: Tensor = torch.zeros((*shape, width), dtype=dtype, device=device)
        self.sums: Tensor = torch.zeros(shape, dtype=torch.int64, device=device)
        self.heads = heads
        by_head = self.data.view(*self.data.shape[:-1], heads, -1)
        self.by_depth = tuple(by_head[:, at].unbind(1) for at in range(depth))
        self.unwritten = (0.0, torch.inf, -torch.inf, 0.0)
        self.states: tuple[Tensor, Tensor, Tensor, Tensor] = (
            torch.zeros((depth, pages + 1, width), dtype=torch.float64, device=device),
            torch.zeros((depth, pages + 1, width), device=device),
            torch.zeros((depth, pages + 1, width), device=device),
            torch.zeros((depth, pages + 1, heads), device=device),
        )
        self.marks: Tensor = torch.zeros((2, depth, pages + 1, heads, page_size), device=device)
        self.unsummed: set[int] = set()
        self.pages_total = pages
        self.prefix_hits = 0
        self.limit: int | None = None
        self._pages = [_Page() for _ in range(pages + 1)]
        self._free = list(range(pages, 0, -1))
        self._tables: dict[str, list[Entry]] = {}
        self.prefix_index: dict[tuple[int, ...], int] = {}
        self._cached: dict[int, None] = {}  # in the index, held by nobody, oldest first

    # --- what recovery and faults need: core.protocols.PageStore ---

    def tag(self, page: int) -> PageTag:
        """Who the page belongs to."""
        state = self._pages[page]
        return PageTag(
            state.owner, state.epoch, state.first_position, state.length, tuple(state.holders)
        )

    def verify(self, pages: Sequence[int]) -> tuple[int, ...]:
        """Those of the pages whose contents no longer have the sums recorded when written.

        Slots without a sum have nothing to be compared with.
        """
        unique = list(dict.fromkeys(pages))
        if not unique:
            return ()
        differs = self.read_sums(unique) != self.sums[unique]
        if self.unsummed:
            lines = {page: line for line, page in enumerate(unique)}
            for slot in self.unsummed:
                page, offset = divmod(slot, self.page_size)
                if page in lines:
                    differs[lines[page], :, :, offset] = False
        wrong = differs.flatten(1).any(1)
        return tuple(page for page, bad in zip(unique, wrong.tolist(), strict=True) if bad)

    def zero(self, pages: Sequence[int]) -> None:
        """Overwrite the pages with zeros and record the sums of zeros."""
        for page in pages:
            self.data[page] = 0
            self.sums[page] = 0
            for state in self.states:
                state[:, page] = 0
            self.marks[:, :, page] = 0

    def table(self, request_id: str) -> tuple[int, ...]:
        """Pages of a running request in order of position; empty for an unknown request."""
        return tuple(entry.page for entry in self._tables.get(request_id, ()))

    def running(self) -> tuple[str, ...]:
        """Requests that hold pages."""
        return tuple(self._tables)

    def miscount(self, page: int) -> None:
        """Give a private page back although a table still names it, as a lost reference does."""
        self._give_back(page)

    def recount(self, page: int, tag: PageTag) -> None:
        """Take a miscounted page out of the free ones and tag it as before, if it is still free."""
        state = self._pages[page]
        if page not in self._free or state.owner or state.epoch != tag.epoch:
            return
        self._free.remove(page)
        state.owner, state.length = tag.owner, tag.length
        state.holders = dict.fromkeys(tag.holders)

    def prefix(self, page: int) -> tuple[int, ...]:
        """All tokens up to the end of a page of the prefix index; empty for any other page."""
        return self._pages[page].key or ()

    def mislay(self, request_id: str, count: int) -> tuple[int, ...]:
        """Count so many free pages as an ended request's, as a missed free leaves them."""
        for _ in range(min(count, len(self._free))):
            self.allocate(request_id)
        return self.table(request_id)

    # --- what the engine needs ---

    def read_sums(self, pages: Sequence[int]) -> Tensor:
        """Sums of the pages as they are now, [n, depth, 2, B] int64."""
        if not pages:
            return self.sums.new_empty((0, *self.sums.shape[1:]))
        return torch.stack([word_sums(self.data[page]) for page in pages])

    def entries(self, request_id: str) -> list[Entry]:
        """The request's table; the caller must not change it."""
        return self._tables.get(request_id, [])

    @property
    def available(self) -> int:
        """Pages that can be given out: free ones, and cached ones that nobody holds."""
        idle = len(self._free) + len(self._cached)
        return idle if self.limit is None else max(0, min(idle, self.limit - self._used()))

    @property
    def usable(self) -> int:
        """Pages that are not kept out for good."""
        usable = self.pages_total - sum(page.quarantined for page in self._pages)
        return usable if self.limit is None else min(usable, self.limit)

    def counts(self) -> dict[str, int]:
        """Pages by state; they add up to `pages_total`."""
        quarantined = sum(page.quarantined for page in self._pages)
        free, cached = len(self._free), len(self._cached)
        return {"free": free, "used": self._used(), "cached": cached, "quarantined": quarantined}

    def allocate(self, request_id: str) -> int:
        """Append a private page to the request's table.

        Raises:
            CapacityError: no page is free and none in the prefix index is without a holder.
        """
        if not self._free:
            self._evict()
        page = self._free.pop()
        state = self._pages[page]
        table = self._tables.setdefault(request_id, [])
        state.owner, state.epoch = request_id, state.epoch + 1
        state.first_position, state.length = len(table) * self.page_size, 0
        state.holders = {request_id: None}
        table.append(Entry(page, state.epoch))
        return page

    def adopt(self, request_id: str, tokens: tuple[int, ...], multiple: int) -> int:
        """Give a request without pages the cached pages of its prompt's longest known prefix.

        Args:
            request_id: must hold no pages.
            tokens: the prompt.
            multiple: the number of adopted tokens is a multiple of this and less than the prompt.

        Returns:
            Number of tokens whose keys and values need not be computed.
        """
        found: list[int] = []
        for end in range(self.page_size, len(tokens), self.page_size):
            page = self.prefix_index.get(tokens[:end])
            if page is None:
                break
            found.append(page)
        pages = found[: len(found) * self.page_size // multiple * multiple // self.page_size]
        for page in pages:
            state = self._pages[page]
            state.holders[request_id] = None
            self._cached.pop(page, None)
            self._tables.setdefault(request_id, []).append(Entry(page, state.epoch, shared=True))
        self.prefix_hits += len(pages)
        return len(pages) * self.page_size

    def publish(self, request_id: str, tokens: tuple[int, ...], computed: int) -> None:
        """Put the request's full prompt pages into the prefix index; their verdict is in.

        Args:
            tokens: the prompt.
            computed: number of its tokens whose keys and values are written.
        """
        table = self._tables[request_id]
        for index in range(min(computed, len(tokens)) // self.page_size):
            key = tokens[: (index + 1) * self.page_size]
            entry = table[index]
            if entry.shared or key in self.prefix_index:
                continue
            state = self._pages[entry.page]
            state.owner, state.key = SHARED, key
            self.prefix_index[key] = entry.page
            table[index] = Entry(entry.page, entry.epoch, shared=True)

    def advance(self, request_id: str, length: int) -> None:
        """Note how many tokens of the request are committed."""
        for entry in self._tables.get(request_id, ()):
            if not entry.shared:
                state = self._pages[entry.page]
                written = length - state.first_position
                state.length = max(0, min(self.page_size, written))

    def release(self, request_id: str) -> None:
        """Let go of all pages of a request; their contents stay as they are."""
        for entry in reversed(self._tables.pop(request_id, [])):
            state = self._pages[entry.page]
            state.holders.pop(request_id, None)
            if not state.holders and not state.quarantined:
                if state.key is not None:
                    self._cached[entry.page] = None
                else:
                    self._give_back(entry.page)

    def quarantine(self, pages: Iterable[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Zero the pages and give them back; one that does not hold zeros is kept out for good.

        No prefix leads to them any more, also none that never should have.

        Returns:
            Requests whose tables pointed at the pages (they have lost all their pages and must be
            recomputed), and the pages that are kept out.
        """
        holders: dict[str, None] = {}
        taken = [page for page in dict.fromkeys(pages) if page != NULL_PAGE]
        for key in [key for key, page in self.prefix_index.items() if page in taken]:
            del self.prefix_index[key]
        for page in taken:
            holders.update(self._pages[page].holders)
            holders.update(dict.fromkeys(self._named_by(page)))  # a lost reference holds nothing
            self._forget(page)
            self._pages[page].quarantined = True
        for request_id in holders:
            self.release(request_id)
        self.zero(taken)
        kept = self.verify(taken)
        for page in taken:
            self._cached.pop(page, None)
            if page not in kept:
                self._pages[page].quarantined = False
                if page not in self._free:
                    self._give_back(page)
            elif page in self._free:
                self._free.remove(page)
        return tuple(holders), kept

    def drop_prefix_index(self) -> None:
        """Forget all cached prefixes; pages in use stay with their holders."""
        self.drop_cached(list(self._cached))
        for page in list(self.prefix_index.values()):
            self._forget(page)

    def drop_cached(self, pages: Iterable[int]) -> None:
        """Free those of the pages that only the prefix index keeps."""
        for page in pages:
            if page in self._cached:
                self._forget(page)
                self._cached.pop(page)
                self._give_back(page)

    def audit(self) -> dict[str, Any]:
        """Page conservation: who holds what, counted in two independent ways; JSON-safe."""
        held: dict[int, list[str]] = {}
        for request_id, table in self._tables.items():
            for entry in table:
                held.setdefault(entry.page, []).append(request_id)
        problems, unused = [], set(self._free)
        for page, state in enumerate(self._pages):
            if sorted(held.get(page, [])) != sorted(state.holders):
                problems.append(f"page {page}: holders {sorted(state.holders)}")
            if len(state.holders) > 1 and state.owner != SHARED:
                problems.append(f"page {page}: private to {state.owner} and held by others")
            places = (page in unused) + (page in self._cached) + bool(state.holders)
            if page != NULL_PAGE and places + state.quarantined != 1:
                problems.append(f"page {page}: is in {places} places")
        counts = self.counts()
        if sum(counts.values()) != self.pages_total or len(unused) != len(self._free):
            problems.append(f"pages: {counts} do not add up to {self.pages_total}")
        return {
            **counts,
            "total": self.pages_total,
            "conserved": not problems,
            "problems": problems,
        }

    def reclaim(self, live: Collection[str]) -> dict[int, str]:
        """Give back every page that is counted for nobody who is there: a free was missed.

        Args:
            live: ids of the requests that wait or run.

        Returns:
            Of each page that was given back, who it was counted for; empty: for nobody at all.
        """
        found: dict[int, str] = {}
        for request_id in [one for one in self._tables if one not in live]:
            found.update(dict.fromkeys(self.table(request_id), request_id))
            self.release(request_id)
        named = {(entry.page, who) for who, table in self._tables.items() for entry in table}
        unused = set(self._free)
        for page, state in enumerate(self._pages):
            if page == NULL_PAGE or page in unused or page in self._cached or state.quarantined:
                continue
            lost = [who for who in state.holders if (page, who) not in named]
            if len(lost) == len(state.holders):
                found[page] = ", ".join(lost)
                self._forget(page)
                self._give_back(page)
            for who in lost:
                state.holders.pop(who, None)
        return found

    def _used(self) -> int:
        return sum(bool(page.holders) for page in self._pages)

    def _evict(self) -> None:
        """Free the cached page that was used longest ago."""
        if not self._cached:
            raise CapacityError(
                f"pages: all {self.pages_total} are in use, expected a free one; "
                "wait for a request to end or raise the number of pages"
            )
        page = next(iter(self._cached))
        del self._cached[page]
        self._forget(page)
        self._give_back(page)

    def _forget(self, page: int) -> None:
        """Take a page out of the prefix index."""
        state = self._pages[page]
        if state.key is not None:
            if self.prefix_index.get(state.key) == page:
                del self.prefix_index[state.key]
            state.key = None

    def _named_by(self, page: int) -> list[str]:
        """Requests whose tables point at a page."""
        return [
            request_id
            for request_id, table in self._tables.items()
            if any(entry.page == page for entry in table)
        ]

    def _give_back(self, page: int) -> None:
        state = self._pages[page]
        state.owner, state.holders, state.length = "", {}, 0
        self._free.append(page)
