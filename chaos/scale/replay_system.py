"""The replay engine as a system under test: whole chaos runs without a model.

It has no operators, so faults on workers and processes have no target in it; what the load sends
is answered from golden, and what no honest client would send is refused.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.chaos.scale.replay import REPLICA, VOCABULARY, Sinner, synthetic_golden
from tocsin.core.clock import Clock, SystemClock
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.history import Chunk, Event, Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer, LoadRequest, ReplicaInfo


@dataclass(slots=True)
class ReplaySystem:
    """Implements `core.system.System`.

    Attributes:
        seed: of the golden answers of prompts that `known` does not have.
        known: golden answers by prompt id, e.g. of an earlier run.
        sinner: makes some answers wrong, counted in the order in which they are asked for.
        token_s: how long a token takes; 0: as fast as the client takes them.
    """

    seed: int = 1
    known: dict[str, GoldenAnswer] = field(default_factory=dict)
    sinner: Sinner | None = None
    token_s: float = 0.0
    clock: Clock = field(default_factory=SystemClock)
    sent: int = 0

    def describe(self) -> dict[str, Any]:
        """What it says of itself."""
        return {
            "engine": "replay",
            "model": "golden",
            "profile": "off",
            "vocab_size": VOCABULARY,
            "max_length": 4096,
        }

    def replicas(self) -> list[ReplicaInfo]:
        """One, that counts an answer as a step and has no pages."""
        now_ns = self.clock.now_ns()
        return [ReplicaInfo(REPLICA, 0, "replay", True, self.sent, now_ns)]

    def golden(self, prompts: Sequence[LoadRequest]) -> dict[str, GoldenAnswer]:
        """The answers that it gives, by prompt id."""
        return {one.prompt_id: self._answer(one) for one in prompts}

    def certificate(self) -> dict[str, Any]:
        """The same answer, bit for bit, each time."""
        return {"bit_exact": True, "tau": 0.0, "cases": 0}

    async def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        """Answer from golden, token by token."""
        record = RequestRecord(
            request.request_id,
            request.prompt_id,
            self.clock.now_ns(),
            request.stream,
            request.max_new_tokens,
            malformed=request.malformed,
        )
        if request.malformed:
            yield self._ended(record, Outcome.FAIL, http_status=400, error="replay: not honest")
            return
        number, self.sent = self.sent, self.sent + 1
        golden = self._answer(request)
        for chunk in _chunks(golden):
            await asyncio.sleep(self.token_s)
            record.chunks.append(replace(chunk, t_ns=self.clock.now_ns()))
            record.t_first_ns = record.t_first_ns or record.chunks[0].t_ns
            yield record
        self._ended(
            record,
            Outcome.OK,
            http_status=200,
            finish_reason=golden.finish_reason,
            usage_tokens=len(golden.tokens),
            text=golden.text,
            attempts=(REPLICA,),
        )
        sin = self.sinner.sin_at(number) if self.sinner is not None else ""
        yield self.sinner.commit(sin, record)[0] if self.sinner is not None and sin else record

    def arm(self, replica: str, order: Order) -> None:
        """Refuse: nothing can be injected into a replayed answer.

        Raises:
            SpecError: always.
        """
        raise SpecError(
            f"{order.occurrence}: the replay engine has no operators, expected a fault of the "
            "client; choose --engine reference"
        )

    def strike(self, replica: str, order: Order) -> None:
        """Refuse, as `arm` does."""
        self.arm(replica, order)

    def renew(self, ttl_s: float) -> None:
        """There is no lease."""

    def disarm(self, occurrence: str) -> None:
        """There is nothing to take back."""

    def orders(self) -> dict[str, OrderStatus]:
        """None was taken."""
        return {}

    def events(self, since: int) -> tuple[int, list[Event]]:
        """Nothing happens in it."""
        return since, []

    def close(self) -> None:
        """Nothing was started."""

    def _answer(self, request: LoadRequest) -> GoldenAnswer:
        name = request.prompt_id
        if name not in self.known:
            self.known[name] = synthetic_golden(name, self.seed, request.max_new_tokens)
        return self.known[name]

    def _ended(self, record: RequestRecord, outcome: Outcome, **fields: Any) -> RequestRecord:
        record.outcome, record.terminals, record.t_end_ns = outcome, 1, self.clock.now_ns()
        for name, value in fields.items():
            setattr(record, name, value)
        return record


def _chunks(golden: GoldenAnswer) -> list[Chunk]:
    """A golden answer token by token; its text is cut in proportion."""
    count, text = len(golden.tokens), golden.text
    cuts = [len(text) * i // count for i in range(count + 1)] if count else []
    return [
        Chunk(0, i, token, text[cuts[i] : cuts[i + 1]]) for i, token in enumerate(golden.tokens)
    ]
