"""The failure journal: one JSON line a failure, rotated by size, and a ring in memory."""

import json
import logging
import math
import threading
from collections import deque
from pathlib import Path
from typing import Any

from tocsin.checker.counters import Counters

RING_MAX = 512

_LOG = logging.getLogger("tocsin.checker")


class Journal:
    """Appends failure records; a full disk never stops serving, it is counted and said.

    Args:
        path: file of the newest records; None: only the ring in memory.
        bytes_max: size at which the file is rotated to `<name>.1` and so on.
        files_max: rotated files that are kept.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        bytes_max: int = 64 << 20,
        files_max: int = 4,
        counters: Counters | None = None,
    ) -> None:
        """Make the folder; the file appears with the first record."""
        self.path = path
        self.counters = counters or Counters()
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._ring: deque[dict[str, Any]] = deque(maxlen=RING_MAX)
        self._lock = threading.Lock()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, record: dict[str, Any]) -> None:
        """Keep one record; NaN and infinities become text."""
        plain = plain_json(record)
        with self._lock:
            self._ring.append(plain)
            if self.path is None:
                return
            try:
                self._append(json.dumps(plain, ensure_ascii=False, allow_nan=False) + "\n")
            except OSError as error:
                self.counters.journal_dropped += 1
                _LOG.error("journal: %s could not be written: %s; free the disk", self.path, error)

    def recent(self, count: int = RING_MAX) -> list[dict[str, Any]]:
        """The newest records, oldest first."""
        with self._lock:
            return list(self._ring)[-count:]

    def find(self, failure_id: str) -> dict[str, Any] | None:
        """The record of a failure, from the ring or the files; None when it is unknown."""
        kept: dict[str, Any]
        for kept in reversed(self.recent()):
            if kept.get("failure_id") == failure_id:
                return kept
        for path in self._files():
            for line in path.read_text().splitlines():
                if failure_id in line:
                    stored: dict[str, Any] = json.loads(line)
                    if stored.get("failure_id") == failure_id:
                        return stored
        return None

    def _files(self) -> list[Path]:
        if self.path is None:
            return []
        rotated = [self._rotated(number) for number in range(1, self._files_max + 1)]
        return [path for path in (self.path, *rotated) if path.exists()]

    def _rotated(self, number: int) -> Path:
        path = self.path or Path()
        return path.with_name(f"{path.name}.{number}")

    def _append(self, line: str) -> None:
        path = self.path
        if path is None:
            return
        size = path.stat().st_size if path.exists() else 0
        if size and size + len(line.encode()) > self._bytes_max:
            for number in range(self._files_max, 0, -1):
                source = path if number == 1 else self._rotated(number - 1)
                if source.exists():
                    source.replace(self._rotated(number))
        with path.open("a", encoding="utf-8") as file:
            file.write(line)


def plain_json(value: Any) -> Any:
    """The value with NaN and infinities as text, tuples as lists, keys as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value) if isinstance(value, str) else value
    return str(value)
