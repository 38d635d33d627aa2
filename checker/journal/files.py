"""The files of a journal folder: names, rotation, and reading whatever a kill has left."""

import fcntl
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

from tocsin.checker.snapshot import DOCUMENT

SNAPSHOTS = "snapshots"
_STAMP = "%Y%m%dT%H%M%SZ"
_ULID = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class LineFile:
    """The newest lines of one writer; appended whole, rotated by size and by age.

    The file is locked while its writer lives, so that a sweep knows those of the dead.

    Args:
        bytes_max: size at which it is rotated; age_max_s: age of its first line at which it is.
    """

    def __init__(self, path: Path, bytes_max: int, age_max_s: float) -> None:
        """Make the folder; the file appears with the first line."""
        self.path = path
        self._bytes_max = bytes_max
        self._age_max_s = age_max_s
        self._fd = -1
        self._size = 0
        self._since_s = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)

    def limit(self, bytes_max: int, age_max_s: float) -> None:
        """Rotate by another size and age from the next line on."""
        self._bytes_max, self._age_max_s = bytes_max, age_max_s

    def append(self, line: bytes, wall_s: float) -> bool:
        """Write one line, on a fresh file when the time has come; whether it was rotated.

        Raises:
            OSError: the disk does not take it; what was written of the line is ended by the next.
        """
        self._open(wall_s)
        rotated = False
        if self._size and (self._size + len(line) > self._bytes_max or self._is_old(wall_s)):
            rotated = self.rotate(wall_s)
            self._open(wall_s)
        if not self._size:
            self._since_s = wall_s
        written = os.write(self._fd, line)
        self._size += written
        if written < len(line):
            self.close()  # the next line looks how this one ended
            raise OSError(28, f"only {written} of {len(line)} bytes were taken", str(self.path))
        return rotated

    def rotate_if_old(self, wall_s: float) -> bool:
        """Rotate a file whose first line is too old, although nothing is to be written."""
        return bool(self._fd >= 0 and self._size and self._is_old(wall_s) and self.rotate(wall_s))

    def rotate(self, wall_s: float) -> bool:
        """Give the file its final name; the next line begins a new one."""
        self.close()
        return rotate(self.path, wall_s)

    def close(self) -> None:
        """Let the file go; the next line opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is_old(self, wall_s: float) -> bool:
        return wall_s - self._since_s >= self._age_max_s

    def _open(self, wall_s: float) -> None:
        """Open the file, or open it again after another took it away."""
        if self._fd >= 0:
            try:
                if os.fstat(self._fd).st_ino == self.path.stat().st_ino:
                    return
            except FileNotFoundError:
                pass
            self.close()
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        is_locked(self._fd)
        self._size = os.fstat(self._fd).st_size
        self._since_s = _first_s(self.path, wall_s) if self._size else wall_s
        if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
            self._size += os.write(self._fd, b"\n")  # a writer was killed in the middle of a line


def stamp(wall_s: float) -> str:
    """A time as the records tell it: UTC, milliseconds."""
    return datetime.fromtimestamp(wall_s, tz=UTC).isoformat(timespec="milliseconds")


def is_locked(fd: int) -> bool:
    """Whether a living writer holds the file; otherwise this descriptor now does."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def rotate(path: Path, wall_s: float) -> bool:
    """Give a file of newest lines the name of a finished one; False when it is gone."""
    stamp = datetime.fromtimestamp(wall_s, tz=UTC).strftime(_STAMP)
    for number in range(10_000):
        final = path.with_name(f"{path.stem}.{stamp}-{number:04}.jsonl")
        if not final.exists() and not packed(final).exists():
            try:
                path.rename(final)
            except FileNotFoundError:
                return False
            return True
    return False


def packed(path: Path) -> Path:
    """Name of a finished file once it is compressed."""
    return path.with_name(path.name + ".gz")


def finished(folder: Path) -> list[tuple[float, Path]]:
    """Finished files with the time of their end, oldest first."""
    found = []
    for path in (*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")):
        end_s = _end_s(path)
        if end_s is not None:
            found.append((end_s, path))
    return sorted(found)


def newest(folder: Path) -> list[Path]:
    """Files that a writer appends to, or did before it died."""
    return sorted(path for path in folder.glob("*.jsonl") if _end_s(path) is None)


def snapshots(folder: Path) -> list[tuple[float, Path]]:
    """Folders of snapshots with the time of their failure, oldest first."""
    found = []
    for path in (folder / SNAPSHOTS).glob("*"):
        if len(path.name) == 26 and set(path.name) <= set(_ULID):
            value = sum(_ULID.index(one) << (45 - 5 * at) for at, one in enumerate(path.name[:10]))
            found.append((value / 1000, path))
    return sorted(found)


def snapshots_folder(folder: Path) -> Path:
    """Where the snapshots of a journal folder are."""
    return folder / SNAPSHOTS


def snapshot_folder(folder: Path, failure_id: str) -> Path | None:
    """The snapshot of a failure below a journal folder; None where there is none."""
    path = folder / SNAPSHOTS / failure_id
    return path if failure_id and (path / DOCUMENT).is_file() else None


def records_in(place: Path, *, rows: bool = False) -> Iterator[dict[str, Any]]:
    """Records of a folder, or of one writer, newest file first and newest line first.

    Lines that a kill has torn, and files that cannot be read, are passed over.

    Args:
        place: a journal folder, or the path of a writer's newest file.
        rows: also the merged rows.
    """
    for path in _files(place):
        for line in reversed(_lines(path)):
            record = _parsed(line)
            if record is not None and (rows or record.get("row") != "aggregate"):
                yield record


def find_record(place: Path, failure_id: str) -> dict[str, Any] | None:
    """The record of a failure; None when it has no line."""
    wanted = failure_id.encode()
    for path in _files(place):
        for line in _lines(path):
            if wanted in line:
                record = _parsed(line)
                if record is not None and record.get("failure_id") == failure_id:
                    return record
    return None


def latest_record(place: Path, operator: str | None = None) -> dict[str, Any] | None:
    """The newest record, of one operator where it is named."""
    best: dict[str, Any] | None = None
    for path in _files(place):
        for line in reversed(_lines(path)):
            record = _parsed(line)
            if (
                record is not None
                and record.get("failure_id")
                and (operator is None or record.get("operator") == operator)
            ):
                if best is None or _age(record) > _age(best):
                    best = record
                break
    return best


def _files(place: Path) -> list[Path]:
    """Newest first."""
    folder, stem = (place, "") if place.is_dir() else (place.parent, f"{place.stem}.")
    done = [path for _, path in reversed(finished(folder)) if path.name.startswith(stem)]
    current = [path for path in newest(folder) if not stem or path == place]
    return [*current, *done]


def _lines(path: Path) -> list[bytes]:
    """Complete lines; of a damaged file those before the damage."""
    lines: list[bytes] = []
    try:
        with _opened(path) as file:
            lines.extend(iter(file.readline, b""))
    except (OSError, EOFError, zlib.error):  # damaged, or taken away by a sweep
        pass
    return lines


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb")


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _age(record: dict[str, Any]) -> tuple[str, str]:
    return str(record.get("ts", "")), str(record.get("failure_id", ""))


def _end_s(path: Path) -> float | None:
    """When a finished file was finished; None for one that is not."""
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    stamp = name.rpartition(".")[2].partition("-")[0]
    try:
        return datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _first_s(path: Path, default_s: float) -> float:
    """Time of the first line of a file that is there already."""
    with path.open("rb") as file:
        record = _parsed(file.readline())
    try:
        return datetime.fromisoformat(str((record or {}).get("ts"))).timestamp()
    except ValueError:
        return default_s
