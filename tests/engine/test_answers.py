"""An engine answers what Transformers answers, and ends every request once."""

import pytest
import torch

from tests.engine.tiny import (
    CONFIG,
    Notes,
    answers,
    drain,
    endings,
    prompt,
    recorded,
    request,
    tiny_model,
)
from tocsin.core.history import EventKind
from tocsin.core.requests import Finish, Request, TokenEvent
from tocsin.engine.engine import ReferenceEngine


@pytest.mark.parametrize("length", [1, 7, 8, 16, 17, 40])
def test_greedy_tokens_are_those_of_transformers(length: int) -> None:
    """Paging, chunks and fixed slots change no token of eager generate."""
    model = tiny_model()
    model.set_attn_implementation("eager")
    ids = torch.tensor([prompt(length)])
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0
    )[0, length:].tolist()
    engine = ReferenceEngine(model, config=CONFIG)
    engine.submit(request("a", length, new=12, ignore_eos=True))
    assert answers(drain(engine))["a"] == expected[:12]


def test_each_request_of_a_crowd_gets_its_own_answer() -> None:
    """More requests than slots, of mixed lengths: all end, none gets another's tokens."""
    model = tiny_model()
    asked = [request(f"r{n}", 2 + 5 * (n % 7), new=3 + n % 5, start=n) for n in range(11)]
    engine = ReferenceEngine(model, config=CONFIG)
    for one in asked:
        engine.submit(one)
    events = drain(engine)
    found = answers(events)
    for one in asked:
        quiet = ReferenceEngine(model, config=CONFIG)
        quiet.submit(one)
        assert found[one.request_id] == answers(drain(quiet))[one.request_id]
    assert {ending.finish for ending in endings(events).values()} == {Finish.LENGTH}
    assert len(endings(events)) == len(asked)


def test_a_stop_token_ends_the_answer_and_is_released() -> None:
    """The stop token is an event and counts; nothing follows it."""
    model = tiny_model()
    engine = ReferenceEngine(model, config=CONFIG)
    engine.submit(request("free", new=8))
    tokens = answers(drain(engine))["free"]
    stop = next(n for n in range(1, 8) if tokens[n] not in tokens[:n])
    engine.submit(request("stopped", new=8, stop_ids=(tokens[stop],)))
    events = drain(engine)
    assert answers(events)["stopped"] == tokens[: stop + 1]
    ending = endings(events)["stopped"]
    assert (ending.finish, ending.tokens) == (Finish.STOP, stop + 1)


def test_ignore_eos_goes_past_the_stop_token() -> None:
    """With ignore_eos the answer has its full length."""
    model = tiny_model()
    engine = ReferenceEngine(model, config=CONFIG)
    engine.submit(request("a", new=8))
    tokens = answers(drain(engine))["a"]
    engine.submit(request("b", new=8, stop_ids=(tokens[2],), ignore_eos=True))
    assert answers(drain(engine))["b"] == tokens


def test_a_cancelled_request_ends_once_and_frees_its_pages() -> None:
    """Cancel works for a running and for a waiting request, and for unknown ids it is nothing."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    for n in range(6):
        engine.submit(request(f"r{n}", 9, new=20, start=n))
    for _ in range(10):
        engine.step()
    assert engine.pages.table("r0")
    for name in ("r0", "r5", "r0", "nobody"):
        engine.cancel(name)
    events = list(engine.step())
    assert [one for one in endings(events)] == ["r0", "r5"]
    assert endings(events)["r0"].finish is Finish.CANCELLED
    assert engine.pages.table("r0") == ()
    events = drain(engine)
    assert sorted(endings(events)) == ["r1", "r2", "r3", "r4"]
    assert engine.audit()["conserved"]
    assert engine.stats().pages_used == 0


def test_the_pages_of_a_cancelled_request_are_told_to_be_free_before_the_next_step() -> None:
    """With their number, and the steps that began in between: none."""
    notes = Notes()
    engine = ReferenceEngine(tiny_model(), config=CONFIG, sink=notes)
    engine.submit(request("r0", 9, new=20))
    engine.step()
    held = len(engine.pages.table("r0"))
    engine.cancel("r0")
    engine.step()
    (freed,) = [event for event in notes.events if event.kind is EventKind.PAGES_FREED]
    assert (freed.request_id, freed.data) == ("r0", {"pages": held, "steps": 0})
    assert held > 0


def test_prefill_and_decode_take_turns() -> None:
    """A long prompt does not hold up those who decode, nor they the prompt."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    kinds = recorded(engine).kinds
    engine.submit(request("talks", 3, new=20))
    for _ in range(3):
        engine.step()
    engine.submit(request("reads", 50, new=2, start=5))
    for _ in range(6):
        engine.step()
    assert kinds[3:9] == ["prefill", "decode"] * 3


def test_a_request_that_is_complete_on_arrival_ends_without_a_token() -> None:
    """Resumed when only the ending was lost: the ending comes, no token is made again."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    engine.submit(Request("length", (1, 2), 2, delivered=(5, 6)))
    engine.submit(Request("stop", (1, 2), 9, stop_ids=(6,), delivered=(5, 6)))
    events = drain(engine)
    assert not answers(events)
    assert endings(events)["length"].finish is Finish.LENGTH
    assert endings(events)["stop"].finish is Finish.STOP
    assert engine.stats().step == 0


def test_tokens_without_checks_are_unverified() -> None:
    """The open gate never claims a verdict."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    engine.submit(request("a", new=4))
    events = drain(engine)
    assert all(not event.verified for event in events if isinstance(event, TokenEvent))
    assert engine.stats().tokens_unverified == engine.stats().tokens_released == 4


def test_pages_are_audited_when_the_engine_falls_idle() -> None:
    """One reading each time that the last request has left."""
    notes = Notes()
    engine = ReferenceEngine(tiny_model(), config=CONFIG, sink=notes, replica="w1")
    for name in ("a", "b"):
        engine.submit(request(name))
        drain(engine)
        engine.step()
        engine.step()
    audits = [event for event in notes.events if str(event.kind) == "page_audit"]
    assert len(audits) == 2
    assert audits[0].data["conserved"]
    assert audits[0].replica == "w1"
