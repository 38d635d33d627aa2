"""Notes by which a chaos actor makes a serving process of its node suffer; each has an end.

A file in the node's folder, since a process that does not serve yet hears of nothing else. It
holds until a time of CLOCK_MONOTONIC, whatever becomes of who wrote it; after that it is ignored.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START = "start"
"""Name of the note that makes starts fail."""
_FOLDER = "suffer"
_UNTIL = "until_ns"


def memory_note(pid: int) -> str:
    """Name of the note that makes a process run out of memory."""
    return f"memory-{pid}"


def memory_answer(pid: int) -> str:
    """Name of the note by which it says what came of it."""
    return f"memory-{pid}-said"


def leave(folder: Path, name: str, content: Mapping[str, Any], lasts_s: float) -> None:
    """Leave a note, in place of an earlier one of its name.

    Args:
        folder: of the node. name: of the note, without a suffix.
    """
    where = _path(folder, name)
    where.parent.mkdir(mode=0o700, exist_ok=True)
    until_ns = time.monotonic_ns() + int(lasts_s * 1e9)
    part = where.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({**content, _UNTIL: until_ns}), encoding="utf-8")
    part.replace(where)


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """What a note says; None: there is none, or its time is over."""
    try:
        found = json.loads(_path(folder, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or time.monotonic_ns() >= int(found.get(_UNTIL, 0)):
        return None
    return found


def remove(folder: Path, name: str) -> None:
    """Take a note away; nothing where there is none."""
    _path(folder, name).unlink(missing_ok=True)


def spend(folder: Path, name: str) -> dict[str, Any] | None:
    """Take one of the `times` that a note holds for; what it said, None when nothing is left.

    Two processes that start at once take two.
    """
    if not _path(folder, name).exists():  # the usual case costs one look
        return None
    with _locked(folder):
        found = read(folder, name)
        if found is None or int(found.get("times", 0)) <= 0:
            return None
        left = {**found, "times": int(found["times"]) - 1}
        _path(folder, name).write_text(json.dumps(left), encoding="utf-8")
    return found


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with _path(folder, "lock").open("ab") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield


def _path(folder: Path, name: str) -> Path:
    return folder / _FOLDER / f"{name}.json"
