"""Which pages are verified, and when: in turn, on share, before a request completes."""

from collections.abc import Callable

import pytest
import torch

from tests.engine.tiny import CONFIG, drain, prompt, request, tiny_model
from tocsin.core.calls import KVReadCall
from tocsin.core.errors import SpecError
from tocsin.core.requests import Request
from tocsin.core.terms import Operator, Phase
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine

BUDGET = EngineConfig(
    slots=4, page_size=8, pages=24, max_model_len=64, prefill_chunk=16, kv_scrub_pages=1
)


def engine_under(
    config: EngineConfig, heard: Callable[[ReferenceEngine, KVReadCall], None]
) -> ReferenceEngine:
    engine = ReferenceEngine(tiny_model(), config=config)
    engine.seams.add_check(Operator.KV_READ, Phase.BEFORE, lambda call: heard(engine, call))
    return engine


def changed(call: KVReadCall) -> set[int]:
    """Pages whose sums, as this record says, are not those of the write."""
    wrong = (call.sums != call.sums_expected).any(dim=1)
    return set(call.pages[wrong].tolist())


def flip(engine: ReferenceEngine, page: int) -> None:
    """The lowest bit of one value: no numerical check could see it."""
    engine.pages.data[page, 1, 1, 3, 5:6].view(torch.int32).bitwise_xor_(1)


def test_without_a_budget_every_page_is_read_before_each_step() -> None:
    """The default: a flip is known before the next step reads it, whichever page it is in."""
    found: list[set[int]] = []
    engine = engine_under(CONFIG, lambda engine, call: found.append(changed(call)))
    engine.submit(request("r0", 30, new=20))
    for _ in range(5):
        engine.step()
    for page in engine.pages.table("r0"):
        flip(engine, page)
        engine.step()
        assert found[-1] == {page}
        flip(engine, page)


def test_a_budget_reaches_every_page_in_turn() -> None:
    """One page a step: any flip is found within as many steps as the rows have pages."""
    found: list[set[int]] = []
    engine = engine_under(BUDGET, lambda engine, call: found.append(changed(call)))
    engine.submit(request("r0", 30, new=30))
    engine.submit(request("r1", 17, new=30, start=2))
    for _ in range(8):
        engine.step()
    for page in (*engine.pages.table("r0")[:3], *engine.pages.table("r1")[:2]):
        flip(engine, page)
        found.clear()
        held = sum(len(engine.pages.table(name)) for name in ("r0", "r1"))
        steps = 0
        while not any(found):
            engine.step()
            steps += 1
            assert steps <= held + 2
        assert set().union(*found) == {page}
        flip(engine, page)


def test_a_shared_page_is_read_before_another_request_uses_it() -> None:
    """The flip sits in a cached prefix: the first step of the one that adopts it finds it."""
    found: list[set[int]] = []
    engine = engine_under(BUDGET, lambda engine, call: found.append(changed(call)))
    engine.submit(Request("first", prompt(40), 2))
    engine.step()
    pages = engine.pages.table("first")
    list(drain(engine))
    for page in pages[:2]:
        flip(engine, page)
    found.clear()
    engine.submit(Request("second", prompt(40), 2))
    engine.step()
    assert engine.stats().prefix_hits
    assert found[0] == set(pages[:2])


@pytest.mark.parametrize("new", [1, 3])
def test_all_pages_are_read_before_the_last_token_leaves(new: int) -> None:
    """Whatever the turn would have been: in the step that ends a request its pages are verified."""
    found: list[set[int]] = []
    engine = engine_under(BUDGET, lambda engine, call: found.append(changed(call)))
    engine.submit(request("r0", 30, new=new))
    engine.step()
    pages = engine.pages.table("r0")
    assert len(pages) == 2
    for page in pages:
        flip(engine, page)
    list(drain(engine))
    assert found[-1] == set(pages)


def test_an_end_that_no_limit_announces_is_verified_too() -> None:
    """The token decides that the answer is over: its pages are read before it leaves."""
    found: list[set[int]] = []
    plain = ReferenceEngine(tiny_model(), config=CONFIG)
    plain.submit(request("r0", 30, new=6))
    tokens = [event.token for event in drain(plain) if hasattr(event, "token")]
    engine = engine_under(BUDGET, lambda engine, call: found.append(changed(call)))
    engine.submit(Request("r0", prompt(30), 30, stop_ids=(tokens[2],)))
    engine.step()
    pages = engine.pages.table("r0")
    for page in pages:
        flip(engine, page)
    list(drain(engine))
    assert found[-1] == set(pages)


def test_a_budget_of_nothing_is_refused() -> None:
    """Scrubbing is turned off by its check's profile, not by a budget that never comes round."""
    with pytest.raises(SpecError, match="kv_scrub_pages"):
        EngineConfig(kv_scrub_pages=0)
