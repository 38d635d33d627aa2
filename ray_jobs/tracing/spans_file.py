"""Spans in files of the node: one for each process, rotated by size, the folder capped."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan

from tocsin.ray_jobs.tracing.otlp_json import otlp_line

FILE_BYTES_MAX = 16 << 20
FOLDER_BYTES_MAX = 64 << 20

_LOG = logging.getLogger("tocsin.ray_jobs.tracing")


class SpanFile:
    """Appends spans as OTLP in JSON lines; a full disk is said once and never raised."""

    def __init__(
        self,
        folder: Path,
        role: str,
        *,
        bytes_max: int = FILE_BYTES_MAX,
        folder_bytes_max: int = FOLDER_BYTES_MAX,
    ) -> None:
        """Nothing is on disk before the first span.

        Args:
            role: first part of the file's name; the process id is the second.
            bytes_max: size at which a new file begins.
            folder_bytes_max: all files of the folder; beyond it the oldest are removed.
        """
        self.path = folder / f"{role}-{os.getpid()}.jsonl"
        self._bytes_max = bytes_max
        self._folder_bytes_max = folder_bytes_max
        self._said = False
        self._number = 0
        self._room_made = False

    def write(self, spans: Sequence[ReadableSpan]) -> bool:
        """Append them; False: they are lost."""
        try:
            self._append(otlp_line(spans) + "\n")
        except OSError as error:
            if not self._said:
                self._said = True
                _LOG.error("spans: %s could not be written: %s; free the disk", self.path, error)
            return False
        return True

    def _append(self, line: str) -> None:
        data = line.encode()
        if not self._room_made:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room()
        size = self.path.stat().st_size if self.path.exists() else 0
        if size and size + len(data) > self._bytes_max:
            self.path.replace(self._free_name())
            self._make_room()
        with self.path.open("ab") as file:
            file.write(data)

    def _free_name(self) -> Path:
        """Numbers grow: what is older has the smaller one."""
        while True:
            self._number += 1
            path = self.path.with_name(f"{self.path.stem}.{self._number}.jsonl")
            if not path.exists():
                return path

    def _make_room(self) -> None:
        """Remove the oldest files until one more fits; files of living processes go last."""
        self._room_made = True
        found = []
        for path in self.path.parent.glob("*.jsonl"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # another process makes room too
            found.append((status.st_mtime_ns, status.st_size, path))
        left = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if left + self._bytes_max <= self._folder_bytes_max:
                return
            if path != self.path:
                path.unlink(missing_ok=True)
                left -= size
