"""A whole chaos run on the replay engine: without a model, and with the verdict it deserves."""

import asyncio

import pytest

from tocsin.chaos.scale.replay_system import ReplaySystem
from tocsin.chaos.scale.sinner import RECORD_TWICE
from tocsin.core.clock import ManualClock
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Order
from tocsin.core.history import Outcome, RequestRecord
from tocsin.core.system import LoadRequest, System


def request(number: int, malformed: str = "") -> LoadRequest:
    return LoadRequest(f"r{number:05d}", "p1", "/v1/chat", {}, True, 12, malformed)


def answer(system: System, one: LoadRequest) -> list[RequestRecord]:
    async def consume() -> list[RequestRecord]:
        return [record async for record in system.send(one)]

    return asyncio.run(consume())


def test_it_answers_from_golden_token_by_token() -> None:
    system = ReplaySystem(clock=ManualClock(1))
    golden = system.golden([request(0)])["p1"]
    seen = answer(system, request(0))
    assert len(seen) == len(golden.tokens) + 1
    last = seen[-1]
    assert (last.outcome, last.tokens, last.text) == (Outcome.OK, golden.tokens, golden.text)
    assert "".join(chunk.text for chunk in last.chunks) == golden.text
    assert len(golden.tokens) <= 12


def test_what_no_honest_client_sends_is_refused() -> None:
    [record] = answer(ReplaySystem(), request(0, malformed="empty"))
    assert (record.outcome, record.http_status, record.terminals) == (Outcome.FAIL, 400, 1)


def test_a_fault_that_has_no_place_in_it_is_refused() -> None:
    with pytest.raises(SpecError, match="has no operators"):
        ReplaySystem().arm("replay-0", Order("weights@0", "weight.bitflip", 1, 0, 1.0))


class Wrong:
    def sin_at(self, number: int) -> str:
        return RECORD_TWICE if number == 1 else ""

    def commit(self, sin: str, record: RequestRecord) -> list[RequestRecord]:
        record.finish_reason = "other"
        return [record, record]


def test_it_sins_where_it_is_told_to() -> None:
    system = ReplaySystem(sinner=Wrong())
    ends = [answer(system, request(i))[-1].finish_reason for i in range(3)]
    assert [end == "other" for end in ends] == [False, True, False]
