"""Secrets come from files that nobody else can read, never from arguments or the environment."""

import os
import stat
from pathlib import Path

from tocsin.core.errors import SpecError

_BYTES_MAX = 8192
# Others may do nothing, the group may read: a Kubernetes secret with an fsGroup has mode 0440.
_FORBIDDEN = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO


def read_secret(path: Path, where: str) -> str:
    """The text of a secret file, without the white space around it.

    Read anew for each delivery, so that a rotated secret is taken up without a restart.

    Args:
        where: the setting that names the file, for the message.

    Raises:
        SpecError: it is missing, empty, too long, no file, or not private. The message never holds
            what the file says.
    """
    try:
        # Without waiting for a writer, in case it is a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            known = os.fstat(file.fileno())
            _check_private(known, path, where)
            text = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise SpecError(
            f"{where}: {path} cannot be read ({error.strerror}), expected a file with the secret"
        ) from error
    if len(text) > _BYTES_MAX or not text.strip():
        found = "nothing" if not text.strip() else f"more than {_BYTES_MAX} bytes"
        raise SpecError(f"{where}: {path} holds {found}, expected the secret alone")
    try:
        return text.decode().strip()
    except UnicodeDecodeError as error:
        raise SpecError(f"{where}: {path} is not UTF-8 text, expected the secret alone") from error


def _check_private(known: os.stat_result, path: Path, where: str) -> None:
    if not stat.S_ISREG(known.st_mode):
        raise SpecError(f"{where}: {path} is not a regular file, expected one with the secret")
    mode = stat.S_IMODE(known.st_mode)
    if mode & _FORBIDDEN:
        raise SpecError(
            f"{where}: {path} has mode {mode:04o}, expected one that keeps others out; "
            f"run: chmod 600 {path}"
        )
    if known.st_uid not in (os.getuid(), 0):
        raise SpecError(
            f"{where}: {path} belongs to user {known.st_uid}, expected this user or root; "
            f"run: chown {os.getuid()} {path}"
        )
