"""Tiny decoders of seven families, one fake check, and a step that can be run again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tocsin.checker.checks.numerical.linear_checksum import blocks, weighted_sum
from tocsin.checker.contract import Check, check
from tocsin.core.calls import AttentionCall, BatchCall, LinearCall, LogitsCall
from tocsin.core.history import Event, EventKind
from tocsin.core.protocols import PageTag
from tocsin.core.seams import Seams
from tocsin.core.terms import Phase, Priority, Profile

torch.set_num_threads(1)

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3")

_SHAPE = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    # So small that prompt and answer fall out of the window in the families that have one.
    "sliding_window": 8,
}


def build(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    """A random decoder of one family in evaluation mode."""
    import transformers

    classes = {
        "llama": ("LlamaConfig", "LlamaForCausalLM"),
        "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
        "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
        "mistral": ("MistralConfig", "MistralForCausalLM"),
        "gemma": ("GemmaConfig", "GemmaForCausalLM"),
        "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
        "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    }
    config_name, model_name = classes[family]
    shape = {**_SHAPE, **changes}
    if family in ("llama", "gemma", "qwen2", "qwen3"):
        shape.pop("sliding_window")
    torch.manual_seed(7)
    config = getattr(transformers, config_name)(**shape)
    model: nn.Module = getattr(transformers, model_name)(config).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # Not all ones: a check of the factor must have something to see.
                parameter.add_(torch.linspace(-0.2, 0.2, parameter.numel()).to(dtype))
    return model


@pytest.fixture(scope="session")
def family_model() -> Callable[..., nn.Module]:
    """`family_model(family, dtype)`: a fresh random decoder."""
    return build


@dataclass
class ListSink:
    """Keeps every event."""

    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: EventKind) -> list[Event]:
        return [event for event in self.events if event.kind is kind]


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


def _declare(check_id: str, ratio: Callable[..., Tensor], **kwargs: Any) -> Check:
    settings = {"priority": Priority.P0, "impact": "tests fail", "source": "tests", **kwargs}
    return check(check_id, **settings)(ratio)


def _finite_attention(call: AttentionCall, limit: float = 1.0) -> Tensor:
    """Anything not finite in a token's attention output."""
    assert call.output is not None
    return call.output.abs().amax(dim=(1, 3)).flatten() * 0 / limit


def _linear_residual(call: LinearCall, limit: float = 1e-3) -> Tensor:
    """The output recomputed from the block sums."""
    assert call.output is not None
    assert call.block_sums is not None
    sums = weighted_sum(blocks(call.output.float(), call.block_size), call.block_weights)
    residual = sums.sum(-1) - (call.x.float() @ call.block_sums.sum(0))
    if call.bias_sums is not None:
        residual = residual - call.bias_sums.sum()
    scale = call.x.float().norm(dim=-1) * call.block_norms.norm() + 1e-6
    return (residual / scale / limit).abs().flatten()


def _token_range(call: BatchCall) -> Tensor:
    """Token ids outside the vocabulary, a row each."""
    out = (call.input_ids < 0) | (call.input_ids >= call.vocab_size)
    return out.float() * 2


def _logits_finite(call: LogitsCall) -> Tensor:
    """Anything not finite among a row's logits."""
    return call.logits.float().abs().amax(dim=-1).flatten() * 0


@pytest.fixture
def fake_checks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    """A registry of a few simple checks in place of the real one."""
    units = (
        _declare("numerical.attention", _finite_attention, profile=Profile.GUARD),
        _declare("numerical.linear", _linear_residual),
        _declare("semantic.token_range", _token_range, phase=Phase.BEFORE, profile=Profile.GUARD),
        _declare("numerical.logits", _logits_finite, profile=Profile.GUARD, priority=Priority.P1),
    )
    table = {unit.id: unit for unit in units}
    monkeypatch.setattr("tocsin.checker.runtime.registry", lambda: table)
    return table


@dataclass
class FakePages:
    """Paged memory as the gate sees it: who holds what."""

    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    data: Tensor = field(default_factory=lambda: torch.zeros(16, 1, 2, 4, 8))
    page_size: int = 4

    def tag(self, page: int) -> PageTag:
        holders = tuple(name for name, pages in self.tables.items() if page in pages)
        return PageTag(holders[0] if holders else "", 1, 0, self.page_size, holders)

    def verify(self, pages: Sequence[int]) -> tuple[int, ...]:
        return tuple(page for page in pages if not torch.isfinite(self.data[page]).all())

    def zero(self, pages: Sequence[int]) -> None:
        self.data[list(pages)] = 0

    def table(self, request_id: str) -> tuple[int, ...]:
        return self.tables.get(request_id, ())

    def running(self) -> tuple[str, ...]:
        return tuple(self.tables)


@dataclass
class FakeAttempt:
    """A step whose body is a function of (attempt, backend); counts its runs."""

    body: Callable[["FakeAttempt", str], None]
    gate: Any
    pages: FakePages = field(default_factory=FakePages)
    step: int = 0
    kind: str = "decode"
    request_ids: tuple[str, ...] = ("a", "b", "")
    backend: str = "flash"
    runs: int = 0
    launched: bool = False
    backends: list[str] = field(default_factory=list)
    outputs: tuple[int, ...] = (5, 6, -1)
    quarantined: list[int] = field(default_factory=list)

    def run(self, backend: str | None = None) -> None:
        self.backend = backend or self.backend
        self.runs += 1
        self.backends.append(self.backend)
        with torch.no_grad():
            self.body(self, self.backend)

    def tokens(self) -> tuple[int, ...]:
        return self.outputs

    def corrupt_pages(self) -> tuple[int, ...]:
        return self.pages.verify([page for pages in self.pages.tables.values() for page in pages])

    def quarantine(self, pages: Sequence[int]) -> tuple[str, ...]:
        holders = [name for name, held in self.pages.tables.items() if set(held) & set(pages)]
        for name in holders:
            del self.pages.tables[name]
        self.pages.zero(pages)
        self.quarantined += list(pages)
        return tuple(holders)


@pytest.fixture
def fake_attempt() -> type[FakeAttempt]:
    return FakeAttempt


@pytest.fixture
def fake_pages() -> type[FakePages]:
    return FakePages


@pytest.fixture
def seams() -> Seams:
    return Seams()
