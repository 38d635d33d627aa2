"""From an HTTP body's prompt to token ids: the one way, for the gateway and for golden answers."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tocsin.ray_jobs.plain_text import PlainText

_READ_AT_ONCE = 4096
"""Characters that are tokenized in about ten milliseconds; longer texts would hold others up."""


class Prompting:
    """A tokenizer and what must be known of the model to make prompts for it."""

    def __init__(self, tokenizer: Any, vocab_size: int, max_length: int) -> None:
        """Keep the tokenizer; `max_length` counts prompt and answer tokens together."""
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.stop_ids = (int(tokenizer.eos_token_id),)
        self._plain = PlainText(tokenizer)

    def chat(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Token ids of a conversation, by the model's own chat template.

        Raises:
            SpecError: a text holds control tokens and cannot be read as plain text.
        """
        if self.control_tokens(messages):
            return self._plain.read(messages, self._render, self.text)
        return self.text(self._render(messages))

    def control_tokens(self, messages: Sequence[dict[str, str]]) -> tuple[str, ...]:
        """Control tokens of the template that somebody has written into a message."""
        return self._plain.found(messages)

    def _render(self, messages: Sequence[dict[str, str]]) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        )

    def text(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text; no special token is added."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    async def read_chat(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """`chat`, of which nobody has to wait for a long one."""
        size = sum(len(message["content"]) for message in messages)
        return await _read(size, partial(self.chat, messages))

    async def read_text(self, text: str) -> tuple[int, ...]:
        """`text`, of which nobody has to wait for a long one."""
        return await _read(len(text), partial(self.text, text))

    def complaint(self, prompt_ids: Sequence[int], max_new_tokens: int) -> str | None:
        """Why this prompt cannot be served, None when it can."""
        if not prompt_ids:
            return "prompt: found no tokens, expected at least one; send some text"
        wrong = next((i for i, t in enumerate(prompt_ids) if not 0 <= t < self.vocab_size), None)
        if wrong is not None:
            return (
                f"prompt[{wrong}]: found token id {prompt_ids[wrong]}, expected 0 to "
                f"{self.vocab_size - 1}; use this model's tokenizer"
            )
        total = len(prompt_ids) + max_new_tokens
        if total > self.max_length:
            return (
                f"prompt: {len(prompt_ids)} tokens and max_tokens {max_new_tokens} make {total}, "
                f"expected at most {self.max_length}; shorten the prompt or lower max_tokens"
            )
        return None


async def _read(size: int, tokenize: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    """Token ids of `size` characters; a long text is read on a thread."""
    if size <= _READ_AT_ONCE:
        return tokenize()
    return await asyncio.to_thread(tokenize)


class Detokeniser:
    """Text of a growing list of tokens, piece by piece, never in the middle of a character."""

    def __init__(self, tokenizer: Any) -> None:
        """Nothing has been said yet."""
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._context = 0  # where decoding starts, so that a joining space is seen
        self._told = 0  # tokens whose text is out

    def add(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self._tokens.append(token)
        before, now = self._decode(self._told), self._decode(len(self._tokens))
        if now.endswith("�") or len(now) <= len(before):
            return ""
        self._context, self._told = self._told, len(self._tokens)
        return now[len(before) :]

    def rest(self) -> str:
        """What is left at the end, without an unfinished character."""
        before, now = self._decode(self._told), self._decode(len(self._tokens))
        self._told = len(self._tokens)
        return now[len(before) :].rstrip("�")

    def _decode(self, end: int) -> str:
        tokens = self._tokens[self._context : end]
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


class StopText:
    """Ends an answer before the first stop text, which may come in several pieces."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Without stop texts every piece passes."""
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def add(self, piece: str) -> str:
        """What may be said now; the beginning of a possible stop text is held back."""
        if self.found or not self._stops:
            return "" if self.found else piece
        text = self._held + piece
        ends = [text.index(stop) for stop in self._stops if stop in text]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """What was held back for a stop text that never came."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    return next(n for n in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:n]))
