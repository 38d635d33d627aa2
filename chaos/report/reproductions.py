"""The reproductions that lie in a run's folder: each kind of failure as a test that fails."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tocsin.chaos.report.manifest import near
from tocsin.chaos.report.model import ReproductionRow
from tocsin.chaos.report.wording import short

_INDEX = "repro/index.json"
_SHOWN = 24


def reproductions_of(run_dir: Path) -> tuple[ReproductionRow, ...]:
    """Those that the run's index lists; none where it is missing or broken."""
    try:
        listed: Any = json.loads((run_dir / _INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    rows = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return tuple(_row(one, run_dir) for one in rows[:_SHOWN])


def _row(one: Mapping[str, Any], run_dir: Path) -> ReproductionRow:
    test = run_dir / str(one.get("test", ""))
    return ReproductionRow(
        check=short(str(one.get("check", "")), 60),
        operator=short(str(one.get("operator", "")), 60),
        diagnosis=short(str(one.get("diagnosis", "")), 300),
        elements=_count(one.get("elements")),
        minimal=_count(one.get("minimal")),
        command=f"python -m pytest {shlex.quote(near(test))}",
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None
