"""A courier brings the letters of one receiver: the urgent first, within its rate, until taken."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from tocsin.core.clock import Clock
from tocsin.core.draw import draw_unit
from tocsin.core.errors import CapacityError, TocsinError
from tocsin.dashboards.relay.bucket import TokenBucket
from tocsin.dashboards.relay.channels.contract import Channel, Refusal
from tocsin.dashboards.relay.letter import Letter
from tocsin.dashboards.relay.spool import Spool

Count = Callable[[str, str], None]
"""Receiver kind and one of `core.metrics.DELIVERY_RESULTS`."""

BACKOFF_S, BACKOFF_MAX_S = 1.0, 60.0
WAITING_MAX = 2000
_SUMMARY_EVERY_NS = 60_000_000_000
_RESERVE = 5
"""One token in so many is kept for what pages."""


@dataclass(slots=True)
class _Entry:
    letter: Letter
    number: int
    due_ns: int = 0


class Courier:
    """Never blocks the one who hands it a letter, and never loses one.

    P0 letters go first and are never folded away. Others, when only the reserve is left of the
    minute's tokens, become lines of one summary.
    """

    def __init__(
        self,
        name: str,
        channel: Channel,
        spool: Spool,
        http: httpx.AsyncClient,
        *,
        per_minute: int,
        attempts_max: int,
        clock: Clock,
        count: Count,
    ) -> None:
        """Nothing waits yet."""
        self.name = name
        self.channel = channel
        self.dead = 0
        self._spool = spool
        self._http = http
        self._bucket = TokenBucket(per_minute, clock)
        self._reserve = min(per_minute // _RESERVE, 4)
        self._attempts_max = attempts_max
        self._clock = clock
        self._count = count
        self._waiting: list[_Entry] = []
        self._held: list[Letter] = []
        self._summary_ns: int | None = None
        self._number = 0
        self._wake = asyncio.Event()

    @property
    def queued(self) -> int:
        """Letters that have not arrived, those in the coming summary included."""
        return len(self._waiting) + len(self._held)

    def put(self, letter: Letter) -> None:
        """Take a letter that the spool keeps already."""
        if len(self._waiting) >= WAITING_MAX:
            self._bury(letter, f"{WAITING_MAX} letters wait already")
            return
        self._number += 1
        self._waiting.append(_Entry(letter, self._number))
        self._wake.set()

    async def run(self) -> None:
        """Bring letters for ever."""
        while True:
            self._wake.clear()
            wait_s = await self.step()
            if wait_s == 0.0:
                continue
            try:
                await asyncio.wait_for(self._wake.wait(), wait_s)
            except TimeoutError:
                continue

    async def step(self) -> float | None:
        """Do one thing that is due; returns seconds until the next, None while nothing waits."""
        entry = self._next()
        if entry is not None:
            await self._try(entry)
            return 0.0
        if not self._waiting and not self._held:
            return None
        now_ns = self._clock.now_ns()
        waits = [self._hold_s(entry, now_ns) for entry in self._waiting]
        if self._held:
            waits.append(self._summary_wait_s(now_ns))
        return max(min(waits), 0.001)

    def give_up(self) -> None:
        """The process ends: what waits stays in the spool and goes on when it is started again."""
        for letter in self._fold():
            self._spool.keep(letter)

    def _next(self) -> _Entry | None:
        """What to send now, if anything; folds away what the rate does not allow."""
        now_ns = self._clock.now_ns()
        due = [entry for entry in self._waiting if entry.due_ns <= now_ns]
        due.sort(key=lambda entry: (not entry.letter.urgent, entry.number))
        left = self._bucket.left()
        if due and left and (due[0].letter.urgent or left > self._reserve):
            if self._held and not due[0].letter.urgent and self._summary_wait_s(now_ns) <= 0:
                return self._summary()
            return due[0]
        for entry in due:
            if not entry.letter.urgent and entry.letter.about != "summary":
                self._waiting.remove(entry)
                self._held.append(entry.letter)
                self._count(self.channel.kind, "rate_limited")
        if self._held and self._summary_wait_s(now_ns) <= 0:
            return self._summary()
        return None

    async def _try(self, entry: _Entry) -> None:
        self._bucket.take()
        letter = entry.letter
        try:
            refusal = await self.channel.send(letter, self._http)
        except TocsinError as error:  # a secret that cannot be read now may be there again soon
            refusal = Refusal(str(error), retry=True)
        except Exception as error:  # noqa: BLE001 - the courier outlives whatever a letter breaks
            refusal = Refusal(f"{type(error).__name__}: {error}", retry=False)
        if refusal is None:
            self._waiting.remove(entry)
            self._spool.drop(letter)
            self._count(self.channel.kind, "ok")
            return
        attempts = letter.attempts + 1
        entry.letter = letter.model_copy(update={"attempts": attempts, "error": refusal.why})
        if not refusal.retry or attempts >= self._attempts_max:
            self._waiting.remove(entry)
            self._bury(entry.letter, refusal.why)
            return
        self._count(self.channel.kind, "retried")
        wait_s = backoff_s(letter.id, attempts, refusal.after_s)
        entry.due_ns = self._clock.now_ns() + int(wait_s * 1e9)

    def _bury(self, letter: Letter, why: str) -> None:
        self.dead += 1
        self._spool.bury(letter.model_copy(update={"error": why}))
        self._count(self.channel.kind, "dead_letter")

    def _summary(self) -> _Entry | None:
        """An entry for all that was held back, None where the disk does not take it."""
        self._summary_ns = self._clock.now_ns()
        entry = None
        for letter in self._fold():
            self._number += 1
            entry = _Entry(letter, self._number)
            self._waiting.append(entry)
        return entry

    def _fold(self) -> list[Letter]:
        """One letter that stands for all that were held back; none if there were none."""
        if not self._held:
            return []
        held: Counter[str] = Counter()
        for letter in self._held:
            held.update(letter.names)
        summary = Letter(
            receiver=self.name, about="summary", held=held, accepted_s=self._clock.wall_s()
        )
        try:
            self._spool.keep(summary)
        except CapacityError:
            return []  # the letters themselves stay where they are
        for letter in self._held:
            self._spool.drop(letter)
        self._held = []
        return [summary]

    def _hold_s(self, entry: _Entry, now_ns: int) -> float:
        """Seconds until an entry can be sent: its own delay, then a token."""
        own_s = (entry.due_ns - now_ns) / 1e9
        if own_s > 0:
            return own_s
        return self._bucket.wait_s(1 if entry.letter.urgent else self._reserve + 1)

    def _summary_wait_s(self, now_ns: int) -> float:
        since = None if self._summary_ns is None else now_ns - self._summary_ns
        pause_s = 0.0 if since is None else max(0.0, (_SUMMARY_EVERY_NS - since) / 1e9)
        return max(pause_s, self._bucket.wait_s(self._reserve + 1))


def backoff_s(letter_id: str, attempts: int, after_s: float | None) -> float:
    """Seconds before the next try: doubled each time, jittered by half, never before it was asked.

    Args:
        attempts: tries made so far, at least 1.
    """
    full_s = min(BACKOFF_S * 2.0 ** (attempts - 1), BACKOFF_MAX_S)
    jittered_s = full_s * (0.5 + 0.5 * draw_unit(0, "relay.backoff", letter_id, attempts))
    return max(jittered_s, after_s or 0.0)
