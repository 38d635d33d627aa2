"""The load: drawn from the seed, paced, cancelled where planned, and honest about every end."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.experiments import small
from tests.chaos.fake_system import FakeSystem
from tocsin.chaos.faults.batch.malformed import KINDS
from tocsin.chaos.load import (
    Load,
    golden_requests,
    honest_request,
    load_prompts,
    malformed_request,
    warmup_requests,
)
from tocsin.chaos.plan import make_plan
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import parse_experiment
from tocsin.core.clock import SystemClock
from tocsin.core.errors import SpecError
from tocsin.core.history import Chunk, Outcome, RequestRecord
from tocsin.core.system import LoadRequest

PROMPTS = load_prompts("builtin/golden-48", canaries=True)


def _spec(**workload: Any) -> Experiment:
    return parse_experiment(small(workload=workload))


def test_the_builtin_prompts_have_canaries_of_their_own() -> None:
    """48 prompts; no canary occurs in another prompt."""
    assert len(PROMPTS) == 48
    for one in PROMPTS.values():
        holders = [p.id for p in PROMPTS.values() if one.canary in p.text]
        assert holders == [one.id]


def test_without_canaries_the_prompts_are_bare() -> None:
    """And nobody owns a word."""
    bare = load_prompts("builtin/golden-48", canaries=False)
    assert {one.canary for one in bare.values()} == {""}
    assert not any("Code word" in one.text for one in bare.values())


@pytest.mark.parametrize(
    "content", ["{}", "[]", "[1]", '[{"id": 1}]', "no", '[{"id":1,"text":"a"},{"id":1,"text":"b"}]']
)
def test_a_prompt_file_that_is_none_is_a_spec_error(tmp_path: Path, content: str) -> None:
    """One line that says what such a file holds."""
    path = tmp_path / "prompts.json"
    path.write_text(content)
    with pytest.raises(SpecError, match="prompts"):
        load_prompts(str(path), canaries=True)


def test_a_request_depends_on_the_seed_and_its_index_alone() -> None:
    """The hundredth request is the same whatever came before it."""
    spec = _spec()
    assert honest_request(spec, PROMPTS, 100) == honest_request(spec, PROMPTS, 100)
    other = spec.model_copy(update={"seed": 6})
    ours = [honest_request(spec, PROMPTS, i).prompt_id for i in range(50)]
    assert ours != [honest_request(other, PROMPTS, i).prompt_id for i in range(50)]


def test_shares_of_streams_and_cancels_are_those_of_the_spec() -> None:
    """Of 2,000 requests about 80 % stream and 10 % are cancelled, always in mid-stream."""
    spec = _spec(stream_ratio=0.8, abort_ratio=0.1)
    requests = [honest_request(spec, PROMPTS, i) for i in range(2000)]
    cancelled = [one for one in requests if one.cancel_after is not None]
    assert 140 < len(cancelled) < 260
    assert all(one.stream and 1 <= (one.cancel_after or 0) < 8 for one in cancelled)
    assert 0.78 < sum(one.stream for one in requests) / 2000 < 0.86
    assert len(Counter(one.prompt_id for one in requests)) == 48


def test_golden_and_warm_up_requests_ask_what_the_load_asks() -> None:
    """Same messages, same length: the golden answers are answers to the same question."""
    spec = _spec()
    golden = {one.prompt_id: one for one in golden_requests(spec, PROMPTS)}
    for one in [*warmup_requests(spec, PROMPTS), honest_request(spec, PROMPTS, 3)]:
        asked = golden[one.prompt_id].body
        assert one.body["messages"] == asked["messages"]
        assert one.body["max_tokens"] == asked["max_tokens"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_malformed_kind_can_be_sent(kind: str) -> None:
    """Its body is JSON and its record will say what it was."""
    faults = [{**small()["faults"][1], "params": {"kind": kind}}]
    spec = parse_experiment(small(faults=faults))
    one = make_plan(spec).occurrences[0]
    request = malformed_request(one, {"vocab_size": 10, "max_length": 20, "model": "m"}, spec)
    assert request.malformed == kind
    assert request.prompt_id == ""
    assert json.loads(json.dumps(request.body)) == request.body


def _run(load: Load) -> list[RequestRecord]:
    asyncio.run(load.run())
    return list(load.records.values())


@pytest.mark.parametrize("arrival", ["closed", "poisson"])
def test_the_workload_is_sent_whole_and_never_wider_than_allowed(arrival: str) -> None:
    """Forty requests, at most four at once, each with its end."""
    spec = _spec(arrival=arrival, rate=500.0, concurrency=4)
    system = FakeSystem()
    wide = [0]

    class Counting(FakeSystem):
        async def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
            async for record in system.send(request):
                wide[0] = max(wide[0], sum(one.running for one in system.fleet))
                yield record

    records = _run(Load(spec, Counting(), PROMPTS, SystemClock()))
    assert len(records) == 40
    assert 1 < wide[0] <= 4
    outcomes = Counter(record.outcome for record in records)
    assert set(outcomes) == {Outcome.OK, Outcome.CANCELLED}
    for record in records:
        assert record.t_end_ns >= record.t_invoke_ns > 0


def test_a_cancelled_request_ends_at_the_planned_token_and_closes_its_stream() -> None:
    """The server learns of it: nothing of it runs on."""
    system = FakeSystem()
    spec = _spec(abort_ratio=1.0)
    load = Load(spec, system, PROMPTS, SystemClock())
    for record in _run(load):
        assert record.outcome is Outcome.CANCELLED
        assert len(record.chunks) == load.requests[record.request_id].cancel_after
    assert all(one.running == 0 for one in system.fleet)


def test_more_requests_follow_while_somebody_wants_them() -> None:
    """The index goes on, so the extra ones are drawn like the others."""
    spec = _spec(requests=3, abort_ratio=0.0)
    load = Load(spec, FakeSystem(), PROMPTS, SystemClock(), more=lambda: load.sent < 7)
    assert len(_run(load)) == 7
    assert load.stopped


class Odd(FakeSystem):
    """A system whose connections end in odd ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    async def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        record = RequestRecord(request.request_id, request.prompt_id, 1, True, 8)
        record.chunks.append(Chunk(2, 0, 1, "a"))
        yield record
        if self.way == "breaks":
            raise ConnectionResetError("by peer")
        if self.way == "hangs":
            await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("way", "outcome", "error"),
    [
        ("breaks", Outcome.INFO, "ConnectionResetError: by peer"),
        ("hangs", Outcome.INFO, "no end within 0.05 s"),
        ("stops", Outcome.OPEN, ""),
    ],
)
def test_an_end_that_proves_nothing_is_info_and_no_end_is_open(
    way: str, outcome: Outcome, error: str
) -> None:
    """Such a request may have been executed; its tokens so far are kept."""
    spec = _spec(requests=1, deadline="50ms", abort_ratio=0.0)
    (record,) = _run(Load(spec, Odd(way), PROMPTS, SystemClock()))
    assert (record.outcome, record.error) == (outcome, error)
    assert record.tokens == (1,)
