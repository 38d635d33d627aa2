"""Shapes of OpenAI-compatible answers: whole, and as chunks of a stream."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from tocsin.core.requests import Finish, FinishEvent, TokenEvent
from tocsin.ray_jobs.bodies import error_body
from tocsin.ray_jobs.prompting import Detokeniser, StopText
from tocsin.ray_jobs.tracing.gateway import UNTRACED, Untraced


@dataclass(slots=True)
class Answer:
    """One answer as it grows.

    Attributes:
        chat: chat completion, else plain completion.
        degraded: labels so far; an answer is labelled from the first token that was degraded.
    """

    request_id: str
    model: str
    chat: bool
    prompt_tokens: int
    stop_ids: tuple[int, ...]
    detokeniser: Detokeniser
    stop_text: StopText = field(default_factory=StopText)
    trace: Untraced = UNTRACED
    created_s: int = field(default_factory=lambda: int(time.time()))
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    degraded: tuple[str, ...] = ()
    attempts: tuple[str, ...] = ()
    verified: bool = True

    def add(self, event: TokenEvent, attempts: tuple[str, ...]) -> str:
        """Take a token in; returns the text that may leave now (none for a stop token)."""
        self.tokens.append(event.token)
        self.attempts = attempts
        self.verified &= event.verified
        self.degraded = tuple(dict.fromkeys((*self.degraded, *event.degraded)))
        piece = "" if event.token in self.stop_ids else self.detokeniser.add(event.token)
        piece = self.stop_text.add(piece)
        self.text += piece
        return piece

    def stopped(self) -> FinishEvent | None:
        """The ending of an answer that has come to a stop text, None for any other."""
        if not self.stop_text.found:
            return None
        return FinishEvent(self.request_id, Finish.STOP, len(self.tokens), self.degraded)

    def end(self, event: FinishEvent, attempts: tuple[str, ...]) -> str:
        """Take the ending in; returns the text that was held back."""
        self.attempts = attempts or self.attempts
        self.degraded = tuple(dict.fromkeys((*self.degraded, *event.degraded)))
        rest = self.stop_text.add(self.detokeniser.rest()) + self.stop_text.rest()
        self.text += rest
        return rest

    def chunk(self, piece: str, event: TokenEvent) -> bytes:
        """A chunk of the stream for one token."""
        own = {
            "index": event.index,
            "token": event.token,
            "degraded": list(self.degraded),
            "replica": self.attempts[-1] if self.attempts else "",
        }
        return sse(self._frame(piece, None, own))

    def last_chunk(self, piece: str, event: FinishEvent, *, usage: bool) -> bytes:
        """The chunk that ends the stream: reason, usage, and how the answer came about."""
        frame = self._frame(piece, str(event.finish), self._facts())
        if usage:
            frame["usage"] = self.usage()
        return sse(frame)

    def whole(self, event: FinishEvent) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": str(event.finish), "logprobs": None}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": self.text}
        else:
            choice["text"] = self.text
        facts = {**self._facts(), "tokens": self.tokens}
        return {**self._head(False), "choices": [choice], "usage": self.usage(), "tocsin": facts}

    def usage(self) -> dict[str, int]:
        """Token counts; the stop token counts, as it was generated."""
        made = len(self.tokens)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": made,
            "total_tokens": self.prompt_tokens + made,
        }

    def _facts(self) -> dict[str, Any]:
        return {
            "degraded": list(self.degraded),
            "attempts": list(self.attempts),
            "verified": self.verified,
        }

    def _head(self, stream: bool) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            "id": self.request_id,
            "object": f"{kind}.chunk" if stream and self.chat else kind,
            "created": self.created_s,
            "model": self.model,
        }

    def _frame(self, piece: str, reason: str | None, own: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
        if self.chat:
            delta: dict[str, str] = {"content": piece} if piece else {}
            if len(self.tokens) == 1 and reason is None:
                delta = {"role": "assistant", **delta}
            choice["delta"] = delta
        else:
            choice["text"] = piece
        return {**self._head(True), "choices": [choice], "tocsin": own}


DONE = b"data: [DONE]\n\n"


def sse(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def sse_error(message: str, code: str, failure_id: str | None) -> bytes:
    """An error in the middle of a stream; no [DONE] follows, since the answer is not done."""
    return sse(error_body(message, "server_error", code, failure_id))


def answer_headers(degraded: tuple[str, ...]) -> dict[str, str]:
    """The label where it is known in time; the request's id is added by Serve."""
    return {"x-tocsin-degraded": ", ".join(degraded)} if degraded else {}


def why_refused(ending: FinishEvent) -> str:
    """Why there is no (whole) answer, with the id of the failure behind it."""
    reference = f" (failure {ending.failure_id})" if ending.failure_id else ""
    return f"the answer was {ending.finish}: {ending.message or 'no reason given'}{reference}"
