"""What the alert relay finds on this node: the facts of a failure, and its reproduction."""

import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tocsin.core.errors import SpecError, TocsinError
from tocsin.core.ids import new_ulid
from tocsin.dashboards.relay.evidence import Evidence, Reproduction
from tocsin.ray_jobs.places import journal_folder, node_folder, spans_folder
from tocsin.ray_jobs.tracing.read import spans_of

LATEST = "latest"
_REPRODUCE_S = 120.0
_PACKAGES = ("tocsin", "torch", "transformers", "ray", "numpy")
# In a process of its own: no shrinking holds the relay up.
_COMMAND = "from tocsin.ray_jobs.cli import main; main()"


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """Reads the node folder, where replicas of this machine leave journal, snapshots and spans.

    Attributes:
        folder: the node folder; None: this user's.
        reproductions: where reproductions are written, one folder a failure.
    """

    folder: Path | None
    reproductions: Path

    def warm(self) -> None:
        """Load what reads the journal: torch comes with it, and the first alert need not wait."""
        self._record("none")

    def find(self, failure: str, since_s: float = 0.0) -> Evidence | None:
        """Facts of a failure id or of `latest:<operator>`, None where nothing was recorded.

        Args:
            since_s: seconds since the epoch; an older failure is not the one that is meant.
        """
        from tocsin.checker.journal import snapshot_folder

        record = self._record(failure)
        if record is None:
            return None
        failure_id = str(record["failure_id"])
        if failure_id < _oldest(since_s):
            return None
        snapshot = snapshot_folder(journal_folder(self.folder), failure_id)
        return Evidence(
            failure_id=failure_id,
            record=record,
            call=_document(snapshot),
            snapshot=snapshot,
            spans=[span.to_json() for span in self._spans(failure_id, record)],
            environment=_environment(record),
        )

    def reproduce(self, failure: str, since_s: float = 0.0) -> Reproduction | None:
        """Write the reproduction of a failure, or find the one that is there; may take a minute.

        Args:
            since_s: seconds since the epoch; an older failure is not the one that is meant.
        """
        failure_id = self._recorded(failure)
        if failure_id is None or failure_id < _oldest(since_s):
            return None
        target = self.reproductions / failure_id
        command = f"tocsin reproduce {failure_id}"
        if not any(target.glob("test_*.py")):
            where = ["--folder", str(self.folder)] if self.folder is not None else []
            words = ["reproduce", failure_id, "--out", str(target), *where]
            try:
                done = subprocess.run(
                    [sys.executable, "-c", _COMMAND, *words],
                    capture_output=True,
                    timeout=_REPRODUCE_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return None
            if done.returncode:
                return None
        test = next(iter(sorted(target.glob("test_*.py"))), None)
        return Reproduction(command, test) if test is not None else None

    def _recorded(self, failure: str) -> str | None:
        """Id of the failure whose snapshot stands for this one, None where there is none.

        Only the first failure of an operator and check in five minutes is recorded in full: for
        the others it is the latest of their operator that was.
        """
        from tocsin.checker.reproduction.archive import find

        with suppress(SpecError):
            return find(failure, self.folder or node_folder()).failure_id
        record = self._record(failure)
        if record is not None:
            with suppress(SpecError):
                latest = f"{LATEST}:{record.get('operator', '')}"
                return find(latest, self.folder or node_folder()).failure_id
        return None

    def _record(self, failure: str) -> dict[str, Any] | None:
        from tocsin.checker.journal import find_record, latest_record

        journal = journal_folder(self.folder)
        if failure == LATEST:
            return latest_record(journal)
        if failure.startswith(f"{LATEST}:"):
            return latest_record(journal, failure.partition(":")[2])
        return find_record(journal, failure)

    def _spans(self, failure_id: str, record: Mapping[str, Any]) -> list[Any]:
        if not record.get("trace_id"):
            return []
        return spans_of(spans_folder(self.folder), failure_id=failure_id)


def _oldest(since_s: float) -> str:
    """The smallest failure id of a moment: ids sort by time."""
    return new_ulid(int(max(since_s, 0.0) * 1000), bytes(10))


def _document(snapshot: Path | None) -> dict[str, Any]:
    if snapshot is None:
        return {}
    from tocsin.checker.snapshot import load_document

    try:
        return load_document(snapshot)
    except (TocsinError, OSError, ValueError):
        return {}  # it is being written, or was archived meanwhile


def _environment(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the failing process wrote about itself, then this machine."""
    written = record.get("environment")
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        **(written if isinstance(written, Mapping) else {}),
        "replica": record.get("replica", ""),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.platform(),
        **versions,
    }
