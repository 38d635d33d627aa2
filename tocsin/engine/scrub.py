"""Which pages are verified before a step: all, or those that must be and a few more in turn."""

from collections.abc import Iterable
from dataclasses import dataclass

from tocsin.engine.fused import operators
from tocsin.engine.pages import PagePool
from tocsin.engine.sequence import Sequence


@dataclass(slots=True)
class PageScrub:
    """Reads sums of pages under a budget.

    To read every page of every row before each step costs as much as attention's own reading, so
    the sums ride on that where operators can do it: then every page is compared in every step,
    before its token leaves, and before the step only those are read that were just shared.
    Under a budget a page is verified when another request takes it over from the prefix index,
    when the request that holds it is about to end, and when its turn comes.

    Attributes:
        pool: the pages.
        pages_max: pages a step, in turn, besides those that must be read; None: every page of
            every row, each step.
    """

    pool: PagePool
    pages_max: int | None = None
    _cursor: int = 0

    @property
    def verifies_reads(self) -> bool:
        """Every page is compared while attention's copy of it is made: no budget, and operators."""
        return self.pages_max is None and operators(self.pool.data) is not None

    def due(self, rows: Iterable[Sequence | None]) -> frozenset[int] | None:
        """Pages to read before the step of these rows; None: all.

        A step that is run again must read the same ones: ask once a step.
        """
        if self.pages_max is None and not self.verifies_reads:
            return None
        due: set[int] = set()
        ring: list[int] = []
        for sequence in filter(None, rows):
            for entry in self.pool.entries(sequence.request_id):
                if entry.shared and sequence.adopted:
                    due.add(entry.page)
                else:
                    ring.append(entry.page)
        # In order of page, whoever holds it: pages that come and go keep nobody from its turn.
        ring = sorted(set(ring) - due)
        count = min(self.pages_max or 0, len(ring))
        first = next((at for at, page in enumerate(ring) if page >= self._cursor), 0)
        for at in range(first, first + count):
            page = ring[at % len(ring)]
            due.add(page)
            self._cursor = page + 1
        return frozenset(due)

    def ending(
        self, rows: Iterable[Sequence | None], tokens: Iterable[int | None]
    ) -> frozenset[int]:
        """Pages of the requests that these tokens would end; none where all pages are read anyway.

        Args:
            tokens: what each row would release, None where it does not sample.
        """
        if self.pages_max is None:
            return frozenset()
        return frozenset(
            page
            for sequence, token in zip(rows, tokens, strict=True)
            if sequence and token is not None and sequence.ends_with(token)
            for page in self.pool.table(sequence.request_id)
        )
