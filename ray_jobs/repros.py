"""A chaos run's reproductions: one for the first failure of each operator and check."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from tocsin.checker.reproduce import write
from tocsin.checker.reproduction.archive import find, snapshots_of
from tocsin.core.errors import TocsinError

INDEX = "index.json"
LIMIT = 24
BUDGET_S = 5.0


def write_repros(
    run_dir: Path,
    *,
    limit: int = LIMIT,
    budget_s: float = BUDGET_S,
    clock_s: Callable[[], float] = time.monotonic,
) -> dict[str, Path]:
    """Write `repro/<failure id>/test_….py` for the failures of a run, first ones first.

    What does not fit into the time, or was not recorded in full, is left out; `tocsin reproduce`
    writes it later. `repro/index.json` says what was written: by failure id, operator and check.

    Args:
        run_dir: with `repro/snapshots/`, as `evidence.collect` leaves it.
        limit: most reproductions.
        budget_s: no new one is begun after that.

    Returns:
        failure id → its folder.
    """
    began_s = clock_s()
    written: dict[str, Path] = {}
    seen: set[tuple[str, str]] = set()
    index = []
    for snapshot in snapshots_of(run_dir):
        if len(written) >= limit or clock_s() - began_s >= budget_s:
            break
        try:
            found = find(snapshot.name, snapshot)
            key = (str(found.facts.get("operator")), str(found.facts.get("check")))
            if key in seen:
                continue
            made = write(found, out=run_dir / "repro" / found.failure_id)
        except (TocsinError, OSError):
            continue  # one that cannot be written takes no other with it
        seen.add(key)
        written[found.failure_id] = made.folder
        index.append(
            {
                "failure_id": found.failure_id,
                "operator": made.operator,
                "check": made.check,
                "test": made.test.relative_to(run_dir).as_posix(),
                "fails": made.fails,
                "elements": None if made.shrunk is None else made.shrunk.before,
                "minimal": None if made.shrunk is None else made.shrunk.after,
                "diagnosis": made.diagnosis.words,
                "command": f"tocsin reproduce {found.failure_id} --folder {run_dir} --run",
            }
        )
    if index:
        path = run_dir / "repro" / INDEX
        path.write_text(json.dumps(index, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return written
