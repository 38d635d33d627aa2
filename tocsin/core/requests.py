"""What goes into an engine and what comes out of it: requests, tokens, endings."""

from dataclasses import dataclass, field
from enum import StrEnum


class Finish(StrEnum):
    """How a request ended; the first two are complete answers."""

    STOP = "stop"
    LENGTH = "length"
    REFUSED = "refused"  # a check failed and nothing repaired it: an explicit error
    CANCELLED = "cancelled"
    ERROR = "error"  # the engine itself failed, no check refused it: another one may serve it

    @property
    def complete(self) -> bool:
        """Whether the client holds a whole answer."""
        return self in (Finish.STOP, Finish.LENGTH)


GREEDY_BELOW = 1e-5
"""A temperature below it is none: logits divided by it overflow."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; greedy by default.

    The draw for token `i` of a request depends on `seed` and `i` alone, so that a step that is
    run again, or a request that resumes elsewhere, draws the same number.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One generation request.

    Attributes:
        prompt_ids: token ids of the prompt, at least one.
        max_new_tokens: at least one.
        stop_ids: token ids that end the answer (not released as text).
        ignore_eos: keep going past the stop ids up to `max_new_tokens`.
        delivered: tokens that the client already holds (from another replica): they are replayed
            to rebuild the KV pages, never released again; the first token released here has
            index `len(delivered)`.
        traceparent: W3C context of the trace that it belongs to; empty: it is not traced.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    delivered: tuple[int, ...] = ()
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token leaves the engine, its verdict is in (or checks are off: `verified` False).

    Attributes:
        index: 0 for the first token of the answer, whatever replica made it.
        margin: top-1 minus top-2 logit, for the triage of near ties.
        degraded: reasons that the answer is labelled with, empty when none.
    """

    request_id: str
    index: int
    token: int
    margin: float
    verified: bool
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The end of a request; exactly one a request."""

    request_id: str
    finish: Finish
    tokens: int
    degraded: tuple[str, ...] = ()
    failure_id: str | None = None
    message: str = ""


EngineEvent = TokenEvent | FinishEvent


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A reading of an engine, taken between two steps.

    Attributes:
        step: number of steps begun so far: the logical clock `decode_step`.
        pages_free, pages_used, pages_cached, pages_quarantined: add up to `pages_total`.
    """

    step: int
    running: int
    waiting: int
    slots: int
    pages_total: int
    pages_free: int
    pages_used: int
    pages_cached: int
    pages_quarantined: int
    preemptions: int
    prefix_hits: int
    tokens_released: int
    tokens_unverified: int
    backend: str
