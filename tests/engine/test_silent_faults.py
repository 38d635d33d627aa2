"""What real engines do in silence, this one does too when nothing is checked."""

import torch

from tests.engine.tiny import (
    CONFIG,
    alone,
    answers,
    drain,
    endings,
    listened,
    request,
    tiny_model,
)
from tocsin.core.calls import VarlenAttentionCall
from tocsin.core.requests import Finish
from tocsin.core.terms import Operator, Phase
from tocsin.engine.engine import ReferenceEngine

DEEP = tiny_model(num_hidden_layers=3)
"""From the third layer on a poisoned row spoils the keys and values of all that read it."""


def poisoned_engine() -> ReferenceEngine:
    """An engine in which one NaN has touched one decode step of one request.

    The step writes the last row of the request's first page.
    """
    engine = ReferenceEngine(DEEP, config=CONFIG)
    fired: list[int] = []

    def one_nan(module: object, args: object, output: torch.Tensor) -> torch.Tensor | None:
        if fired or output.shape[:2] != (CONFIG.slots, 1) or engine.stats().step < 3:
            return None
        fired.append(engine.stats().step)
        spoilt = output.clone()
        spoilt[0, 0, 3] = float("nan")
        return spoilt

    hook = engine.model.model.layers[0].self_attn.o_proj.register_forward_hook(one_nan)
    engine.submit(request("victim", 6, new=9, start=50))
    events = drain(engine)
    hook.remove()
    assert fired
    tokens = answers(events)["victim"]
    assert tokens[:2] == alone(DEEP, request("victim", 6, new=9, start=50))[:2]
    assert set(tokens[2:]) == {0}
    assert endings(events)["victim"].finish is Finish.LENGTH
    return engine


def test_one_transient_nan_poisons_later_clean_requests() -> None:
    """Finding A: the NaN stays in a freed page of V, and whoever gets the page answers nothing."""
    engine = poisoned_engine()
    assert engine.pages.data[:, :, 1].isnan().any()
    for n in range(4):  # short ones: the poisoned row stays in the hidden tail of their page
        asked = request(f"clean{n}", 3, new=4, start=n)
        engine.submit(asked)
        events = drain(engine)
        assert endings(events)[asked.request_id].finish is Finish.LENGTH
        assert answers(events)[asked.request_id] == [0] * 4
        assert alone(DEEP, asked) != [0] * 4


def test_zeroing_the_pages_ends_the_poisoning() -> None:
    """The repair needs no restart: zero the pages, and the same bits come back."""
    engine = poisoned_engine()
    engine.pages.zero(range(CONFIG.pages + 1))
    asked = request("clean", 5, new=6)
    engine.submit(asked)
    assert answers(drain(engine))["clean"] == alone(DEEP, asked)


def test_sums_do_not_see_what_was_written_as_nan() -> None:
    """The sums are of what was written: the poison itself must be caught when it is made."""
    engine = poisoned_engine()
    assert engine.pages.verify(range(CONFIG.pages + 1)) == ()


def test_wrong_cu_seqlens_change_the_answer_and_raise_nothing() -> None:
    """Half of one row's keys are cut off in one launch; the answer is another one, with success."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)

    def corrupt(call: VarlenAttentionCall) -> None:
        if engine.stats().step == 5:
            call.cu_seqlens_k[1:] -= 6

    engine.seams.add_fault(Operator.FLASH_ATTN_VARLEN, Phase.BEFORE, corrupt)
    asked = request("a", 12, new=10)
    engine.submit(asked)
    events = drain(engine)
    assert endings(events)["a"].finish is Finish.LENGTH
    assert answers(events)["a"] != alone(tiny_model(), asked)
    assert answers(events)["a"][:3] == alone(tiny_model(), asked)[:3]


def test_a_flipped_bit_in_a_stored_value_changes_the_answer() -> None:
    """A large exponent flip in V of an early token: wrong from then on, with success."""
    engine = listened(tiny_model())
    asked = request("a", 12, new=10)
    engine.submit(asked)
    for _ in range(4):
        engine.step()
    page = engine.pages.table("a")[0]
    engine.pages.data[page, 0, 1, 2, 5:6].view(torch.int32).bitwise_xor_(1 << 30)
    events = drain(engine)
    assert endings(events)["a"].finish is Finish.LENGTH
    assert answers(events)["a"] != alone(tiny_model(), asked)[3:]
    assert engine.pages.verify((page,)) == (page,)
