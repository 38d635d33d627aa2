"""A random decoder with a tokenizer of bytes, in a folder as `tocsin serve` takes it."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.ray_jobs.bytes_tokenizer import EOS, bytes_tokenizer


def save_tiny_model(folder: Path) -> Path:
    """Two layers, 257 tokens, half a megabyte; the same weights each time."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=EOS + 1,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    bytes_tokenizer().save_pretrained(folder)
    return folder
