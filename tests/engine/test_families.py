"""Other decoders and other dtypes: the engine runs Transformers' own code, whatever the family."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from tests.engine.tiny import CONFIG, answers, drain, prompt, recorded, request, tiny_model
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.golden import reference

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "eos_token_id": None,
    "pad_token_id": None,
}
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama_mha": LlamaConfig(**{**SHAPE, "num_key_value_heads": 4}),
    "llama_mqa": LlamaConfig(**{**SHAPE, "num_key_value_heads": 1}),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
    "gemma": GemmaConfig(**SHAPE),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_as_transformers_does(family: str) -> None:
    """Three prompts at once, of a page, a chunk and more, against plain eager decoding."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(FAMILIES[family]).eval()
    lengths = (3, 16, 29)
    expected = {
        f"r{n}": list(reference(model, prompt(length, start=n), 8))
        for n, length in enumerate(lengths)
    }
    engine = ReferenceEngine(model, config=CONFIG)
    for n, length in enumerate(lengths):
        engine.submit(request(f"r{n}", length, new=8, start=n))
    assert answers(drain(engine)) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bits_hold_in_half_precision(dtype: torch.dtype) -> None:
    """Alone and among others: the same logits, to the bit, and fp32 logits to sample from."""
    asked = request("a", 11, new=6)
    seen = []
    for neighbours in (0, 3):
        engine = ReferenceEngine(tiny_model().to(dtype), config=CONFIG)
        recorder = recorded(engine)
        for n in range(neighbours):
            engine.submit(request(f"n{n}", 3 + 9 * n, new=9, start=20 + n))
        engine.submit(asked)
        drain(engine)
        assert engine.pages.data.dtype == dtype
        assert engine.pages.verify(range(CONFIG.pages + 1)) == ()
        seen.append([recorder.logits["a", n] for n in range(6)])
    assert seen[0][0].dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
