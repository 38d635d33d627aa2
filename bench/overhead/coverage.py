"""What a profile catches, from `store/bench/coverage.json`, to stand beside what it costs."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tocsin.bench.campaign import schema
from tocsin.core.errors import SpecError

DEFAULT_PATH = Path("store/bench/coverage.json")

HEADLINE = ("all", "all")
"""Site and bits of the row that pools single-bit faults of all sites."""


@dataclass(frozen=True, slots=True)
class Caught:
    """Harmful faults, how many were caught before a wrong token left, and the rate's low end.

    Attributes:
        low95: lower end of the 95 % Wilson interval.
    """

    harmful: int
    caught: int
    low95: float


def read_coverage(path: Path) -> dict[tuple[str, str, str], Caught]:
    """(name, profile, dtype) → what was caught; empty when there is no such file.

    Raises:
        SpecError: the file is of another form.
    """
    if not path.is_file():
        return {}
    try:
        rows = schema.read(path).rows
    except (OSError, ValidationError) as error:
        reason = " ".join(str(error).split())[:120]
        raise SpecError(
            f"bench: {path} is not a coverage report ({reason}), expected the form that "
            "make campaign writes; run: make campaign"
        ) from error
    return {
        (row.name, row.profile, row.dtype): Caught(
            row.harmful, row.caught_before_release, row.low95
        )
        for row in rows
        if (row.site, row.bits) == HEADLINE and row.harmful
    }
