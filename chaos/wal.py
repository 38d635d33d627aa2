"""The write-ahead heal log: what is injected is on disk first, so that it can be taken away.

One record a line, `crc32 json`; a line that was cut off or damaged is told apart and skipped.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "heals.wal"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a log says.

    Attributes:
        records: the whole ones, in order; each has `type`: run, intent, renew, fired, settled, end.
        damaged: lines that are not whole.
    """

    records: tuple[Mapping[str, Any], ...]
    damaged: int


@dataclass(slots=True)
class OpenFault:
    """An occurrence that has an intent and no proof that it was healed.

    Attributes:
        intent: the record that was written before the injection.
        state: the last state that is on disk, `intended` when there is only the intent.
        alive_wall_s: when the controller last wrote anything, seconds since the epoch.
    """

    occurrence: str
    intent: Mapping[str, Any]
    state: str = "intended"
    alive_wall_s: float = 0.0


@dataclass(slots=True)
class WriteAheadLog:
    """Appends records; an intent is on the disk when `intent` returns."""

    path: Path
    _file: int = field(default=-1)

    def __post_init__(self) -> None:
        """Open for appending; a line that was cut off by a crash is ended first."""
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if torn and self.path.stat().st_size:
            os.write(self._file, b"\n")
        _sync_folder(self.path.parent)

    def write(self, record: Mapping[str, Any], *, sync: bool = True) -> None:
        """Append one record.

        Args:
            sync: return only when it is on the disk.

        Raises:
            OSError: it could not be written (a full disk): then nothing may be injected.
        """
        line = encode(record)
        while line:
            line = line[os.write(self._file, line) :]
        if sync:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file; writing afterwards is an error."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def encode(record: Mapping[str, Any]) -> bytes:
    """One line: CRC-32 of the text as eight hexadecimal digits, a space, the text."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), default=str).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> Mapping[str, Any] | None:
    """The record of a line without its end; None when it is not whole."""
    crc, space, text = line.partition(b" ")
    if not space or len(crc) != 8:
        return None
    try:
        if int(crc, 16) != zlib.crc32(text):
            return None
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def read(path: Path) -> Reading:
    """Every whole record of a log, whatever happened to the rest of it."""
    lines = [line for line in path.read_bytes().split(b"\n") if line]
    records = [record for line in lines if (record := decode(line)) is not None]
    return Reading(tuple(records), len(lines) - len(records))


def open_faults(records: Iterable[Mapping[str, Any]]) -> tuple[OpenFault, ...]:
    """Occurrences that were intended and not shown to be healed or never to have fired."""
    found: dict[str, OpenFault] = {}
    alive_s = 0.0
    for record in records:
        alive_s = max(alive_s, float(record.get("wall_s", 0.0)))
        name = str(record.get("occurrence", ""))
        if record.get("type") == "intent":
            found[name] = OpenFault(name, record)
        elif record.get("type") == "fired" and name in found:
            found[name].state = "fired"
        elif record.get("type") == "settled" and name in found:
            if record.get("state") == "unhealed":
                found[name].state = "unhealed"
            else:
                del found[name]
    for fault in found.values():
        fault.alive_wall_s = alive_s
    return tuple(found.values())


def _sync_folder(folder: Path) -> None:
    """Make the file's name itself survive a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
