"""Finished files and snapshots far away: S3, OSS, a folder, whatever fsspec reaches."""

import hashlib
import json
from pathlib import Path
from typing import IO, Any

from tocsin.core.errors import EnvironmentFault

MARKER = ".archived"
"""Suffix of the local note that a file lies in the archive, read back and found the same."""

_PIECE = 1 << 20


class Archive:
    """One place below a URL; nothing is contacted before the first file.

    Args:
        url: `s3://bucket/folder`, `oss://…`, `file:///folder`; `memory://` in tests.
    """

    def __init__(self, url: str) -> None:
        """Only remember it."""
        self.url = url
        self._opened: tuple[Any, str] | None = None

    def put(self, local: Path, name: str) -> None:
        """Store a file or the files of a folder, read them back, and leave the marks.

        The mark beside the stored file says its sum to whoever restores it; the local one says
        to the sweep that the file may go.

        Raises:
            EnvironmentFault: what came back differs, or the URL cannot be used here.
            OSError: the place cannot be reached.
        """
        sums = {}
        for file in _members(local):
            stored = name if file == local else f"{name}/{file.name}"
            sums[stored] = self._put(file, stored)
        note = {"url": self.url, "sha256": sums}
        mark_of(local).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")

    def holds(self, local: Path, name: str) -> bool:
        """Whether the archive gives back the very bytes of the file or folder.

        Raises:
            EnvironmentFault, OSError: as `put`.
        """
        files, root = self._open()
        for file in _members(local):
            path = f"{root}/{name}" if file == local else f"{root}/{name}/{file.name}"
            if not files.exists(path) or self._sum(path) != sum_of(file):
                return False
        return True

    def _put(self, file: Path, name: str) -> str:
        files, root = self._open()
        path, expected = f"{root}/{name}", sum_of(file)
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        files.put_file(str(file), path)
        found = self._sum(path)
        if found != expected:
            raise EnvironmentFault(
                f"archive: {self.url}/{name} reads back with SHA-256 {found[:12]}…, expected "
                f"{expected[:12]}…; the local file is kept, look at the store"
            )
        with files.open(f"{path}.sha256", "wb") as mark:
            mark.write(f"{expected}  {name.rpartition('/')[2]}\n".encode())
        return expected

    def _sum(self, path: str) -> str:
        files, _ = self._open()
        files.invalidate_cache()
        with files.open(path, "rb") as stored:
            return _digest(stored)

    def _open(self) -> tuple[Any, str]:
        """The file system of the URL and the path below it."""
        if self._opened is None:
            try:
                from fsspec.core import url_to_fs  # type: ignore[import-untyped]

                files, root = url_to_fs(self.url)
            except (ImportError, ValueError) as error:
                raise EnvironmentFault(
                    f"archive: {self.url} cannot be used here: {error}; install the package that "
                    "it names, or correct archive_url"
                ) from error
            self._opened = files, str(root).rstrip("/")
        return self._opened


def mark_of(local: Path) -> Path:
    """Where the local mark of a file or folder is."""
    if local.is_dir():
        return local / MARKER
    return local.with_name(local.name + MARKER)


def sum_of(file: Path) -> str:
    """SHA-256 of a local file."""
    with file.open("rb") as opened:
        return _digest(opened)


def _members(local: Path) -> list[Path]:
    if not local.is_dir():
        return [local]
    return sorted(one for one in local.iterdir() if one.is_file() and one.name != MARKER)


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()
