"""What is kept of every request: one row of 56 bytes."""

import re
import struct
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from tocsin.core.history import Outcome

ROW = np.dtype(
    [
        ("request", "<u8"),
        ("t_invoke_ns", "<i8"),
        ("t_first_ns", "<i8"),
        ("t_end_ns", "<i8"),
        ("tokens_crc", "<u4"),
        ("token_count", "<u4"),
        ("first_divergence", "<u4"),
        ("prompt", "<u4"),
        ("flags", "<u2"),
        ("http_status", "<u2"),
        ("outcome", "u1"),
        ("finish", "u1"),
        ("terminals", "u1"),
        ("attempts", "u1"),
    ]
)
"""One request.

`request` is the key of its id (`key_of`), `tokens_crc` the CRC-32 of its tokens as they arrived,
each as four bytes, `first_divergence` the first place that is not as golden, `prompt` the rank of
its prompt id among the golden ones; `outcome` and `finish` are places in `OUTCOMES` and
`FINISHES`, `terminals` and `attempts` numbers that stop at 255. Times are nanoseconds of one
monotonic clock; 0: it never happened.
"""
PACK = struct.Struct("<QqqqIIIIHHBBBB")
NONE = 0xFFFF_FFFF
"""No divergence, or no golden answer to this prompt."""

OUTCOMES = tuple(str(outcome) for outcome in Outcome)
FINISHES = ("", "stop", "length", "other")
OTHER = FINISHES.index("other")

# Suspicions: whoever has one is judged by its tokens.
INDEX = 1 << 0  # an index was not the next one
AFTER_END = 1 << 1  # a token after the end
USAGE = 1 << 2  # the count of the answer is not the number of tokens that arrived
PARTS = 1 << 3  # the parts do not add up to the text
TEXT = 1 << 4  # the text is no beginning of the golden text
ENDING = 1 << 5  # complete, but not as golden; or not ended once; or lost
SUSPECT = INDEX | AFTER_END | USAGE | PARTS | TEXT | ENDING
# What it was.
DEGRADED = 1 << 8
MALFORMED = 1 << 9
KEPT = 1 << 10  # the whole request is in the history
HAS_TEXT = 1 << 11

_NAMED = re.compile(r"([a-z])(\d{1,18})")
_NUMBER_BITS, _WIDTH_BITS = 52, 5
_DIGEST = 1 << 63
_MASK = (1 << 64) - 1
Keys = NDArray[np.uint64]


def key_of(request_id: str) -> int:
    """64 bits for a request id: exact for a letter and a number, else a digest (BLAKE2b).

    Digests have the highest bit; two of ten million ids fall together once in 200,000 runs.
    """
    match = _NAMED.fullmatch(request_id)
    if match is not None and int(match[2]) < 1 << _NUMBER_BITS:
        letter, width = ord(match[1]) - ord("a"), len(match[2])
        return (letter << _WIDTH_BITS | width) << _NUMBER_BITS | int(match[2])
    digest = blake2b(request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | _DIGEST


def name_of(key: int) -> str:
    """The request id of an exact key; of a digest its digits."""
    if key & _DIGEST:
        return f"request #{key:016x}"
    number = key & (1 << _NUMBER_BITS) - 1
    width = key >> _NUMBER_BITS & (1 << _WIDTH_BITS) - 1
    return f"{chr(ord('a') + (key >> (_NUMBER_BITS + _WIDTH_BITS)))}{number:0{width}d}"


def mixed(value: int) -> int:
    """SplitMix64's finaliser: every bit of the result depends on every bit of the value."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def shards_of(keys: Keys, shards: int) -> NDArray[np.int64]:
    """Shard of each key; all records of one request id are in one."""
    z = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) % np.uint64(shards)).astype(np.int64)


class Reservoir:
    """A seeded share of all requests: whether one is in it depends on seed and key alone."""

    def __init__(self, seed: int, share: float) -> None:
        """Take `share` of the requests, in [0, 1]."""
        self._salt = mixed(seed & _MASK)
        self._below = int(share * (1 << 64))

    def __contains__(self, key: int) -> bool:
        """Whether the request of this key is kept whole."""
        return mixed(key ^ self._salt) < self._below
