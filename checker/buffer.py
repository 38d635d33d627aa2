"""The verdict buffer: one fp32 ratio for each site and row, written on the device, read once.

A site is one check on one module. A write reduces tokens to rows and keeps the maximum, in place,
without a synchronisation and without an allocation that the step could outgrow; NaN wins every
maximum and therefore alarms. The last column holds what cannot be pinned to a row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SITES_MAX = 4096
ROWS_MAX = 64


@dataclass(frozen=True, slots=True)
class Reading:
    """A copy of the buffer on the host.

    Attributes:
        ratios: [sites, rows_max + 1] fp32; the last column belongs to the whole call.
    """

    ratios: Tensor

    def alarms(self) -> list[int]:
        """Sites with a ratio that is not within its limit; NaN is not."""
        over = ~(self.ratios <= 1.0)
        return torch.nonzero(over.any(dim=1)).flatten().tolist()

    def rows(self, site: int) -> tuple[int, ...]:
        """Rows of a site that alarmed; empty when the whole call did."""
        over = ~(self.ratios[site] <= 1.0)
        if bool(over[-1]):
            return ()
        return tuple(torch.nonzero(over).flatten().tolist())

    def worst(self, site: int) -> float:
        """The largest ratio of a site; NaN when there is one."""
        return float(self.ratios[site].amax())


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
        """Allocate once; the address never changes."""
        with torch.inference_mode(mode=False):
            self.data = torch.zeros(sites_max, rows_max + 1, dtype=torch.float32, device=device)
            self.levels = torch.ones(sites_max, dtype=torch.float32, device=device)
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
        torch.maximum(target, reduced.to(target.dtype), out=target)

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
        held = torch.maximum(target.index_select(0, index), reduced.to(target.dtype))
        target.index_copy_(0, index, held)

    def set_level(self, site: int, level: float) -> None:
        """Switch a site on (1) or off (0)."""
        self.levels[site] = level

    def reset(self, sites: int) -> None:
        """Forget the first `sites` sites."""
        self.data[:sites].zero_()

    def read(self, sites: int) -> Reading:
        """The one device-to-host copy of a step."""
        live = self.data[:sites]
        masked = torch.where(self.levels[:sites, None] > 0, live, torch.zeros_like(live))
        return Reading(masked.to("cpu"))

    def _view(self, site: int, width: int) -> Tensor:
        """The first `width` columns of a site, or its last one for -1; kept between steps."""
        key = (site, width)
        view = self._views.get(key)
        if view is None:
            view = self.data[site, -1:] if width < 0 else self.data[site, :width]
            self._views[key] = view
        return view
