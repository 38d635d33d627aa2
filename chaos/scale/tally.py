"""What a check of many requests comes to: counts, the first violations, and what is not known."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

GOLDEN, STREAM = "golden.tokens", "stream.prefix"
TERMINAL, LOST = "lifecycle.exactly_one_terminal", "lifecycle.no_lost"
DUPLICATE, CANARY = "exec.no_duplicate_effect", "isolation.canary"
PROPERTIES = (GOLDEN, STREAM, TERMINAL, LOST, DUPLICATE, CANARY)
"""Ids of the properties (`chaos/properties/`) that are checked at scale."""

SHOWN = 20
"""Violations of a property that are told one by one; the rest is counted."""

Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Tally:
    """One property over some of the requests.

    Attributes:
        first: (request id, what is wrong) of the first violations.
        unknown: why some requests could not be judged, and how many.
    """

    checked: int = 0
    violations: int = 0
    ties: int = 0
    first: list[tuple[str, str]] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)

    @property
    def conclusion(self) -> str:
        """fail > unknown > vacuous > pass, as for one request at a time (`case.conclude`)."""
        if self.violations:
            return "fail"
        if self.unknown:
            return "unknown"
        return "pass" if self.checked else "vacuous"

    def add(self, wrong: Mask, name: Callable[[int], tuple[str, str]]) -> None:
        """Count violations; the first are told by name(place)."""
        found = int(np.count_nonzero(wrong))
        if not found:
            return
        self.violations += found
        room = SHOWN - len(self.first)
        self.first += [name(int(place)) for place in np.flatnonzero(wrong)[:room]]

    def missing(self, reason: str, count: int) -> None:
        """Some requests could not be judged."""
        if count:
            self.unknown[reason] += count

    def merge(self, other: "Tally") -> None:
        """Take in the tally of other requests."""
        self.checked += other.checked
        self.violations += other.violations
        self.ties += other.ties
        self.first = (self.first + other.first)[:SHOWN]
        self.unknown.update(other.unknown)


Tallies = dict[str, Tally]


def tallies() -> Tallies:
    """An empty tally for each property."""
    return {name: Tally() for name in PROPERTIES}


def merged(parts: Iterable[Tallies]) -> Tallies:
    """The tallies of all parts together."""
    whole = tallies()
    for part in parts:
        for name, tally in part.items():
            whole[name].merge(tally)
    return whole
