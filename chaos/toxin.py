"""What is done to the bytes of a connection: late, slow, cut up or held; all chance is seeded."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tocsin.core.draw import draw_below, draw_unit
from tocsin.core.errors import SpecError

Direction = Literal["to", "from"]
TO: Direction = "to"
FROM: Direction = "from"
DIRECTIONS: dict[str, tuple[Direction, ...]] = {"to": (TO,), "from": (FROM,), "both": (TO, FROM)}
"""As seen from the load: `to` the service, `from` it."""

LONGEST_S = 30.0


@dataclass(frozen=True, slots=True)
class Toxin:
    """What a road does while this is in force; the names are those of Toxiproxy's toxics.

    Attributes:
        seed: of all draws.
        directions: which bytes it concerns.
        latency_ms, jitter_ms: each chunk is late by latency ± jitter, and none overtakes another.
        rate_bytes_s: of all connections together in one direction; 0: no limit.
        slice_bytes: chunks are cut into pieces of 1 to so many bytes; 0: they stay whole.
        blocked: nothing gets through, and no connection is made.
    """

    seed: int = 0
    directions: tuple[Direction, ...] = (TO, FROM)
    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    rate_bytes_s: float = 0.0
    slice_bytes: int = 0
    blocked: bool = False

    def late_s(self, connection: int, direction: Direction, chunk: int) -> float:
        """By how much this chunk is late, seconds.

        Args:
            connection, chunk: their ordinal numbers; the same ones draw the same.
        """
        spread = 2.0 * draw_unit(self.seed, "jitter", connection, direction, chunk) - 1.0
        return max(0.0, self.latency_ms + spread * self.jitter_ms) / 1e3

    def pieces(
        self, data: bytes, connection: int, direction: Direction, chunk: int
    ) -> Iterator[bytes]:
        """The chunk as it travels: together always the same bytes in the same order."""
        if self.slice_bytes <= 0:
            yield data
            return
        start = piece = 0
        while start < len(data):
            key = ("slice", connection, direction, chunk, piece)
            size = 1 + draw_below(self.slice_bytes, self.seed, *key)
            yield data[start : start + size]
            start, piece = start + size, piece + 1


def duration_of(fault: str, value: object) -> float:
    """How long a fault on the road may last.

    Raises:
        SpecError: no number of seconds, none at all, or more than a slip of the pen may cost.
    """
    return number_of(fault, "duration_s", value, least=0.05, most=LONGEST_S)


def number_of(fault: str, name: str, value: object, *, least: float, most: float) -> float:
    """A number of a fault's parameters.

    Raises:
        SpecError: it is none, or out of its range.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        return float(value)
    raise SpecError(
        f"{fault}: {name} is {value!r}, expected a number from {least:g} to {most:g}; correct it"
    )


def directions_of(fault: str, value: object) -> tuple[Direction, ...]:
    """The directions that a word names.

    Raises:
        SpecError: it names none.
    """
    if isinstance(value, str) and value in DIRECTIONS:
        return DIRECTIONS[value]
    raise SpecError(
        f"{fault}: direction is {value!r}, expected one of {', '.join(DIRECTIONS)}; correct it"
    )
