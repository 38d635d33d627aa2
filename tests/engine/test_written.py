"""Sums that are kept when keys and values are written: always those of a row's own tokens.

Axes: R rows · K key/value heads · E head size · L key positions.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.engine.tiny import (
    Recorder,
    answers,
    drain,
    listened,
    prompt,
    request,
    tiny_model,
)
from tocsin.checker import native
from tocsin.core.calls import BatchCall
from tocsin.core.requests import Request
from tocsin.core.terms import Phase
from tocsin.core.verdict import Settlement
from tocsin.engine import fused
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.gate import OpenGate
from tocsin.engine.noted import NotedSums
from tocsin.engine.step import Attempt
from tocsin.engine.written import WrittenSums


@pytest.fixture(autouse=True, params=["operators", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the operators where they could be built, and with torch alone."""
    if request.param == "torch":
        monkeypatch.setattr(fused, "DTYPES", frozenset())
    elif not native.available():
        pytest.skip(native.reason())
    return str(request.param)


def assert_states(engine: ReferenceEngine) -> int:
    """The state at each request's last token is that of its pages' contents; returns how many."""
    pool, checked = engine.pages, 0
    for request_id in pool.running():
        sequence = engine._ledger.sequences[request_id]
        if sequence.computed == 0:
            continue
        table = torch.tensor(pool.table(request_id))
        rows = pool.data[table].transpose(1, 3).flatten(0, 1)  # [positions,2,depth,width]
        keys, values = rows[: sequence.computed].unbind(1)
        last = table[(sequence.computed - 1) // pool.page_size]
        heads = pool.heads
        total, low, high, reach = (state[:, last] for state in pool.states)
        torch.testing.assert_close(total, keys.double().sum(0), rtol=1e-12, atol=1e-12)
        assert torch.equal(low, values.amin(0).float())
        assert torch.equal(high, values.amax(0).float())
        norms = keys.unflatten(-1, (heads, -1)).float().norm(dim=-1)
        torch.testing.assert_close(reach, norms.amax(0))
        marks = pool.marks[:, :, table].transpose(3, 4).flatten(2, 3)[:, :, : sequence.computed]
        by_head = values.unflatten(-1, (heads, -1)).float().transpose(0, 1)
        torch.testing.assert_close(marks[0], by_head.sum(-1), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(marks[1], by_head.norm(dim=-1))
        checked += 1
    return checked


def serve(engine: ReferenceEngine, *requests: Request) -> int:
    """Serve them all; after each step every running request is looked at."""
    for one in requests:
        engine.submit(one)
    checked = 0
    while engine.has_work:
        engine.step()
        checked += assert_states(engine)
    return checked


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_states_follow_every_step_across_chunks_and_pages(dtype: torch.dtype) -> None:
    """Prompts of several chunks, of one token and of whole pages; answers that cross pages."""
    engine = listened(tiny_model().to(dtype))
    lengths = (1, 8, 17, 40)
    asked = [request(f"r{n}", n, new=12, start=n) for n in lengths]
    assert serve(engine, *asked) > 40


def test_a_shared_prefix_brings_its_state_along() -> None:
    """The second request computes only what the first did not, and its sums cover all of it."""
    engine = listened(tiny_model())
    serve(engine, Request("first", prompt(40), 4))
    assert serve(engine, Request("second", prompt(40) + prompt(5, 1), 12)) > 10
    assert engine.stats().prefix_hits > 0


def test_a_request_that_is_replayed_starts_from_nothing() -> None:
    """Pages run out, requests lose theirs and come back: no state of an earlier life is left."""
    config = EngineConfig(slots=4, page_size=8, pages=9, max_model_len=64, prefill_chunk=16)
    engine = listened(tiny_model(), config)
    serve(engine, *(request(f"r{n}", 14, new=20, start=n) for n in range(3)))
    assert engine.stats().preemptions > 0


def test_a_step_that_is_run_again_counts_once() -> None:
    """Twice more, undone, and run for good: the states are those of one run."""

    class Again(OpenGate):
        def settle(self, attempt: Attempt, error: Exception | None) -> Settlement:  # type: ignore[override]
            pool = attempt._parts.pool
            attempt.run()
            states = [state.clone() for state in pool.states]
            attempt.undo()
            assert_states(engine)
            attempt.run()
            assert all(map(torch.equal, states, pool.states))
            return super().settle(attempt, error)

    engine = listened(tiny_model())
    engine.gate = Again(engine.choice)
    assert serve(engine, request("r0", 7, new=20), request("r1", 20, new=6, start=2)) > 20


def test_a_row_that_is_taken_back_alone_leaves_the_others() -> None:
    """One row's step is undone: its state is the one before, its neighbour's the one after."""
    engine = listened(tiny_model())
    seen = []

    class Half(Recorder):
        def settle(self, attempt: Attempt, error: Exception | None) -> Settlement:  # type: ignore[override]
            if attempt.kind == "decode" and not seen and all(attempt.request_ids[:2]):
                pool = attempt._parts.pool
                page = [pool.table(name)[0] for name in ("r0", "r1")]
                totals = pool.states[0]
                after = totals[:, page].clone()
                attempt.undo_row(0)
                seen.append((after, totals[:, page].clone()))
                attempt.run()
            return super().settle(attempt, error)

    engine.gate = Half(engine.choice)
    serve(engine, request("r0", 3, new=3), request("r1", 4, new=3, start=1))
    after, undone = seen[0]
    assert not torch.equal(after[:, 0], undone[:, 0])
    assert torch.equal(after[:, 1], undone[:, 1])


def fields_of_each_step(
    monkeypatch: pytest.MonkeyPatch, depth: int
) -> list[tuple[WrittenSums, dict[str, Tensor]]]:
    """What a check of attention would be given at one depth, step by step."""
    kept: list[tuple[WrittenSums, dict[str, Tensor]]] = []

    def spied(record: Callable[[WrittenSums], None]) -> Callable[[WrittenSums], None]:
        def spy(self: WrittenSums) -> None:
            kept.append((self, {name: field.clone() for name, field in self.of(depth).items()}))
            record(self)

        return spy

    for kind in (WrittenSums, NotedSums):
        monkeypatch.setattr(kind, "record", spied(kind.record))
    return kept


def test_attention_is_given_the_sums_of_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """In decoding, the new token included; nothing in a chunk of a prompt; zero for idle rows."""
    kept = fields_of_each_step(monkeypatch, 1)
    engine = listened(tiny_model())
    for n, length in enumerate((3, 9, 20)):
        engine.submit(request(f"r{n}", length, new=6, start=n))
    decoded = 0
    while engine.has_work:
        engine.step()
        state, fields = kept[-1]
        if state._per_row > 1:
            assert not fields
            continue
        pool, places = engine.pages, state._places
        rows, heads = len(places.counts), pool.heads
        pages = pool.data[places.table.clamp(min=0), 1]  # [R,n,2,B,W]
        by_head = pages.transpose(1, 2).flatten(2, 3).unflatten(-1, (heads, -1))
        k, v = by_head.transpose(2, 3).unbind(1)  # [R,K,L,E]
        for row, (start, count) in enumerate(zip(places.starts, places.counts, strict=True)):
            if count == 0:
                assert not fields["key_sums"][row].any()
                assert not fields["value_high"][row].any()
                continue
            seen, own = slice(0, start + 1), {name: field[row] for name, field in fields.items()}
            torch.testing.assert_close(own["key_sums"], k[row, :, seen].double().sum(1))
            torch.testing.assert_close(own["key_reach"], k[row, :, seen].norm(dim=-1).amax(dim=-1))
            torch.testing.assert_close(own["value_sums"][:, seen], v[row, :, seen].sum(-1))
            torch.testing.assert_close(own["value_norms"][:, seen], v[row, :, seen].norm(dim=-1))
            assert torch.equal(own["value_low"], v[row, :, seen].amin(1))
            assert torch.equal(own["value_high"], v[row, :, seen].amax(1))
            decoded += 1
        assert fields["value_sums"].shape == (rows, heads, k.shape[2])
    assert decoded > 10


def test_a_wrong_block_table_does_not_reach_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step reads a foreign page, the sums are the ledger's: they tell the two apart."""
    kept = fields_of_each_step(monkeypatch, 0)  # deeper keys follow from what was read above
    engine = listened(tiny_model())
    sums: list[Tensor] = []

    def alias(call: BatchCall) -> None:
        if call.block_table is not None and len(call.block_table) > 1:
            call.block_table[0] = call.block_table[1]

    for wrong in (False, True):
        if wrong:
            engine = listened(tiny_model())
            engine.seams.add_fault(BatchCall.operator, Phase.BEFORE, alias)
        for n in range(2):
            engine.submit(request(f"r{n}", 6, new=2, start=n))
        list(drain(engine))
        sums.append(next(fields["key_sums"] for state, fields in kept if fields))
        kept.clear()
    torch.testing.assert_close(sums[0][0], sums[1][0])


def test_a_prefix_of_a_page_is_enough_for_answers_to_agree() -> None:
    """Keeping the sums changes no bit of an answer."""
    engine = listened(tiny_model())
    engine.submit(request("r0", 9, new=9))
    first = answers(list(drain(engine)))["r0"]
    engine.submit(request("r1", 9, new=9))
    assert answers(list(drain(engine)))["r1"] == first
