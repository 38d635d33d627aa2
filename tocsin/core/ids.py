"""Sortable unique ids (ULID, 26 characters of Crockford base 32) of failures and requests."""

import os
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_ulid(wall_ms: int | None = None, entropy: bytes | None = None) -> str:
    """48 bits of milliseconds since the epoch and 80 random bits; sorts by time as text.

    Args:
        wall_ms: milliseconds since the epoch; None: now.
        entropy: ten bytes; None: from the operating system.
    """
    milliseconds = int(time.time() * 1000) if wall_ms is None else wall_ms
    value = (milliseconds << 80) | int.from_bytes(entropy or os.urandom(10), "big")
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))
