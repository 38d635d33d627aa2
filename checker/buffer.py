"""The verdict buffer: one fp32 ratio for each site and row, written on the device, read once.

A site is one check on one module. A write reduces tokens to rows and keeps the maximum, in place,
without a synchronisation and without an allocation that the step could outgrow; NaN wins every
maximum and therefore alarms. The last column holds what cannot be pinned to a row.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tocsin.checker import native

SITES_MAX = 4096
ROWS_MAX = 64


NOT_RUN, OFF = -1.0, -2.0
"""What a reset leaves in a graph's line: wanted and not run yet; switched off, not to be run."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the host knows of the buffer: one number a site, and the rows of those that alarmed.

    Attributes:
        ratios: [sites, 1] fp32, the largest of each site; NaN when there is one, below 0 where
            nothing ran or the site is off.
        bad: [alarms, rows_max + 1] bool, whether the ratio is not within its limit; the last
            column belongs to the whole call.
        sites: of `bad`, ascending.
    """

    ratios: Tensor
    bad: Tensor = field(default_factory=lambda: torch.empty(0, 1, dtype=torch.bool))
    sites: tuple[int, ...] = ()

    def alarms(self) -> list[int]:
        """Sites with a ratio that is not within its limit; NaN is not."""
        return list(self.sites)

    def rows(self, site: int) -> tuple[int, ...]:
        """Rows of a site that alarmed; empty when the whole call did, or none.

        No synchronisation, here and below: a reading is the host's copy.
        """
        if site not in self.sites:
            return ()
        bad = self.bad[self.sites.index(site)]
        if bool(bad[-1]):
            return ()
        return tuple(torch.nonzero(bad).flatten().tolist())

    def ran(self) -> list[bool]:
        """Of each site, whether anything was written over the -1 of a graph's line."""
        return self.ran_at().tolist()

    def ran_at(self) -> Tensor:
        """The same as [sites] bool."""
        return ~(self.ratios[:, 0] < 0)

    def worst(self, site: int) -> float:
        """The largest ratio of a site; NaN when there is one."""
        return float(self.ratios[site, 0])


class VerdictBuffer:
    """Preallocated ratios [sites_max, rows_max + 1] on one device.

    Attributes:
        data: the ratios; 0 where a site did not run.
        levels: [sites_max] fp32, 0 switches a site off at the read, without capturing again.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        sites_max: int = SITES_MAX,
        rows_max: int = ROWS_MAX,
    ) -> None:
        """Allocate once; the addresses never change."""
        with torch.inference_mode(mode=False):
            self.data = torch.zeros(sites_max, rows_max + 1, dtype=torch.float32, device=device)
            self.levels = torch.ones(sites_max, dtype=torch.float32, device=device)
            # What a reset leaves: the lines of a graph say whether they are wanted.
            self._blank = torch.zeros(sites_max, rows_max + 1, dtype=torch.float32, device=device)
        self._expected: set[int] = set()
        self._switched: dict[int, float] = {}
        self.sites_max = sites_max
        self.rows_max = rows_max
        self._views: dict[tuple[int, int], Tensor] = {}
        self._indices: dict[tuple[int, ...], Tensor] = {}

    def write(self, site: int, ratio: Tensor, rows: int | None) -> None:
        """Keep the largest ratio of each row of a site; no host synchronisation.

        Args:
            site: index below `sites_max`.
            ratio: [T] one a token, [R] one a row, or [1] for the whole call; float.
            rows: number of rows R of the call; None: every token its own row; 0: the ratio
                cannot be pinned to rows.
        """
        count = ratio.numel()
        width = count if rows is None else rows
        if count == 0:
            return
        flat = ratio.reshape(-1)
        if width == 0 or width > self.rows_max or count % width:
            target, reduced = self._view(site, -1), flat.amax().reshape(1)
        elif count == 1 and width != 1:
            target, reduced = self._view(site, -1), flat
        else:
            target = self._view(site, width)
            reduced = flat if count == width else flat.view(width, -1).amax(dim=1)
        # A check of what the host knows leaves its ratio there: it goes to the device, never back.
        torch.maximum(target, reduced.to(target, non_blocking=True), out=target)

    def write_many(self, sites: tuple[int, ...], ratio: Tensor, rows: int | None) -> None:
        """The same for one check on many modules; the sites are different ones.

        Args:
            sites: n indices.
            ratio: [n,T], [n,R] or [n,1], as in `write`.
            rows: number of rows R of each call.
        """
        flat = ratio.reshape(len(sites), -1)
        count = flat.shape[1]
        width = count if rows is None else rows
        if count == 0:
            return
        whole = width == 0 or width > self.rows_max or count % width or (count == 1 and width != 1)
        if whole:
            columns, reduced = slice(-1, None), flat.amax(dim=1, keepdim=True)
        else:
            columns = slice(0, width)
            reduced = flat if count == width else flat.view(len(sites), width, -1).amax(dim=2)
        index = self._indices.get(sites)
        if index is None:
            index = torch.tensor(sites, device=self.data.device)
            self._indices[sites] = index
        target = self.data[:, columns]
        held = torch.maximum(target.index_select(0, index), reduced.to(target, non_blocking=True))
        target.index_copy_(0, index, held)

    def expect(self, sites: list[int]) -> None:
        """A graph writes these lines: from the next reset on they say whether they are wanted."""
        new = [site for site in sites if site not in self._expected]
        self._expected.update(new)
        for site in new:
            self._mark(site)

    def set_level(self, site: int, level: float) -> None:
        """Switch a site on (1) or off (0); what a graph computes of it follows at the reset."""
        if self._switched.get(site, 1.0) != level:
            self._switched[site] = level
            self.levels[site] = level
            self._mark(site)

    def reset(self, sites: int) -> None:
        """Forget the first `sites` sites."""
        self.data[:sites].copy_(self._blank[:sites])

    def read(self, sites: int) -> Reading:
        """The one device-to-host copy of a step; a second one only where something alarmed."""
        if self.data.device.type == "cpu" and native.loaded():
            worst = torch.ops.tocsin.reading(self.data, self.levels, sites)
        else:
            most = self.data[:sites].amax(dim=1)
            worst = torch.where(self.levels[:sites] > 0, most, NOT_RUN).to("cpu")
        over = ~(worst <= 1.0)
        ratios = worst[:, None]
        if not bool(over.any()):
            return Reading(ratios)
        found = torch.nonzero(over).flatten()
        bad = ~(self.data.index_select(0, found.to(self.data.device)) <= 1.0)
        return Reading(ratios, bad.to("cpu"), tuple(found.tolist()))

    def _mark(self, site: int) -> None:
        """Keep what a reset leaves of a site that a graph writes."""
        if site in self._expected:
            self._blank[site] = OFF if self._switched.get(site, 1.0) <= 0.0 else NOT_RUN

    def _view(self, site: int, width: int) -> Tensor:
        """The first `width` columns of a site, or its last one for -1; kept between steps."""
        key = (site, width)
        view = self._views.get(key)
        if view is None:
            view = self.data[site, -1:] if width < 0 else self.data[site, :width]
            self._views[key] = view
        return view
