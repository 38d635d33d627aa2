"""What the gateway counts: requests by their end, and the times that their users saw."""

from collections.abc import Mapping
from pathlib import Path

from tocsin.core.clock import Clock, SystemClock
from tocsin.core.metrics import (
    CLIENT_BACKLOG,
    CLIENTS_DROPPED,
    IDEMPOTENT_REPLAYS,
    PROMPT_TOKENS,
    REQUEST_DURATION,
    REQUESTS,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
)
from tocsin.ray_jobs.metric_file import MetricFile

Labels = Mapping[str, str] | None
"""Of an exemplar: the trace that a time belongs to."""


class GatewayMeter:
    """The gateway's metric file.

    Args:
        folder: the node folder.
        model: the name under which it is served.
    """

    def __init__(self, folder: Path, model: str, *, clock: Clock | None = None) -> None:
        """Every label set stands at 0."""
        self._clock: Clock = clock or SystemClock()
        self._model = (model,)
        self._file = MetricFile(folder, "gateway", clock=self._clock)
        for metric in (
            CLIENT_BACKLOG,
            CLIENTS_DROPPED,
            IDEMPOTENT_REPLAYS,
            PROMPT_TOKENS,
            REQUEST_DURATION,
            REQUESTS,
            TIME_PER_OUTPUT_TOKEN,
            TIME_TO_FIRST_TOKEN,
        ):
            self._file.prepare(metric, model=self._model)

    def ended(self, outcome: str) -> None:
        """A request has ended, one of `core.metrics.OUTCOMES`."""
        self._file.inc(REQUESTS, (*self._model, outcome))

    def backlog(self, waiting_bytes: int) -> None:
        """So much waits for clients that do not read."""
        self._file.set(CLIENT_BACKLOG, self._model, waiting_bytes)

    def dropped_client(self) -> None:
        """The stream of a client that does not read was ended."""
        self._file.inc(CLIENTS_DROPPED, self._model)

    def replayed(self) -> None:
        """A request was answered with an earlier answer of the same key."""
        self._file.inc(IDEMPOTENT_REPLAYS, self._model)

    def arrived(self) -> "AnswerTimes":
        """A request arrives now."""
        return AnswerTimes(self._file, self._model, self._clock)


class AnswerTimes:
    """The times of one answer, from the arrival of its request."""

    def __init__(self, file: MetricFile, model: tuple[str], clock: Clock) -> None:
        """The request arrives now."""
        self._file = file
        self._model = model
        self._clock = clock
        self._began_ns = clock.now_ns()
        self._first_ns = self._last_ns = 0
        self._tokens = 0
        self._verified = True

    def taken(self, prompt_tokens: int) -> None:
        """The request is understood and goes to a replica."""
        self._file.inc(PROMPT_TOKENS, self._model, prompt_tokens)

    def token(self, *, verified: bool, exemplar: Labels) -> None:
        """A token leaves."""
        now_ns = self._clock.now_ns()
        if not self._first_ns:
            self._first_ns = now_ns
            waited_s = (now_ns - self._began_ns) / 1e9
            self._file.observe(TIME_TO_FIRST_TOKEN, self._model, waited_s, exemplar)
        self._last_ns = now_ns
        self._tokens += 1
        self._verified &= verified

    def ended(self, exemplar: Labels, *, whole: bool) -> None:
        """The answer has ended; one that its client did not wait for has no duration."""
        if whole:
            took_s = (self._clock.now_ns() - self._began_ns) / 1e9
            self._file.observe(REQUEST_DURATION, self._model, took_s, exemplar)
        if self._tokens > 1:
            each_s = (self._last_ns - self._first_ns) / 1e9 / (self._tokens - 1)
            labels = (*self._model, "true" if self._verified else "false")
            self._file.observe(TIME_PER_OUTPUT_TOKEN, labels, each_s, exemplar)
        self._file.flush()
