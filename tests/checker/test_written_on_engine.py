"""Attention against the sums of the write, on the real engine: what no other check could see.

Every fault here strikes between the verification of the pages and the kernel, so that the kernel
and a check that recomputes with the kernel's own operands are wrong in the same way.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.checker.test_gate_on_engine import FULL_STEP, Build, Serving
from tocsin.core.terms import Cause, Operator, Phase
from tocsin.engine.cache import PagedCache

SCORES, ROW_SUM, HULL = (f"numerical.attention_{name}" for name in ("scores", "row_sum", "hull"))


@pytest.fixture
def serving(sink: Any, family_model: Build) -> Iterator[Callable[[], Serving]]:
    made: list[Serving] = []

    def make() -> Serving:
        made.append(Serving(family_model("llama", initializer_range=0.3), sink))
        return made[-1]

    yield make
    for one in made:
        one.gate.close()
        one.guard.detach()


@pytest.fixture
def clean(serving: Callable[[], Serving]) -> dict[str, list[int]]:
    """The answers when nothing is wrong; no check may alarm on the way."""
    quiet = serving().serve()
    assert quiet.failures == []
    assert not quiet.gate.counters.skipped
    assert not quiet.gate.counters.check_errors
    return quiet.answers


def first(desk: Serving) -> tuple[str, ...]:
    """Checks of the first failure, in order, each once."""
    return tuple(dict.fromkeys(finding.check for finding in desk.failures[0].findings))


def test_a_key_that_changes_in_its_page_is_seen_in_its_own_step(
    clean: dict[str, list[int]], serving: Callable[[], Serving]
) -> None:
    """Proves the blind spot closed: a sign in an old key, and only the sums of the write see it."""
    desk = serving()

    def flip(call: Any) -> bool:
        if call.depth != 1:
            return False
        page = int(call.block_table[1, 0])
        call.key_cache[page, 2, 0].neg_()
        return True

    desk.at_step(Operator.KV_UPDATE, Phase.AFTER, flip)
    desk.serve()
    assert desk.answers == clean
    # The page's sum is that of attention's own copy; without a compiler it is the second run's.
    assert set(first(desk)) == {SCORES, "state.kv_page_sum"}
    assert desk.failures[0].request_ids == ("r1",)
    assert desk.failures[0].cause is Cause.STATE
    assert desk.failures[0].pages


def test_a_value_that_changes_in_its_page_is_seen_in_its_own_step(
    clean: dict[str, list[int]], serving: Callable[[], Serving]
) -> None:
    """Proves that the values that attention mixed are held to those that were written."""
    desk = serving()

    def flip(call: Any) -> bool:
        if call.depth != 1:
            return False
        page = int(call.block_table[2, 0])
        call.value_cache[page, :4, 1] *= -3.0
        return True

    desk.at_step(Operator.KV_UPDATE, Phase.AFTER, flip)
    desk.serve()
    assert desk.answers == clean
    assert ROW_SUM in first(desk)
    assert SCORES not in first(desk)
    assert desk.failures[0].request_ids == ("r2",)
    assert desk.failures[0].cause is Cause.STATE


@pytest.mark.parametrize("half", [0, 1], ids=["keys", "values"])
def test_a_page_of_another_request_on_the_way_to_the_kernel_is_seen(
    clean: dict[str, list[int]],
    serving: Callable[[], Serving],
    monkeypatch: pytest.MonkeyPatch,
    half: int,
) -> None:
    """Proves that a gather that took a foreign page is told from one that took the row's own."""
    desk, update, done = serving(), PagedCache.update, False

    def wrong(self: PagedCache, *args: Any, **kwargs: Any) -> Any:
        nonlocal done
        read = update(self, *args, **kwargs)
        if not done and args[2] == 1 and desk.engine.stats().step >= FULL_STEP:
            done = True
            read[half][0, :, :4] = read[half][2, :, :4]
        return read

    monkeypatch.setattr(PagedCache, "update", wrong)
    desk.serve()
    assert desk.answers == clean
    assert (SCORES if half == 0 else ROW_SUM) in first(desk)
    assert desk.failures[0].request_ids == ("r0",)
    assert desk.failures[0].cause is Cause.TRANSIENT


def test_a_length_that_leaves_the_newest_token_out_is_seen(
    clean: dict[str, list[int]], serving: Callable[[], Serving]
) -> None:
    """Proves that a wrong length in metadata that agree with each other is found by the sums."""
    desk = serving()

    def shorten(call: Any) -> bool:
        if len(call.cu_seqlens_k) < 3 or call.cu_seqlens_k[1] < 3:
            return False
        call.cu_seqlens_k[1:] -= 1
        call.total_k -= 1
        call.lengths_k_expected[0] -= 1
        return True

    desk.at_step(Operator.FLASH_ATTN_VARLEN, Phase.BEFORE, shorten)
    desk.serve()
    assert desk.answers == clean
    assert SCORES in first(desk)
    assert desk.failures[0].request_ids == ("r0",)
    assert desk.failures[0].cause is Cause.TRANSIENT
    assert HULL not in first(desk) or ROW_SUM in first(desk)
