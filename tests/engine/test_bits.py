"""A request has the same bits in any company: the claim on which golden answers rest."""

from dataclasses import replace

import pytest
import torch

from tests.engine.tiny import CONFIG, Notes, answers, drain, recorded, request, tiny_model
from tocsin.core.requests import Request
from tocsin.core.terms import Operator
from tocsin.engine.certificate import certify
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine

BACKENDS = ("flash", "sdpa", "math")


def logits_of(
    config: EngineConfig, asked: Request, before: list[Request], after: list[Request]
) -> list[torch.Tensor]:
    """Logits behind each token of one request among others."""
    engine = ReferenceEngine(tiny_model(), config=config)
    recorder = recorded(engine)
    for one in (*before, asked, *after):
        engine.submit(one)
    drain(engine)
    return [recorder.logits[asked.request_id, n] for n in range(asked.max_new_tokens)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_neighbours_change_no_bit(backend: str) -> None:
    """Alone, in another slot, with longer and shorter neighbours: torch.equal on every logit."""
    config = replace(CONFIG, backends=(backend,))
    asked = request("a", 11, new=9)
    others = [request(f"n{n}", 3 + 9 * n, new=14 - n, start=20 + n) for n in range(3)]
    expected = logits_of(config, asked, [], [])
    for before, after in (([], others), (others, []), (others[:1], others[1:])):
        found = logits_of(config, asked, before, after)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_preemption_and_replay_change_no_bit() -> None:
    """Too few pages for all: somebody is preempted, and every logit stays what it was."""
    asked = [request(f"r{n}", 12, new=20, start=n) for n in range(4)]
    notes = Notes()
    tight = replace(CONFIG, pages=9, prefix_cache=False)
    engine = ReferenceEngine(tiny_model(), config=tight, sink=notes)
    recorder = recorded(engine)
    for one in asked:
        engine.submit(one)
    found = answers(drain(engine))
    assert engine.stats().preemptions > 0
    assert notes.kinds().count("request_preempted") == engine.stats().preemptions
    for one in asked:
        assert len(found[one.request_id]) == 20
        expected = logits_of(CONFIG, one, [], [])
        assert all(torch.equal(expected[n], recorder.logits[one.request_id, n]) for n in range(20))


def test_prefix_hits_change_no_bit() -> None:
    """A prompt whose start is known skips whole chunks and gives the same logits."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    recorder = recorded(engine)
    for name in ("first", "second"):
        engine.submit(request(name, 37, new=6))
        drain(engine)
    assert engine.stats().prefix_hits == 4  # two chunks of two pages
    assert recorder.kinds.count("prefill") == 3 + 1
    for n in range(6):
        assert torch.equal(recorder.logits["first", n], recorder.logits["second", n])


def test_a_prefix_hit_always_leaves_a_token_to_compute() -> None:
    """A prompt of exactly the cached chunks still has its last logits computed."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    for name in ("first", "second"):
        engine.submit(request(name, 32, new=4))
    first_run = answers(drain(engine))
    assert first_run["first"] == first_run["second"]
    engine.submit(request("third", 32, new=4))
    assert answers(drain(engine))["third"] == first_run["first"]
    assert engine.stats().prefix_hits == 2


def test_resuming_with_delivered_tokens_changes_no_bit() -> None:
    """Another replica goes on where the first one stopped, with the logits of the whole run."""
    asked = request("a", 11, new=10)
    expected = logits_of(CONFIG, asked, [], [])
    tokens = [int(row.argmax()) for row in expected]
    for held in (1, 4, 9):
        resumed = replace(asked, delivered=tuple(tokens[:held]))
        engine = ReferenceEngine(tiny_model(), config=CONFIG)
        recorder = recorded(engine)
        engine.submit(resumed)
        events = drain(engine)
        assert answers(events)["a"] == tokens[held:]
        assert next(e.index for e in events if hasattr(e, "index")) == held
        assert all(torch.equal(expected[n], recorder.logits["a", n]) for n in range(10))


def test_backends_agree_within_rounding() -> None:
    """Three ways to compute attention: other bits, the same numbers."""
    asked = request("a", 23, new=6)
    rows = {
        name: torch.stack(logits_of(replace(CONFIG, backends=(name,)), asked, [], []))
        for name in BACKENDS
    }
    for name in BACKENDS[1:]:
        assert torch.allclose(rows["flash"], rows[name], atol=1e-4)


def test_listening_at_every_seam_changes_no_bit() -> None:
    """Records are built only when wanted; building them touches nothing."""
    asked = request("a", 11, new=6)
    expected = logits_of(CONFIG, asked, [], [])
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    heard: set[str] = set()
    for operator in Operator:
        for phase in (0, 1):
            engine.seams.add_check(operator, phase, lambda call: heard.add(str(call.operator)))
    recorder = recorded(engine)
    engine.submit(asked)
    drain(engine)
    assert all(torch.equal(expected[n], recorder.logits["a", n]) for n in range(6))
    assert heard == {
        "batch",
        "kv_read",
        "flash_attn_varlen",
        "device_memory",
        "attention",
        "kv_update",
        "sampler",
    }  # and no logit_processor: none is at work where all is greedy


def test_the_certificate_certifies_and_can_say_no() -> None:
    """Exact on an honest engine; with a backend whose bits depend on the company it is not."""
    certificate = certify(tiny_model(), CONFIG, max_new_tokens=4)
    assert certificate["bit_exact"], certificate
    assert 0 < certificate["tau"] < 1e-3
    assert len(certificate["cases"]) == 5
    assert "(0 " not in " ".join(case["name"] for case in certificate["cases"])

    model = tiny_model()
    calls = [0]

    def drift(module: object, args: object, output: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return output + 1e-3 * calls[0]

    model.lm_head.register_forward_hook(drift)
    assert not certify(model, CONFIG, max_new_tokens=4)["bit_exact"]
