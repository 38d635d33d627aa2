"""An archive becomes a run of the caller's own store; nothing that is there is touched."""

import errno
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from tocsin.chaos.spec import LATEST
from tocsin.chaos.store import point_latest, write_atomic
from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.remote.frame import FrameReader, Header, TornArchiveError

ORIGIN = "origin.json"
"""File of an unpacked run that says where it ran and what was left out."""

_INCOMING = ".incoming-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_UNPACKED_BYTES_MAX = 1 << 30
_ATTEMPTS = 1000


def unpack(data: bytes, header: Header, store: Path, origin: str) -> Path:
    """Unpack an archive into `store/<experiment>/<run>` and let `store/latest` lead there.

    Args:
        origin: where the run was, in words.

    Returns:
        The run's folder; the name ends in `.1` and so on where one of that name exists.

    Raises:
        TornArchiveError: it is not what its header says, or holds what a run's folder does not.
        EnvironmentFault: the store cannot be written.
    """
    if not _NAME.fullmatch(header.name) or header.name.partition("/")[0] == LATEST:
        raise TornArchiveError(f"archive: its name is {header.name!r}, expected <experiment>/<run>")
    if hashlib.sha256(data).hexdigest() != header.sha256:
        raise TornArchiveError("archive: its SHA-256 is not the one that its header says")
    try:
        store.mkdir(parents=True, exist_ok=True)
        incoming = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=store))
        try:
            _extract(data, incoming)
            _note_origin(incoming, header, origin)
            run_dir = _moved(incoming, store / header.name)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        point_latest(store, run_dir)
    except OSError as error:
        raise EnvironmentFault(
            f"store: {error.filename or store} cannot be written ({error.strerror or error}), "
            "expected a folder with room for a run; free some or choose another with --store"
        ) from error
    return run_dir


def report_in(run_dir: Path) -> Path:
    """The report of an unpacked run; its folder where it left none."""
    report = run_dir / "report.html"
    return report if report.is_file() else run_dir


def unpack_log(lines: Iterable[str], store: Path, origin: str) -> tuple[Path, Header]:
    """Unpack the archive that a log holds.

    Raises:
        TornArchiveError: it holds none, or not the whole of it.
        EnvironmentFault: the store cannot be written.
    """
    reader = FrameReader()
    for line in lines:
        reader.is_ours(line)
    if reader.header is None and reader.none is not None:
        raise TornArchiveError(
            "archive: the log says that there is none: the run ended with exit code "
            f"{reader.none.exit_code} before it had a folder"
        )
    header, data = reader.whole()
    return unpack(data, header, store, origin), header


def _extract(data: bytes, folder: Path) -> None:
    """Regular files below the folder only; Python's data filter refuses the rest."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            left_bytes = _UNPACKED_BYTES_MAX
            for member in tar:
                left_bytes -= member.size
                if not member.isreg():
                    raise TornArchiveError(
                        f"archive: {member.name!r} is not a file; nothing was kept"
                    )
                if member.name.startswith(f"{ORIGIN}/"):
                    raise TornArchiveError(
                        f"archive: {member.name!r} is where the unpacked run says what it is; "
                        "nothing was kept"
                    )
                if left_bytes < 0:
                    raise TornArchiveError(
                        "archive: unpacked it is more than 1 GiB; nothing was kept"
                    )
                try:
                    tar.extract(member, folder, filter="data")
                except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
                    raise TornArchiveError(
                        f"archive: {member.name!r} is a file and a folder; nothing was kept"
                    ) from error
                except OSError as error:
                    if error.errno not in (errno.ENAMETOOLONG, errno.EINVAL):
                        raise
                    raise TornArchiveError(
                        f"archive: {member.name[:40]!r}… is no name of a file; nothing was kept"
                    ) from error
    except (tarfile.TarError, EOFError, ValueError, zlib.error, gzip.BadGzipFile) as error:
        raise TornArchiveError(
            f"archive: is not a tar.gz of a run ({error}); nothing was kept"
        ) from None


def _note_origin(folder: Path, header: Header, origin: str) -> None:
    document = {
        "origin": origin,
        "tocsin": header.tocsin,
        "archive": {"sha256": header.sha256, "bytes": header.bytes},
        "left_out": [{"path": path, "bytes": size} for path, size in header.left_out],
        "left_out_count": header.left_out_count,
    }
    write_atomic(folder / ORIGIN, json.dumps(document, indent=1).encode() + b"\n")


def _moved(incoming: Path, wanted: Path) -> Path:
    """Move a folder to a name that is free, in one step: a reader sees a whole run or none."""
    wanted.parent.mkdir(exist_ok=True)
    os.chmod(incoming, 0o755)  # as other runs' folders; mkdtemp's are private
    for attempt in range(_ATTEMPTS):
        target = wanted.with_name(f"{wanted.name}.{attempt}") if attempt else wanted
        try:
            target.mkdir()
        except FileExistsError:
            continue
        os.replace(incoming, target)  # onto the empty folder that was just claimed
        return target
    raise EnvironmentFault(f"store: {wanted} is there a thousand times; name another store")
