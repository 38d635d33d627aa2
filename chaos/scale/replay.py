"""The replay engine: answers from golden, as fast as Python can, and sins where it is told to."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from tocsin.chaos.scale.recorder import Recorder
from tocsin.chaos.scale.rows import mixed
from tocsin.core.draw import draw_below, draw_unit
from tocsin.core.history import Chunk, Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer

REPLICA = "replay-0"
T0_NS = 10**12
TOKEN_NS = 5_000_000
GAP_NS = 20_000
"""Virtual time: a request begins every 20 µs, that is 50,000 a second, and a token takes 5 ms."""
VOCABULARY = 49_152
_LENGTH_LEAST, _LENGTH_MOST = 8, 46
_BLOCK = 1 << 14
_MASK = (1 << 64) - 1


class Piece(NamedTuple):
    """Tokens that arrive together, with the text that they add.

    Attributes:
        first: index of the first of them.
        after_ns: from the beginning of the request.
    """

    first: int
    tokens: tuple[int, ...]
    text: str
    after_ns: int


Answer = tuple[RequestRecord, tuple[Piece, ...]]


class Sinner(Protocol):
    """Who makes some answers wrong."""

    def sin_at(self, number: int) -> str:
        """Name of the sin of a request, empty for an honest one."""
        ...

    def commit(self, sin: str, record: RequestRecord) -> list[RequestRecord]:
        """What clients see instead of a clean answer."""
        ...


def synthetic_golden(prompt_id: str, seed: int, most: int = _LENGTH_MOST) -> GoldenAnswer:
    """A golden answer of 27 tokens on average; it depends on seed and prompt id alone."""
    least = min(_LENGTH_LEAST, most)
    length = least + draw_below(most - least + 1, seed, prompt_id, "length")
    tokens = tuple(draw_below(VOCABULARY, seed, prompt_id, "token", i) for i in range(length))
    margins = tuple(0.05 + 8 * draw_unit(seed, prompt_id, "margin", i) for i in range(length))
    text = "".join(f" t{token}" for token in tokens)
    finish = "length" if length == most else "stop"
    return GoldenAnswer(prompt_id, tokens, margins, tokens, text, finish)


class ReplayEngine:
    """Answers requests by their number: which prompt, whether it is cancelled, and when.

    All of it depends on seed and number alone, so any range can be replayed by any process.
    """

    def __init__(
        self,
        golden: Mapping[str, GoldenAnswer],
        seed: int,
        *,
        abort_ratio: float = 0.05,
        piece: int = 1,
        sinner: Sinner | None = None,
    ) -> None:
        """Cut the golden answers into pieces.

        Args:
            golden: by prompt id, at least one.
            abort_ratio: share of requests that their client cancels half-way.
            piece: tokens that arrive together.
            sinner: None: every answer is as golden.
        """
        self._golden = [golden[name] for name in sorted(golden)]
        self._pieces = [_cut(answer, piece) for answer in self._golden]
        self._seed, self._abort_ratio, self._sinner = seed, abort_ratio, sinner

    def answers(self, first: int, count: int) -> Iterator[Answer]:
        """The answers to `count` requests from number `first` on."""
        sinner = self._sinner
        for begin in range(first - first % _BLOCK, first + count, _BLOCK):
            prompts, aborts = self._draws(begin // _BLOCK)
            for number in range(max(begin, first), min(begin + _BLOCK, first + count)):
                place = number - begin
                if sinner is not None and (sin := sinner.sin_at(number)):
                    yield from self._sinful(sinner, number, prompts[place], sin)
                else:
                    yield self._honest(number, prompts[place], aborts[place])

    def _draws(self, block: int) -> tuple[list[int], list[float]]:
        """Prompt of each request of a block, and where it is cancelled: [0, 1), or not at all."""
        key = [mixed(self._seed & _MASK), block]
        draw = np.random.Generator(np.random.Philox(key=np.array(key, np.uint64)))
        prompts = draw.integers(len(self._golden), size=_BLOCK)
        cancelled = draw.random(_BLOCK) < self._abort_ratio
        return prompts.tolist(), np.where(cancelled, draw.random(_BLOCK), 1.0).tolist()

    def _honest(self, number: int, prompt: int, until: float) -> Answer:
        golden, pieces = self._golden[prompt], self._pieces[prompt]
        begin_ns = T0_NS + number * GAP_NS
        record = RequestRecord(
            f"r{number:05d}",
            golden.prompt_id,
            begin_ns,
            stream=True,
            max_new_tokens=len(golden.tokens),
            outcome=Outcome.OK,
            t_first_ns=begin_ns + pieces[0].after_ns,
            t_end_ns=begin_ns + pieces[-1].after_ns,
            http_status=200,
            finish_reason=golden.finish_reason,
            usage_tokens=len(golden.tokens),
            text=golden.text,
            terminals=1,
            attempts=(REPLICA,),
        )
        if until < 1.0:
            pieces = pieces[: 1 + int(until * (len(pieces) - 1))]
            record.outcome, record.terminals = Outcome.CANCELLED, 0
            record.finish_reason, record.usage_tokens, record.text = "", -1, ""
            record.t_end_ns = begin_ns + pieces[-1].after_ns
        return record, pieces

    def _sinful(self, sinner: Sinner, number: int, prompt: int, sin: str) -> Iterator[Answer]:
        record, pieces = self._honest(number, prompt, 1.0)
        for one in sinner.commit(sin, whole(record, pieces)):
            yield (
                replace(one, chunks=[]),
                tuple(
                    Piece(c.index, (c.token,), c.text, c.t_ns - one.t_invoke_ns) for c in one.chunks
                ),
            )


def drive(recorder: Recorder, answers: Iterator[Answer]) -> None:
    """Be the client of each answer: check it as it arrives, and record it."""
    for record, pieces in answers:
        check = recorder.check(record.request_id, record.prompt_id)
        begin_ns = record.t_invoke_ns
        token, tokens = check.token, check.tokens
        for first, together, text, after_ns in pieces:
            if len(together) == 1:
                token(first, together[0], text, begin_ns + after_ns)
            else:
                tokens(first, together, text, begin_ns + after_ns)
        recorder.add(record, check)


def whole(record: RequestRecord, pieces: tuple[Piece, ...]) -> RequestRecord:
    """The record with its tokens, as a client would keep it that keeps everything."""
    chunks = [
        Chunk(record.t_invoke_ns + piece.after_ns, piece.first + i, token, "" if i else piece.text)
        for piece in pieces
        for i, token in enumerate(piece.tokens)
    ]
    return replace(record, chunks=chunks)


def _cut(golden: GoldenAnswer, piece: int) -> tuple[Piece, ...]:
    """A golden answer in pieces of so many tokens; its text is cut in proportion."""
    tokens, text = golden.tokens, golden.text
    ends = [min(i + piece, len(tokens)) for i in range(0, len(tokens), piece)]
    starts = [0, *ends[:-1]]
    cuts = [len(text) * end // len(tokens) for end in [0, *ends]]
    return tuple(
        Piece(start, tokens[start:end], text[cuts[i] : cuts[i + 1]], end * TOKEN_NS)
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    )
