"""A run's folder as one small tar.gz; what does not fit is left out in a known order."""

import contextlib
import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tocsin.ray_jobs.remote.frame import Header, lines_of

LIMIT_MIB = 4.0
"""As base64 5.6 MiB: a kubelet keeps 10 MiB of a container's log before it rotates the file."""

LEFT_OUT_FIRST = (
    "repro/snapshots/*",
    "logs/spans/*",
    "logs/metrics/*",
    "logs/failures/*",
    "repro/*",
    "logs/*",
    "*",
    "events.parquet",
    "history.parquet",
    "report.html",
    "heals.wal",
    "journal.json",
    "junit.xml",
    "manifest.json",
    "verdict.json",
)
"""Patterns of paths in the order in which they are left out. A path in a folder has the place of
its first match, a file of the run's own folder that of its last: its name, where it stands here."""

_NAMES_LETTERS_MOST = 2500
"""The line that names what was left out is written in one piece too."""

_CHUNK_BYTES = 1 << 20
_TAR_HEAD_BYTES = 160
"""Of a compressed member's head, about; the size that is measured at the end decides."""


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive and what the reader of a log is told of it."""

    header: Header
    data: bytes


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    path: Path
    size_bytes: int
    rank: int
    packed_bytes: int


def pack(run_dir: Path, exit_code: int, limit_bytes: int) -> Packed:
    """Pack a run's folder.

    Args:
        exit_code: of the run, for the caller's own.
        limit_bytes: most bytes of the archive; the verdict is packed even if it is more.

    Raises:
        OSError: a file cannot be read.
    """
    entries = sorted(_entries(run_dir, limit_bytes), key=lambda one: (one.rank, -one.packed_bytes))
    left_out: list[_Entry] = []
    while True:
        while len(entries) > 1 and sum(one.packed_bytes for one in entries) > limit_bytes:
            left_out.append(entries.pop(0))
        data = _tar(run_dir, entries)
        if len(data) <= limit_bytes or len(entries) <= 1:
            break
        left_out.append(entries.pop(0))
    largest = sorted(left_out, key=lambda one: -one.size_bytes)
    header = Header(
        name=f"{run_dir.parent.name}/{run_dir.name}",
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        lines=lines_of(len(data)),
        exit_code=exit_code,
        left_out=_named(largest),
        left_out_count=len(left_out),
        tocsin=tocsin_version(),
    )
    return Packed(header, data)


def _named(largest: Sequence[_Entry]) -> tuple[tuple[str, int], ...]:
    named: list[tuple[str, int]] = []
    left = _NAMES_LETTERS_MOST
    for one in largest:
        left -= len(json.dumps(one.name)) + 16
        if left < 0:
            break
        named.append((one.name, one.size_bytes))
    return tuple(named)


def tocsin_version() -> str:
    """Of this installation."""
    try:
        return version("tocsin")
    except PackageNotFoundError:
        return ""


def rank(name: str) -> int:
    """Place of a path in the order of leaving out."""
    matches = [n for n, pattern in enumerate(LEFT_OUT_FIRST) if fnmatch(name, pattern)]
    return matches[0] if "/" in name else matches[-1]


def _entries(run_dir: Path, limit_bytes: int) -> Sequence[_Entry]:
    found = []
    for path in sorted(run_dir.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.name.endswith(".part"):
            continue
        name = path.relative_to(run_dir).as_posix()
        size = path.stat().st_size
        found.append(_Entry(name, path, size, rank(name), _packed_bytes(path, limit_bytes)))
    return found


def _packed_bytes(path: Path, limit_bytes: int) -> int:
    """About what a file takes in the archive; more than the limit is not measured."""
    packer, size = zlib.compressobj(6), _TAR_HEAD_BYTES
    with path.open("rb") as file:
        while size <= limit_bytes and (chunk := file.read(_CHUNK_BYTES)):
            size += len(packer.compress(chunk))
    return size + len(packer.flush())


def _tar(run_dir: Path, entries: Sequence[_Entry]) -> bytes:
    """The same files give the same bytes: sorted, without owners, without the time of packing."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for one in sorted(entries, key=lambda entry: entry.name):
            # What a living server removed meanwhile is nobody's loss.
            with contextlib.suppress(FileNotFoundError):
                tar.add(one.path, arcname=one.name, recursive=False, filter=_plain)
    return buffer.getvalue()


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    member.mtime = int(member.mtime)
    return member
