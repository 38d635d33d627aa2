"""Sortable unique ids (ULID, 26 characters of Crockford base 32) of failures and requests."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_BYTES = 10

_ENTROPY: ContextVar[Callable[[], bytes] | None] = ContextVar("entropy", default=None)


def new_ulid(wall_ms: int | None = None, entropy: bytes | None = None) -> str:
    """48 bits of milliseconds since the epoch and 80 random bits; sorts by time as text.

    Args:
        wall_ms: milliseconds since the epoch; None: now.
        entropy: ten bytes; None: from the operating system, or as `entropy_from` says.
    """
    milliseconds = int(time.time() * 1000) if wall_ms is None else wall_ms
    value = (milliseconds << 80) | int.from_bytes(entropy or _entropy(), "big")
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))


@contextmanager
def entropy_from(source: Callable[[], bytes]) -> Iterator[None]:
    """Take the random bits of new ids from `source` (at least ten bytes a call): simulation."""
    token = _ENTROPY.set(source)
    try:
        yield
    finally:
        _ENTROPY.reset(token)


def _entropy() -> bytes:
    source = _ENTROPY.get()
    return os.urandom(_BYTES) if source is None else source()[:_BYTES]
