"""The journal of finished shards: append-only, one checked line each, safe after a kill.

A line that was cut, or whose checksum is wrong, counts as never written: its shard runs again.
"""

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Journal:
    """One writer's file; a shard is done when its whole line is on the disk."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened until the first `append`."""
        self.path = path

    def append(self, key: str, record: Record) -> None:
        """Write one finished shard and wait for the disk.

        Args:
            key: names the shard.
            record: JSON-safe.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            torn = file.tell() > 0 and not self._ends_whole()
            file.write((b"\n" if torn else b"") + line_of(key, record))
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> dict[str, Record]:
        """Finished shards by key; a shard that was written twice counts once."""
        return read([self.path])

    def _ends_whole(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def read(paths: Iterable[Path]) -> dict[str, Record]:
    """Finished shards of several writers; the first line of a key counts."""
    done: dict[str, Record] = {}
    for path in sorted(paths):
        if not path.is_file():
            continue
        # Cut at newlines only: other separators may stand inside a text.
        for line in path.read_bytes().split(b"\n"):
            entry = _entry(line)
            if entry is not None:
                done.setdefault(*entry)
    return done


def line_of(key: str, record: Record) -> bytes:
    """One line with its checksum."""
    body = json.dumps([key, record], separators=(",", ":"))
    return f"{zlib.crc32(body.encode()):08x} {body}\n".encode()


def _entry(line: bytes) -> tuple[str, Record] | None:
    """Key and record of a line; None where it is not whole."""
    checksum, _, body = line.partition(b" ")
    if len(checksum) != 8 or f"{zlib.crc32(body):08x}".encode() != checksum:
        return None
    key, record = json.loads(body)
    return key, record
