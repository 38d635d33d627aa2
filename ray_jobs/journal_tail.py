"""The newest failure records of a node's journal: whom a counted failure can be traced to."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from tocsin.core.metrics import CHECK_FAILURES, INCIDENTS
from tocsin.ray_jobs.metric_file import metric_key
from tocsin.ray_jobs.numbers import Exemplar

_TAIL_BYTES = 64 << 10
_READ_BYTES = 1 << 20  # at most so much of a storm's records; the newest are the ones wanted


class JournalTail:
    """Reads what was added to the journal files since the last time.

    Args:
        folder: the node's journal folder.
    """

    def __init__(self, folder: Path) -> None:
        """Begin near the end of each file."""
        self.folder = folder
        self._offsets: dict[tuple[str, int], int] = {}
        self._exemplars: dict[str, Exemplar] = {}

    def exemplars(self) -> Mapping[str, Exemplar]:
        """The newest failure behind each failure counter, by the counter's key."""
        for record in self._news():
            labels = {
                name: str(record[name]) for name in ("trace_id", "failure_id") if record.get(name)
            }
            exemplar = Exemplar(labels, 1.0, _wall_s(record))
            for key in _keys(record):
                self._exemplars[key] = exemplar
        return self._exemplars

    def bytes(self) -> int:
        """Disk that the journal takes up, snapshots included."""
        return sum(one.stat().st_size for one in self.folder.rglob("*") if one.is_file())

    def _news(self) -> Iterator[dict[str, Any]]:
        known = {}
        for path in sorted(self.folder.glob("failures-*.jsonl")):
            try:
                status = path.stat()
                key = (path.name, status.st_ino)
                start = self._offsets.get(key, max(0, status.st_size - _TAIL_BYTES))
                start = max(start, status.st_size - _READ_BYTES)
                with path.open("rb") as file:
                    file.seek(start)
                    text = file.read(_READ_BYTES)
            except FileNotFoundError:
                continue  # rotated away this very moment
            whole = text.rfind(b"\n") + 1
            known[key] = start + whole
            for line in text[:whole].splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # the first line, when it was begun in the middle
                if isinstance(record, dict) and record.get("row") != "aggregate":
                    yield record
        self._offsets = known


def _keys(record: Mapping[str, Any]) -> Iterator[str]:
    """The counters that a failure has raised."""
    model, operator = str(record.get("model", "")), str(record.get("operator", ""))
    priority = str(record.get("priority", ""))
    yield metric_key(INCIDENTS.name, "", (model, operator, priority))
    for finding in record.get("findings", ()):
        labels = (
            model,
            *(str(finding.get(name)) for name in ("operator", "layer", "check", "priority")),
        )
        yield metric_key(CHECK_FAILURES.name, "", labels)


def _wall_s(record: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(record.get("ts"))).timestamp()
    except ValueError:
        return 0.0
