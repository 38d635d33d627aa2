"""A random three-layer decoder and its prompts: the campaign's subject in fast tests."""

import torch
from torch import nn

from tocsin.bench.campaign.plan import Campaign
from tocsin.bench.campaign.subject import Subject, World, golden_world, prepared

ROWS, PROMPT, CHUNK, TOKENS = 4, 9, 3, 5


def tiny(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Random weights, the same in every call."""
    import transformers

    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config).to(dtype).eval()
    return model


def prompts(count: int = 8, length: int = 12) -> list[list[int]]:
    """Token ids that differ in each prompt and position."""
    return [[(7 * n + 11 * i * i + 3) % 120 + 2 for i in range(length)] for n in range(count)]


def load(model: str, dtype: torch.dtype) -> tuple[nn.Module, list[list[int]]]:
    """In place of `load_served`."""
    return tiny(dtype), prompts()


def world_of(subject: Subject) -> World:
    """A golden run of four rows."""
    ids = torch.tensor([one[:PROMPT] for one in prompts(ROWS)])
    return golden_world(subject, ids, CHUNK, TOKENS)


def subject_of(dtype: torch.dtype = torch.float32, profile: str = "full") -> Subject:
    """The tiny model under checks."""
    return Subject(prepared(tiny(dtype)), profile)


SMALL = Campaign(
    seed=5,
    dtypes=("fp32",),
    rows=4,
    horizon={"fp32": 3},
    starts=(1, 2),
    prompt=9,
    chunk=3,
    decode_batches={"fp32": 3},
    prefill_batches={"fp32": 1},
    worlds=2,
    guard_every=1,
    rivals_every=1,
    page_shards=1,
    page_flips=70,
    state_shards=1,
    state_faults=28,
    repair_shards={"fp32": 1},
    repair_faults=6,
    alarm_shards={"fp32": 1},
    alarm_rows=(2,),
    alarm_prompt=7,
    alarm_steps=2,
    slots=3,
)
"""A whole campaign in seconds."""
