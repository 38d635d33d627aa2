"""A site is one check on one module: a line of the verdict buffer, with its tallies."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.checker.contract import Check
from tocsin.checker.counters import Counters
from tocsin.core.terms import Operator


@dataclass(slots=True, eq=False)
class Group:
    """Tallies of one operator and layer, since they were last folded into the counters."""

    ok: int = 0
    alarm: int = 0
    error: int = 0


@dataclass(slots=True, eq=False)
class Site:
    """One check on one module.

    Attributes:
        index: its line in the verdict buffer.
        runs, alarms, errors: since they were last folded into the counters.
        broken_in: number of the run in which the check raised.
        group: of the sites of one operator and layer, which are counted together.
    """

    index: int
    unit: Check
    operator: Operator
    module: str
    depth: int | None
    thresholds: dict[str, float]
    group: Group = field(default_factory=Group)
    runs: int = 0
    alarms: int = 0
    errors: int = 0
    broken_in: int = -1


class SiteTable:
    """All sites met so far, in order of their first execution."""

    def __init__(self, sites_max: int, counters: Counters) -> None:
        """None is known yet.

        Args:
            sites_max: lines of the verdict buffer.
        """
        self.all: list[Site] = []
        self._sites_max = sites_max
        self._counters = counters
        self._by_key: dict[tuple[str, Operator, str, int | None], Site] = {}
        self._groups: dict[tuple[str, str], Group] = {}

    def __len__(self) -> int:
        """Number of lines in use."""
        return len(self.all)

    def get(self, unit: Check, operator: Operator, module: str, depth: int | None) -> Site | None:
        """The site of a check on a module; None when the buffer has no line left."""
        key = (unit.id, operator, module, depth)
        site = self._by_key.get(key)
        if site is not None:
            return site
        if len(self.all) >= self._sites_max:
            self._counters.skipped["the verdict buffer has no line left: raise sites_max"] += 1
            return None
        group = self._groups.setdefault((str(operator), str(unit.layer)), Group())
        site = Site(len(self.all), unit, operator, module, depth, dict(unit.thresholds), group)
        self.all.append(site)
        self._by_key[key] = site
        return site

    def adopt(self, units: Mapping[str, Check]) -> None:
        """Sites go on with other limits; their lines and tallies stay.

        Args:
            units: every check by id.
        """
        for site in self.all:
            site.unit = units[site.unit.id]
            site.thresholds = dict(site.unit.thresholds)

    def flush(self) -> Counters:
        """Fold the tallies of the sites into the counters and return these."""
        # Once a step over hundreds of sites: the words are put together once a group.
        for site in self.all:
            if site.runs or site.errors or site.alarms:
                group = site.group
                group.ok += site.runs - site.alarms
                group.alarm += site.alarms
                group.error += site.errors
                site.runs = site.alarms = site.errors = 0
        checks = self._counters.checks
        for (operator, layer), group in self._groups.items():
            for result in ("ok", "alarm", "error"):
                checks[operator, layer, result] += getattr(group, result)
            group.ok = group.alarm = group.error = 0
        return self._counters
