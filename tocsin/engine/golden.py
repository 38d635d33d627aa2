"""Golden answers: by a quiet engine, and by plain Transformers code that shares none of ours."""

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tocsin.core.errors import TocsinError
from tocsin.core.history import Event, EventKind
from tocsin.core.requests import FinishEvent, Request, TokenEvent
from tocsin.core.system import GoldenAnswer
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine, cache_keyword

_ARITHMETIC = 3
"""Grows when the engine's arithmetic changes, or what is kept of an answer."""
_NO_BITS = ("queue_max", "pages", "recomputes_max", "logits_told_every")


@dataclass(frozen=True, slots=True)
class GoldenPrompt:
    """A prompt whose right greedy answer is wanted."""

    prompt_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Fingerprints:
    """What the quiet engine tells of its logits; implements `core.protocols.Sink`.

    Attributes:
        crcs: by request, in the order of its tokens.
    """

    crcs: dict[str, list[int]] = field(default_factory=dict)

    def emit(self, event: Event) -> None:
        """Keep it, if it is one."""
        if event.kind is EventKind.LOGITS:
            self.crcs.setdefault(event.request_id, []).append(event.data["crc"])


def golden(
    model: nn.Module,
    tokenizer: Any,
    prompts: Sequence[GoldenPrompt],
    config: EngineConfig | None = None,
    cache: Path | None = None,
) -> dict[str, GoldenAnswer]:
    """Right answers by prompt id; those in the cache folder are not computed again.

    Args:
        model: a copy that nobody else uses: no checks, no faults; its attention implementation
            is changed.
        tokenizer: to decode the texts; None: they stay empty.
        config: of the engine that is judged: its shape decides the bits.
        cache: folder; None: nothing is kept.
    """
    config = config or EngineConfig()
    digest = _model_digest(model)
    paths = {
        one.prompt_id: cache / f"{_key(digest, one, config)}.json" if cache else None
        for one in prompts
    }
    answers: dict[str, GoldenAnswer] = {}
    for one in prompts:
        kept = _cached(paths[one.prompt_id], one.prompt_id)
        if kept is not None:
            answers[one.prompt_id] = kept
    missing = [one for one in prompts if one.prompt_id not in answers]
    fresh = _answers(model, tokenizer, missing, config) if missing else {}
    for prompt_id, answer in fresh.items():
        _keep(paths[prompt_id], answer)
    return {**answers, **fresh}


def reference(
    model: nn.Module, prompt_ids: Sequence[int], max_new_tokens: int, stop_ids: Sequence[int] = ()
) -> tuple[int, ...]:
    """Greedy tokens by Transformers' eager attention and its own cache: the second oracle.

    The model's attention implementation is `eager` afterwards.
    """
    from transformers import DynamicCache

    facts: Any = model
    facts.set_attn_implementation("eager")
    cache = DynamicCache()
    ids = torch.tensor([list(prompt_ids)], device=next(model.parameters()).device)
    tokens: list[int] = []
    with torch.inference_mode():
        while len(tokens) < max_new_tokens and not (tokens and tokens[-1] in stop_ids):
            # Positional names differ between versions of Transformers; this one they all know.
            output = model(ids, use_cache=True, **{cache_keyword(model): cache})
            tokens.append(int(output.logits[0, -1].float().argmax()))
            ids = ids.new_tensor([[tokens[-1]]])
    return tuple(tokens)


def _answers(
    model: nn.Module, tokenizer: Any, prompts: Sequence[GoldenPrompt], config: EngineConfig
) -> dict[str, GoldenAnswer]:
    """Both oracles on the same prompts."""
    told = _Fingerprints()
    engine = ReferenceEngine(model, tokenizer, replace(config, logits_told_every=1), sink=told)
    tokens: dict[str, list[TokenEvent]] = {one.prompt_id: [] for one in prompts}
    endings: dict[str, FinishEvent] = {}
    left = list(prompts)
    while left or engine.has_work:
        while left and engine.stats().waiting < config.slots:
            one = left.pop(0)
            engine.submit(
                Request(one.prompt_id, one.prompt_ids, one.max_new_tokens, stop_ids=one.stop_ids)
            )
        for event in engine.step():
            if isinstance(event, TokenEvent):
                tokens[event.request_id].append(event)
            else:
                endings[event.request_id] = event
    answers = {}
    for one in prompts:
        ending, events = endings[one.prompt_id], tokens[one.prompt_id]
        if not ending.finish.complete:
            raise TocsinError(
                f"golden: prompt {one.prompt_id} ended with {ending.finish}: {ending.message}; "
                "the quiet engine must answer every prompt"
            )
        ids = tuple(event.token for event in events)
        answers[one.prompt_id] = GoldenAnswer(
            prompt_id=one.prompt_id,
            tokens=ids,
            margins=tuple(event.margin for event in events),
            reference_tokens=reference(model, one.prompt_ids, one.max_new_tokens, one.stop_ids),
            text=tokenizer.decode(_shown(ids, one.stop_ids)) if tokenizer else "",
            finish_reason=str(ending.finish),
            logit_crcs=tuple(told.crcs[one.prompt_id]),
        )
    return answers


def _shown(tokens: tuple[int, ...], stop_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Without the stop token, which is not text."""
    return tokens[:-1] if tokens and tokens[-1] in stop_ids else tokens


def _model_digest(model: nn.Module) -> str:
    """Wrap-around sums of all parameters' bits: cheap, and another model has others."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        bits = weight.detach().contiguous().view(torch.uint8).flatten()
        words = bits[: bits.numel() // 8 * 8].view(torch.int64).sum().item()
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype} {words}".encode())
    return digest.hexdigest()


def _key(model_digest: str, prompt: GoldenPrompt, config: EngineConfig) -> str:
    facts = {
        "arithmetic": _ARITHMETIC,
        "model": model_digest,
        "prompt": prompt.prompt_ids,
        "length": prompt.max_new_tokens,
        "stop": prompt.stop_ids,
        "engine": {**asdict(config), **dict.fromkeys(_NO_BITS, 0)},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        # A folder may be shared by machines: another vector width is another order of adding up.
        "isa": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _cached(path: Path | None, prompt_id: str) -> GoldenAnswer | None:
    if path is None or not path.is_file():
        return None
    facts = json.loads(path.read_text(encoding="utf-8"))
    return GoldenAnswer(
        prompt_id=prompt_id,
        tokens=tuple(facts["tokens"]),
        margins=tuple(facts["margins"]),
        reference_tokens=tuple(facts["reference_tokens"]),
        text=facts["text"],
        finish_reason=facts["finish_reason"],
        logit_crcs=tuple(facts["logit_crcs"]),
    )


def _keep(path: Path | None, answer: GoldenAnswer) -> None:
    """Whole or not at all: several runs may share the folder."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(asdict(answer)), encoding="utf-8")
    part.replace(path)
