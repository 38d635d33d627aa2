"""The served model: right words, right reference, bits that hold."""

from typing import Any

import pytest
import torch

from tests.engine.tiny import answers, drain
from tocsin.core.requests import Request
from tocsin.engine.certificate import certify
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.golden import GoldenPrompt, golden
from tocsin.engine.weights import load, prepare

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def loaded() -> tuple[torch.nn.Module, Any]:
    """Model and tokenizer from the cache."""
    return load(prepare())


def test_it_knows_the_capital_of_france(loaded: tuple[torch.nn.Module, Any]) -> None:
    """Through the chat template, from the engine."""
    model, tokenizer = loaded
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_dict=True,
    )["input_ids"]
    engine = ReferenceEngine(model, tokenizer)
    engine.submit(Request("a", tuple(ids), 16, stop_ids=(tokenizer.eos_token_id,)))
    tokens = answers(drain(engine))["a"]
    assert tokenizer.decode(tokens) == "The capital of France is Paris.<|im_end|>"


def test_golden_tokens_are_the_reference_tokens(loaded: tuple[torch.nn.Module, Any]) -> None:
    """Engine and plain Transformers agree on every token."""
    model, tokenizer = loaded
    texts = ("The capital of France is", "Once upon a time there was", "2, 4, 6,")
    prompts = [GoldenPrompt(text, tuple(tokenizer(text).input_ids), 10) for text in texts]
    found = golden(model, tokenizer, prompts)
    assert "Paris" in found[texts[0]].text
    for answer in found.values():
        assert answer.tokens == answer.reference_tokens


def test_its_bits_hold_in_any_company(loaded: tuple[torch.nn.Module, Any]) -> None:
    """The invariance certificate of the served shape."""
    model, _ = loaded
    certificate = certify(model, EngineConfig(), max_new_tokens=4)
    assert certificate["bit_exact"], certificate["cases"]
    assert certificate["tau"] < 1e-3
