"""What can never be served is refused at the door, in one line that says what to do."""

from dataclasses import replace
from typing import Any

import pytest

from tests.engine.tiny import CONFIG, VOCAB, drain, request, tiny_model
from tocsin.core.errors import CapacityError, ContractError, SpecError
from tocsin.core.requests import Request, Sampling
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (Request("a", (), 4), "prompt_ids is empty"),
        (Request("", (1,), 4), "request_id is empty"),
        (Request("a", (1,), 0), "max_new_tokens is 0"),
        (Request("a", (1,) * 61, 4), "make 65, expected at most 64"),
        (Request("a", (1, VOCAB), 4), f"token id is {VOCAB}"),
        (Request("a", (1, -1), 4), "token id is -1"),
        (Request("a", (1, True), 4), "token id is True"),
        (Request("a", (1, 2.0), 4), "token id is 2.0"),  # type: ignore[arg-type]
        (Request("a", (1,), 4, delivered=(VOCAB,)), f"token id is {VOCAB}"),
        (Request("a", (1,), 1, delivered=(1, 2)), "2 tokens are delivered"),
        (Request("a", (1,), 4, sampling=Sampling(temperature=-1.0)), "temperature is -1.0"),
        (Request("a", (1,), 4, sampling=Sampling(temperature=float("nan"))), "temperature is nan"),
        (Request("a", (1,), 4, sampling=Sampling(top_p=0.0)), "top_p is 0.0"),
        (Request("a", (1,), 4, sampling=Sampling(top_k=-2)), "top_k is -2"),
    ],
)
def test_a_bad_request_is_refused_with_a_reason(asked: Request, found: str) -> None:
    """Nothing is queued, and the message holds what was found and what to do."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    with pytest.raises(SpecError, match=found) as caught:
        engine.submit(asked)
    assert ";" in str(caught.value)
    assert "expected" in str(caught.value)
    assert not engine.has_work


def test_the_longest_allowed_request_is_served() -> None:
    """The limit itself is within: the nearest miss of "too long"."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    engine.submit(request("a", 60, new=4))
    drain(engine)
    assert engine.stats().tokens_released == 4


def test_a_full_queue_asks_to_come_back() -> None:
    """Capacity is not a fault of the request: another error, and later it is served."""
    engine = ReferenceEngine(tiny_model(), config=replace(CONFIG, queue_max=2))
    engine.submit(request("a"))
    engine.submit(request("b"))
    with pytest.raises(CapacityError, match="2 requests wait"):
        engine.submit(request("c"))
    drain(engine)
    engine.submit(request("c"))
    drain(engine)


def test_an_id_is_used_once_at_a_time() -> None:
    """Two requests of one id could not be told apart; after the end the id is free again."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    engine.submit(request("a"))
    with pytest.raises(SpecError, match="here already"):
        engine.submit(request("a"))
    drain(engine)
    engine.submit(request("a"))
    drain(engine)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"slots": 0}, "slots is 0"),
        ({"prefill_chunk": 12}, "expected a multiple of page_size"),
        ({"pages": 7}, "needs 8"),
        ({"backends": ()}, "expected some of"),
        ({"backends": ("triton",)}, "expected some of"),
    ],
)
def test_an_impossible_shape_is_refused(changes: dict[str, Any], found: str) -> None:
    """A configuration that could deadlock or divide by nothing does not start."""
    with pytest.raises(SpecError, match=found):
        replace(CONFIG, **changes)


def test_a_model_with_other_attention_is_refused() -> None:
    """Sliding windows and capped scores would be computed wrongly: they are not served."""
    for facts in ({"sliding_window": 16}, {"attn_logit_softcapping": 50.0}):
        model = tiny_model()
        for name, value in facts.items():
            setattr(model.config, name, value)
        with pytest.raises(SpecError, match="the model"):
            ReferenceEngine(model, config=CONFIG)
    model = tiny_model()
    model.config.sliding_window = 64  # no request is longer than the window
    ReferenceEngine(model, config=CONFIG)


def test_more_positions_than_the_model_has_are_refused() -> None:
    """RoPE beyond the trained length raises nothing and answers badly."""
    with pytest.raises(SpecError, match="knows 256"):
        ReferenceEngine(tiny_model(), config=EngineConfig(max_model_len=512, pages=64))


def test_the_model_cannot_be_called_around_the_engine() -> None:
    """Without a step there are no pages: a clear error instead of wrong attention."""
    import torch

    model = tiny_model()
    ReferenceEngine(model, config=CONFIG)
    with pytest.raises(ContractError, match="without a step"):
        model(torch.tensor([[1, 2]]))
