"""Bisecting: the first operator that goes wrong is named, where it goes wrong, in any dtype."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.core.requests import Request
from tocsin.engine.config import EngineConfig
from tocsin.engine.weights import load
from tocsin.ray_jobs.bisect import Comparison, compare
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.commands.edge import EXIT_SPEC

_CONFIG = EngineConfig(slots=1, pages=48, page_size=16, max_model_len=128, torch_threads=1)
_REQUEST = Request("r", tuple(range(20, 60)), 12, ignore_eos=True)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def bisected(
    tiny: Path, dtype: torch.dtype = torch.float32, order: dict[str, Any] | None = None
) -> Comparison:
    suspect, clean = load(tiny, dtype)[0], load(tiny, torch.float32)[0]
    return compare(suspect, clean, _REQUEST, _CONFIG, order=order)


@pytest.mark.parametrize("dtype", _DTYPES)
def test_clean_weights_diverge_nowhere(dtype: torch.dtype, tiny: Path) -> None:
    """Half precision is rounding, not a fault; and there is room between it and the limit."""
    found = bisected(tiny, dtype)
    assert found.first is None
    assert found.calls > 400
    assert max(line.ratio for line in found.lines) < 0.6


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize(
    ("kind", "params", "operator", "module"),
    [
        ("act.bitflip", {}, "linear", "mlp.down_proj"),
        ("act.bitflip", {"operator": "residual"}, "residual", "_add"),
        ("weight.bitflip", {}, "linear", "mlp.down_proj"),
        ("rope.table", {}, "rope", "layers.0.self_attn"),
        ("attn.cu_seqlens", {}, "flash_attn_varlen", ""),
        ("kv.bitflip", {}, "kv_cache", "self_attn"),
        ("batch.oob_token", {}, "batch", ""),
    ],
)
def test_a_fault_is_named_where_it_was_injected(
    kind: str, params: dict[str, Any], operator: str, module: str, dtype: torch.dtype, tiny: Path
) -> None:
    """Operator, module and depth are those of the fault's own evidence, in the step it fired."""
    found = bisected(tiny, dtype, {"kind": kind, "seed": 3, "params": params})
    first = found.first
    assert first is not None
    assert first.operator == operator
    assert first.module.endswith(module)
    if first.depth is not None and "depth" in found.evidence:
        assert f"depth {first.depth}" in found.evidence
    assert first.position >= len(_REQUEST.prompt_ids), "it was armed while decoding"
    before = found.lines[: found.lines.index(first)]
    assert all(line.ratio <= 1.0 for line in before)


def test_weights_that_were_changed_on_disk_are_found_in_the_first_step(tiny: Path) -> None:
    """No chaos: one weight of the suspect's folder is another number than the golden one's."""
    suspect, clean = load(tiny)[0], load(tiny)[0]
    with torch.no_grad():
        suspect.model.layers[1].self_attn.k_proj.weight[3, 5] += 0.5  # type: ignore[union-attr, index, operator]
    found = compare(suspect, clean, _REQUEST, _CONFIG)
    assert found.first is not None
    assert (found.first.module, found.first.depth) == ("model.layers.1.self_attn.k_proj", 1)
    assert found.steps == 1


def test_a_near_tie_is_followed_and_not_blamed_on_an_operator(tiny: Path) -> None:
    """Two logits that are equal but for rounding: another token, and every operator is right."""
    suspect, clean = load(tiny)[0], load(tiny)[0]
    with torch.no_grad():
        # Rows of the head are swapped in size by less than rounding allows to tell.
        head: Any = suspect.lm_head  # type: ignore[attr-defined]
        head.weight.mul_(1 + 2.0**-23 * torch.randn(head.weight.shape[0], 1))
        for side in (suspect, clean):
            side.lm_head.weight[100:] = side.lm_head.weight[99]  # type: ignore[union-attr, index, operator]
        suspect.lm_head.weight[100:] *= 1 + 2.0**-23 * torch.randn(157, 1)  # type: ignore[union-attr, index, operator]
    found = compare(suspect, clean, _REQUEST, _CONFIG)
    assert found.first is None
    assert found.calls > 400


def test_the_command_names_the_operator_and_ends_with_one(tiny: Path) -> None:
    """Exit code 0 and `no divergence`, or 1 and a table around the first divergence."""
    words = ["bisect", "--model", str(tiny), "--prompt", "abc", "--max-tokens", "5"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "no divergence" in result.output
    result = CliRunner().invoke(app, [*words, "--fault", "act.bitflip", "--dtype", "bf16"])
    assert result.exit_code == 1, result.output
    assert "first divergence: linear model.layers." in result.output
    assert "→" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fault", "no.such"], "found fault 'no.such'"),
        (["--dtype", "fp8"], "found dtype 'fp8'"),
        (["--max-tokens", "512"], "shorten the prompt"),
        (["01HZZZZZZZZZZZZZZZZZZZZZZZ"], "found no failure"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, tiny: Path) -> None:
    """Exit code 64."""
    result = CliRunner().invoke(app, ["bisect", *words, "--model", str(tiny), "--prompt", "a"])
    assert result.exit_code == EXIT_SPEC, result.output
    assert said in result.output
    assert result.output.count("\n") == 1


@pytest.mark.model
@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        ("act.bitflip", "linear"),
        ("weight.bitflip", "linear"),
        ("rope.table", "rope"),
        ("attn.cu_seqlens", "flash_attn_varlen"),
    ],
)
def test_on_smollm2_a_fault_is_named_too(kind: str, operator: str) -> None:
    """Thirty layers and a vocabulary of 49,152: rounding stays far below the limits."""
    words = ["bisect", "--max-tokens", "4", "--fault", kind, "--dtype", "bf16"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1, result.output
    assert f"first divergence: {operator} " in result.output
