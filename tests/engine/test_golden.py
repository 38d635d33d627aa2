"""Golden answers: two oracles that agree, kept by all that decides the bits."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.engine.tiny import CONFIG, alone, prompt, request, tiny_model
from tocsin.engine import golden as module
from tocsin.engine.golden import GoldenPrompt, golden, reference

PROMPTS = [GoldenPrompt(f"p{n}", prompt(3 + 9 * n, start=n), 7) for n in range(6)]


def test_both_oracles_agree() -> None:
    """The engine's tokens are those of plain Transformers, each with its margin."""
    answers = golden(tiny_model(), None, PROMPTS, CONFIG)
    assert sorted(answers) == [one.prompt_id for one in PROMPTS]
    for answer in answers.values():
        assert answer.tokens == answer.reference_tokens
        assert len(answer.margins) == len(answer.tokens) == 7
        assert min(answer.margins) > 0
        assert answer.finish_reason == "length"


def test_golden_is_what_an_engine_serves() -> None:
    """Served alone, a prompt has its golden answer."""
    answers = golden(tiny_model(), None, PROMPTS, CONFIG)
    for n, one in enumerate(PROMPTS):
        asked = request(one.prompt_id, len(one.prompt_ids), new=7, start=n)
        assert tuple(alone(tiny_model(), asked)) == answers[one.prompt_id].tokens


def test_a_stop_token_ends_both() -> None:
    """Both oracles include the stop token and say so."""
    free = golden(tiny_model(), None, PROMPTS[:1], CONFIG)["p0"]
    at = next(n for n in range(1, 7) if free.tokens[n] not in free.tokens[:n])
    asked = [replace(PROMPTS[0], stop_ids=(free.tokens[at],))]
    stopped = golden(tiny_model(), None, asked, CONFIG)["p0"]
    assert stopped.tokens == stopped.reference_tokens == free.tokens[: at + 1]
    assert stopped.finish_reason == "stop"


def test_the_reference_shares_no_pages_with_the_engine() -> None:
    """It works on a model that never saw an engine."""
    model = tiny_model()
    assert reference(model, prompt(5), 4) == tuple(alone(tiny_model(), request("a", new=4)))
    assert model.config._attn_implementation == "eager"


def test_kept_answers_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same model, prompt, length and engine: read from disk; anything else: computed."""
    first = golden(tiny_model(), None, PROMPTS[:2], CONFIG, cache=tmp_path)
    computed: list[str] = []
    honest = module.reference

    def count(*args: object, **facts: object) -> tuple[int, ...]:
        computed.append("once")
        return honest(*args, **facts)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "reference", count)
    assert golden(tiny_model(), None, PROMPTS[:2], CONFIG, cache=tmp_path) == first
    assert computed == []
    renamed = [replace(PROMPTS[0], prompt_id="other")]
    assert golden(tiny_model(), None, renamed, CONFIG, cache=tmp_path)["other"].prompt_id == "other"
    assert computed == []
    golden(tiny_model(), None, PROMPTS[:3], CONFIG, cache=tmp_path)
    assert len(computed) == 1
    golden(tiny_model(), None, PROMPTS[:1], replace(CONFIG, slots=5), cache=tmp_path)
    model = tiny_model()
    model.model.norm.weight.data[0] += 0.5
    golden(model, None, PROMPTS[:1], CONFIG, cache=tmp_path)
    golden(tiny_model(), None, [replace(PROMPTS[0], max_new_tokens=3)], CONFIG, cache=tmp_path)
    assert len(computed) == 4


def test_kept_answers_of_another_kind_of_processor_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache on a shared volume: another vector width has other bits, so it is computed anew."""
    golden(tiny_model(), None, PROMPTS[:1], CONFIG, tmp_path)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    golden(tiny_model(), None, PROMPTS[:1], CONFIG, tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 2
