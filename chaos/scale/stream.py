"""The online check: each token against the golden answer as it arrives, in constant memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from tocsin.chaos.scale.golden import token_bytes
from tocsin.chaos.scale.rows import AFTER_END, INDEX, NONE, TEXT
from tocsin.core.history import Chunk
from tocsin.core.system import GoldenAnswer

_DIVERGED = 1 << 15


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What was right so far, as far as a constant number of words can say it."""

    count: int
    text: int
    first_ns: int


class StreamCheck:
    """Watches one answer for a client; a clean answer takes no memory, however long it gets.

    From the first thing that is not as golden on, everything is kept, and what came before is put
    back from the golden answer: `chunks()` then says exactly what arrived.

    Attributes:
        count: tokens that arrived.
        crc: CRC-32 of them, four bytes each, in the order of their arrival.
        first_divergence: first place that is not as golden, `NONE` while there is none.
        keep: the whole answer is kept, right or wrong.
        flags: suspicions so far (`rows.INDEX`, `rows.AFTER_END`, `rows.TEXT`).
        first_ns, last_ns: when the first and the last token arrived, 0 while none has.
    """

    __slots__ = (
        "_beginning",
        "_calm_until",
        "_ended",
        "_expected",
        "_golden",
        "_kept",
        "_matched",
        "_text",
        "count",
        "crc",
        "first_divergence",
        "first_ns",
        "flags",
        "keep",
        "last_ns",
    )

    def __init__(self, golden: GoldenAnswer | None, *, keep: bool = False) -> None:
        """Begin.

        Args:
            golden: what should arrive; None: not known, then everything is kept.
            keep: keep the whole answer, right or wrong.
        """
        self.count = self.crc = self.flags = self.first_ns = self.last_ns = 0
        self.first_divergence = NONE
        self.keep = keep
        self._golden = golden
        self._expected = golden.tokens if golden is not None else ()
        self._text = golden.text if golden is not None else ""
        self._matched = 0
        self._ended = False
        self._beginning = _Beginning(0, 0, 0) if keep or golden is None else None
        self._kept: list[Chunk] | None = [] if self._beginning is not None else None
        self._calm_until = len(self._expected) if self._kept is None else 0

    def token(self, index: int, token: int, text: str, t_ns: int) -> None:
        """One token has arrived, with the text that it added."""
        count, matched = self.count, self._matched
        if (
            index != count
            or count >= self._calm_until
            or self._expected[count] != token
            or not self._text.startswith(text, matched)
        ):
            self.tokens(index, (token,), text, t_ns)
            return
        # As nearly every token: the next one of an answer that was golden so far.
        self._matched = matched + len(text)
        self.crc = crc32(token.to_bytes(4, "little"), self.crc)
        self.count = count + 1
        self.last_ns = t_ns
        if not count:
            self.first_ns = t_ns

    def tokens(self, index: int, tokens: Sequence[int], text: str, t_ns: int) -> None:
        """Tokens have arrived together: the first has this index, the next the one after it."""
        tokens = tuple(tokens)
        count = self.count
        wrong = AFTER_END if self._ended else 0
        if index != count:
            wrong |= INDEX
        matched = self._matched
        if self._golden is not None:
            wrong |= self._against(self._golden, tokens, text)
        if wrong and self._kept is None:
            self._keep_from(_Beginning(count, matched, self.first_ns))
        self.flags |= wrong & ~_DIVERGED
        self.crc = crc32(token_bytes(tokens), self.crc)
        if self._kept is not None:
            self._kept.extend(
                Chunk(t_ns, index + i, token, "" if i else text) for i, token in enumerate(tokens)
            )
        self.count = count + len(tokens)
        self.last_ns = t_ns
        if not self.first_ns:
            self.first_ns = t_ns

    def _against(self, golden: GoldenAnswer, tokens: tuple[int, ...], text: str) -> int:
        """What is not as golden, and how far the text has matched."""
        wrong, count = 0, self.count
        if self.first_divergence == NONE and golden.tokens[count : count + len(tokens)] != tokens:
            self.first_divergence = count + _first_difference(golden.tokens[count:], tokens)
            wrong = _DIVERGED
        if text and not self.flags & TEXT:
            if golden.text.startswith(text, self._matched):
                self._matched += len(text)
            else:
                wrong |= TEXT
        return wrong

    def end(self) -> None:
        """The last event has arrived: nothing may follow it."""
        self._ended = True
        self._calm_until = 0

    def adds_up(self, text: str) -> bool:
        """Whether the parts add up to a text; False also where only the kept parts can tell."""
        golden = self._golden
        if golden is None or self.flags & TEXT:
            return False
        return len(text) == self._matched and golden.text.startswith(text)

    def chunks(self) -> list[Chunk]:
        """What arrived, token by token.

        Of tokens put back from the golden answer, index, token and joined text are exact; the
        first carries the text of all, and all carry the time of the first.
        """
        kept, began, golden = self._kept, self._beginning, self._golden
        if kept is None or began is None:  # all was as golden so far
            began = _Beginning(self.count, self._matched, self.first_ns)
            kept = self._keep_from(began)
        if golden is None or not began.count:
            return list(kept)
        chunks = [
            Chunk(began.first_ns, i, token, "")
            for i, token in enumerate(golden.tokens[: began.count])
        ]
        chunks[0].text = golden.text[: began.text]
        if chunks and not kept:
            chunks[-1].t_ns = self.last_ns
        return chunks + kept

    def _keep_from(self, beginning: _Beginning) -> list[Chunk]:
        kept: list[Chunk] = []
        self._beginning, self._kept, self._calm_until = beginning, kept, 0
        return kept


def _first_difference(golden: Sequence[int], tokens: Sequence[int]) -> int:
    for place, token in enumerate(tokens):
        if place >= len(golden) or golden[place] != token:
            return place
    return len(tokens)
