"""Runs of four tokens that belong to one prompt only, as sorted 64-bit keys."""

import numpy as np
from numpy.typing import NDArray

from tocsin.chaos.scale.golden import GoldenTable
from tocsin.chaos.triage import GRAM

_PACKED_BITS = 16
_BASE = 0x9E3779B97F4A7C15
_SHARED = -1

Tokens = NDArray[np.int64]


class ForeignKeys:
    """Finds in many answers at once what `triage.ForeignIndex` finds in one.

    Four tokens below 65,536 are packed into 64 bits; larger ones are hashed. Either way a key that
    is found is compared token by token, so that no two runs are taken for each other.
    """

    def __init__(self, golden: GoldenTable) -> None:
        """Sort the runs of all golden answers; those of several prompts belong to nobody."""
        starts = _run_starts(golden.length_P)
        small = not len(golden.tokens_N) or int(golden.tokens_N.max()) < 1 << _PACKED_BITS
        self._base = np.uint64(1 << _PACKED_BITS if small else _BASE)
        owner_N = np.repeat(np.arange(len(golden.names)), golden.length_P)
        runs = golden.tokens_N[starts[:, None] + np.arange(GRAM)].reshape(-1, GRAM)
        distinct, which = np.unique(runs, axis=0, return_inverse=True)
        which = which.reshape(-1)
        owners = np.full(len(distinct), _SHARED)
        owners[which] = owner_N[starts]
        shared = owners[which] != owner_N[starts]
        owners[which[shared]] = _SHARED
        mine = owners != _SHARED
        keys = self._keys(distinct[mine], np.arange(int(mine.sum())))
        order = np.argsort(keys, kind="stable")
        self._keys_G, self._runs_G = keys[order], distinct[mine][order]
        self._owners_G = owners[mine][order]

    def owners(self, tokens_N: Tokens, length_R: Tokens, rank_R: Tokens) -> Tokens:
        """Rank of another prompt whose text occurs in each of R answers, −1 where there is none.

        Args:
            tokens_N: the answers one after another, length_R tokens each.
            rank_R: rank of each answer's own prompt.
        """
        found = np.full(len(length_R), -1, np.int64)
        starts = _run_starts(length_R)
        if not len(starts) or not len(self._keys_G):
            return found
        runs = tokens_N[starts[:, None] + np.arange(GRAM)]
        keys = self._keys(runs, np.arange(len(starts)))
        row = np.repeat(np.arange(len(length_R)), length_R)[starts]
        place = np.searchsorted(self._keys_G, keys)
        # Hashed keys may be equal for different runs: then they stand next to each other.
        open_ = np.flatnonzero(place < len(self._keys_G))
        while len(open_):
            open_ = open_[self._keys_G[place[open_]] == keys[open_]]
            same = (self._runs_G[place[open_]] == runs[open_]).all(axis=1)
            hit = open_[same]
            foreign = hit[self._owners_G[place[hit]] != rank_R[row[hit]]]
            # Backwards, so that of several the first stays.
            found[row[foreign][::-1]] = self._owners_G[place[foreign]][::-1]
            open_ = open_[~same]
            place[open_] += 1
            open_ = open_[place[open_] < len(self._keys_G)]
        return found

    def _keys(self, runs: Tokens, rows: Tokens) -> NDArray[np.uint64]:
        key = np.zeros(len(rows), np.uint64)
        for column in range(GRAM):
            key = key * self._base + runs[:, column].astype(np.uint64)
        return key


def _run_starts(length_R: Tokens) -> Tokens:
    """Places at which a run of `GRAM` tokens begins that ends in the same answer."""
    count = np.maximum(length_R - GRAM + 1, 0)
    begin = np.cumsum(length_R) - length_R
    inner = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    starts: Tokens = np.repeat(begin, count) + inner
    return starts
