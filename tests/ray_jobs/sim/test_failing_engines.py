"""A step that raises, on real checked engines behind the gateway's own resuming."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ray_jobs.sim.little import PROMPTS, experiment
from tocsin.core.calls import BatchCall, Call
from tocsin.core.history import EventKind, Outcome, RequestRecord
from tocsin.core.system import LoadRequest
from tocsin.core.terms import Operator, Phase
from tocsin.core.virtual import VirtualClock
from tocsin.ray_jobs.resume import FAILURES_MAX
from tocsin.ray_jobs.sim.replica import Pace
from tocsin.ray_jobs.sim.simulate import Simulator
from tocsin.ray_jobs.sim.system import SimSystem
from tocsin.ray_jobs.stack import Stack

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"
TOKENS = 6
Fails = Callable[[Stack, BatchCall], bool]


def failing(fails: Fails) -> Callable[[Stack], None]:
    """Replicas whose steps raise what torch raises without memory, whenever `fails` says so."""

    def plant(stack: Stack) -> None:
        def raise_it(call: Call) -> None:
            if isinstance(call, BatchCall) and fails(stack, call):
                raise RuntimeError(NO_MEMORY)

        stack.engine.seams.add_fault(Operator.BATCH, Phase.BEFORE, raise_it)

    return plant


def request_for(name: str, text: str) -> LoadRequest:
    """A streamed chat request under the name of its prompt."""
    message = {"role": "user", "content": text}
    asked = {"max_tokens": TOKENS, "temperature": 0.0, "stream": True}
    body = {"model": "tiny", "messages": [message], **asked}
    return LoadRequest(name, name, "/v1/chat/completions", body, stream=True, max_new_tokens=TOKENS)


def served(
    prompts: Path, fails: Fails, **system: int
) -> tuple[dict[str, RequestRecord], SimSystem]:
    """The three prompts, one after the other, before engines that fail so."""
    simulator = Simulator("tiny", Pace(break_s=0.2, restart_s=0.4), failing(fails))
    made = simulator.system(experiment(prompts, **system), VirtualClock())
    records: dict[str, RequestRecord] = {}

    async def course() -> None:
        for name, text, _ in PROMPTS:
            async for record in made.send(request_for(name, text)):
                records[name] = record

    made.drive(course())
    return records, made


def right(system: SimSystem) -> dict[str, tuple[int, ...]]:
    """Golden answers by prompt."""
    asked = [request_for(name, text) for name, text, _ in PROMPTS]
    return {name: answer.tokens for name, answer in system.golden(asked).items()}


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_that_raises_costs_no_answer(prompts: Path, replicas: int) -> None:
    """In the middle of an answer, on a replica that lives: each client gets all of it, once."""
    first: list[Stack] = []

    def fails(stack: Stack, call: BatchCall) -> bool:
        first.append(stack)
        return stack is first[0] and stack.engine.stats().step == 4

    records, system = served(prompts, fails, replicas=replicas)
    for name, tokens in right(system).items():
        assert records[name].outcome is Outcome.OK
        assert records[name].tokens == tokens
        assert [chunk.index for chunk in records[name].chunks] == list(range(len(tokens)))
    told = [event for event in system.events(0)[1] if event.kind is EventKind.REQUEST_RESUMED]
    assert [NO_MEMORY in event.data["why"] for event in told] == [True]
    assert told[0].data["tokens"] > 0


def test_a_prompt_that_every_engine_fails_at_ends_alone(prompts: Path) -> None:
    """It gets its error after so many failures; nobody else notices, and no replica is lost."""

    def fails(stack: Stack, call: BatchCall) -> bool:
        asked = [stack.engine.request(name) for name in call.request_ids if name]
        return any(one and "dark" in stack.tokenizer.decode(one.prompt_ids) for one in asked)

    records, system = served(prompts, fails, replicas=2)
    poisoned = records.pop("dark")
    assert poisoned.outcome is Outcome.FAIL
    assert NO_MEMORY in poisoned.error
    assert poisoned.failure_id
    assert len(poisoned.attempts) == FAILURES_MAX
    golden = right(system)
    for name, record in records.items():
        assert (record.outcome, record.tokens) == (Outcome.OK, golden[name])
    assert EventKind.REPLICA_DOWN not in {event.kind for event in system.events(0)[1]}
