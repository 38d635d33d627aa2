"""What clients do on purpose: requests sent, repeated, read slowly or given up as a fault says."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.chaos.contract import faults
from tocsin.chaos.load import Load, chat_request, malformed_request
from tocsin.chaos.plan import Occurrence
from tocsin.core.draw import draw_choice, draw_u64
from tocsin.core.errors import TocsinError
from tocsin.core.faulting import Evidence
from tocsin.core.history import Outcome, RequestRecord
from tocsin.core.system import LoadRequest

_LOOK_S = 0.02
_PROBE_AGAIN_S = 0.2


@dataclass(slots=True)
class ClientTarget:
    """What a fault of the clients can reach: the load under way, and the service's front door.

    Attributes:
        occurrence: also begins the names of the requests that the fault sends.
        load: sends requests and gives them up; its records are what the clients saw.
        fired_ns: when it acted, 0 before; seen_ns: when a client saw the service's answer to it.
        served_again: a probe sent after the act was answered whole.
    """

    occurrence: str
    load: Load
    params: Mapping[str, Any]
    seed: int
    fired_ns: int = 0
    seen_ns: int = 0
    served_again: bool = False
    memory: dict[str, Any] = field(default_factory=dict)
    _sent: int = 0

    def strike(self) -> None:
        """The act begins now."""
        self.fired_ns = self.load.clock.now_ns()

    def request(self, *, stream: bool = True, **changes: Any) -> LoadRequest:
        """A further well-formed request of the workload, with some fields changed."""
        name = f"{self.occurrence}.{self._sent}"
        prompts = self.load.prompts
        prompt = prompts[draw_choice(sorted(prompts), self.seed, "prompt", self._sent)]
        self._sent += 1
        return replace(chat_request(self.load.spec, prompt, name, stream=stream), **changes)

    async def send(self, requests: Sequence[LoadRequest]) -> list[RequestRecord]:
        """Send them all at once; their records at their ends."""
        return list(await asyncio.gather(*(self.load.send(one) for one in requests)))

    def streaming(self) -> list[str]:
        """Ids of honest requests that are in the middle of their streams."""
        return [
            name
            for name, record in self.load.records.items()
            if record.stream
            and record.outcome is Outcome.OPEN
            and record.chunks
            and not record.malformed
        ]

    async def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Look until a condition holds, the load ends or time is up; whether it holds."""
        until_ns = self.load.clock.now_ns() + int(timeout_s * 1e9)
        while not condition():
            if self.load.stopped or self.load.clock.now_ns() >= until_ns:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    def shuffled(self, names: Sequence[str]) -> list[str]:
        """In an order of this occurrence's own."""
        return sorted(names, key=lambda name: draw_u64(self.seed, "order", name))

    async def probe(self) -> None:
        """One fresh request: is it answered whole?"""
        record = await self.load.send(self.request())
        self.served_again = record.outcome is Outcome.OK


@dataclass(frozen=True, slots=True)
class Acted:
    """What became of one occurrence.

    Attributes:
        healed_ns: when the service was shown to be well after it, 0: it was not.
        seen_ns: when a client saw the service's answer to it, 0: none did.
        error: why it could not act, or what did not heal.
    """

    evidence: Evidence | None
    fired_ns: int
    healed_ns: int
    seen_ns: int = 0
    error: str = ""

    @property
    def state(self) -> str:
        """In the words of `core.faulting.OrderStatus`."""
        if not self.fired_ns:
            return "disarmed"
        return "healed" if self.healed_ns else "unhealed"


async def act(one: Occurrence, load: Load, facts: Mapping[str, Any]) -> Acted:
    """Carry out an occurrence of scope CLIENT to its end, its heal included.

    Args:
        facts: what the system says of itself, for a malformed body.
    """
    unit = faults()[one.kind]
    if not inspect.iscoroutinefunction(unit.inject):
        return _answered(await load.send(malformed_request(one, facts, load.spec)))
    target = ClientTarget(one.id, load, one.params, one.seed)
    try:
        evidence: Evidence = await unit.inject(target)
    except (TocsinError, ValueError, TypeError) as error:
        return Acted(None, 0, 0, error=f"{one.kind}: {error}")
    if not evidence.fired:
        return Acted(evidence, 0, 0, error=f"{evidence.place}: still reads {evidence.after}")
    healed = await _healed(target, unit.verify_heal_with, one.expect.recover_within_s)
    return Acted(
        evidence,
        target.fired_ns,
        load.clock.now_ns() if healed else 0,
        target.seen_ns,
        "" if healed else f"{one.kind}: not well again in {one.expect.recover_within_s:g} s",
    )


async def _healed(
    target: ClientTarget, verify: Callable[[Any], bool] | None, timeout_s: float
) -> bool:
    """Whether a fresh request is answered in time, and the fault finds its place well."""
    until_ns = target.load.clock.now_ns() + int(timeout_s * 1e9)
    while True:
        await target.probe()
        if target.served_again and (verify is None or verify(target)):
            return True
        if target.load.stopped or target.load.clock.now_ns() >= until_ns:
            return False
        await asyncio.sleep(_PROBE_AGAIN_S)


def _answered(answer: RequestRecord) -> Acted:
    """A malformed request has its answer: that is the proof, and there is nothing to heal."""
    after, error = f"answered {answer.http_status} {answer.error}".strip(), ""
    if answer.outcome in (Outcome.INFO, Outcome.OPEN):
        after, error = "not sent", answer.error or "no answer"
    refused = after.startswith("answered 4")
    return Acted(
        Evidence(
            place=f"body of request {answer.request_id} ({answer.malformed})",
            before="not sent",
            after=after,
            requests=(answer.request_id,),
        ),
        answer.t_invoke_ns,
        answer.t_end_ns,
        answer.t_end_ns if refused else 0,
        error,
    )
