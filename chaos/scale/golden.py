"""The golden answers as arrays: tokens, margins, and the checksum of every beginning."""

import json
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tocsin.chaos.scale.rows import FINISHES, NONE, OTHER
from tocsin.core.errors import SpecError
from tocsin.core.system import GoldenAnswer

MANIFEST = "manifest.json"


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Tokens as the checksum takes them: four bytes each, lowest first."""
    try:
        return array("I", tokens).tobytes()
    except OverflowError:  # no token id, but somebody sent it
        return array("I", [token & 0xFFFF_FFFF for token in tokens]).tobytes()


class GoldenTable:
    """Golden answers in the order of their prompt ids; P of them with N tokens in all.

    Attributes:
        rank: prompt id → its place p.
        start_P, length_P: where the tokens of p begin in tokens_N, and how many they are.
        margins_N: float64, NaN where no margin is known.
        finish_P: place in `FINISHES`.
        crc: uint32 [N + P]; the checksum of the first n tokens of p is at start_P[p] + p + n.
    """

    def __init__(self, golden: Mapping[str, GoldenAnswer]) -> None:
        """Lay the answers out."""
        self.names = sorted(golden)
        self.answers = [golden[name] for name in self.names]
        self.rank = {name: place for place, name in enumerate(self.names)}
        lengths = [len(answer.tokens) for answer in self.answers]
        self.length_P = np.array(lengths, np.int64)
        self.start_P = np.concatenate([[0], np.cumsum(self.length_P)[:-1]]).astype(np.int64)[
            : len(lengths)
        ]
        self.tokens_N = np.array([t for a in self.answers for t in a.tokens], np.int64)
        self.margins_N = np.full(len(self.tokens_N), np.nan)
        for start, length, answer in zip(self.start_P, lengths, self.answers, strict=True):
            margins = answer.margins[:length]
            self.margins_N[start : start + len(margins)] = margins
        self.finish_P = np.array([finish_code(a.finish_reason) for a in self.answers], np.uint8)
        self.crc = np.array([c for a in self.answers for c in _beginnings(a.tokens)], np.uint32)

    @property
    def stamp(self) -> str:
        """Says which prompts the ranks mean."""
        return f"{zlib.crc32(json.dumps(self.names).encode()):08x}"

    def rank_of(self, prompt_id: str) -> int:
        """Rank of a prompt id, `NONE` where it has no golden answer."""
        return self.rank.get(prompt_id, NONE)


class Knowledge:
    """What a history is judged by, out of a run's manifest.

    Attributes:
        exact: the engine has the invariance certificate; tau: see `triage`.
        words: prompt id → canary word, without case.
        aborted_ns: when the run was stopped early, None: it was not.
        planned: number of requests that the load was to send, 0: not known.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        """Take it from the document of `manifest.json`."""
        self.answers = {key: read_golden(value) for key, value in manifest["golden"].items()}
        self.golden = GoldenTable(self.answers)
        certificate = manifest["certificate"]
        self.exact = bool(certificate.get("bit_exact"))
        self.tau = float(certificate.get("tau", 0.0))
        canaries = {key: str(one["canary"]) for key, one in manifest["prompts"].items()}
        self.words = {key: word.casefold() for key, word in canaries.items() if word}
        self.aborted_ns = int(manifest["t_aborted_ns"]) if manifest["aborted"] else None
        self.planned = int(manifest["spec"]["workload"].get("requests", 0))

    @classmethod
    def of(cls, run_dir: Path) -> "Knowledge":
        """Read a run folder's manifest.

        Raises:
            SpecError: there is none, or it is not one.
        """
        path = run_dir / MANIFEST
        try:
            return cls(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SpecError(
                f"{path}: is no manifest of a run ({error!r}), expected golden, prompts, "
                "certificate and spec; name a folder store/<experiment>/<run>"
            ) from None


def read_golden(document: Mapping[str, Any]) -> GoldenAnswer:
    """A golden answer of a manifest."""
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in document.items()
    }
    return GoldenAnswer(**fields)


def finish_code(reason: str) -> int:
    """Place of a finish reason in `FINISHES`."""
    return FINISHES.index(reason) if reason in FINISHES[:OTHER] else OTHER


def _beginnings(tokens: Sequence[int]) -> list[int]:
    """Checksums of the first 0, 1, 2… tokens."""
    found = [0]
    for token in tokens:
        found.append(zlib.crc32(token_bytes((token,)), found[-1]))
    return found
