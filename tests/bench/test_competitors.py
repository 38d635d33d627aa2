"""The competitors: each flags what it claims to and nothing on clean steps, row by row."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache

from tests.engine.tiny import VOCAB, tiny_model
from tocsin.bench.competitors.abs_max import AbsMax
from tocsin.bench.competitors.assert_isfinite import AssertIsfinite
from tocsin.bench.competitors.competitor import Attached, Competitor, operators
from tocsin.bench.competitors.dmr import Dmr
from tocsin.bench.competitors.nan_logits import NanLogits
from tocsin.bench.competitors.sdcguard import SdcGuard
from tocsin.bench.competitors.table import competitors
from tocsin.bench.competitors.twin import twin
from tocsin.core.errors import ContractError, EnvironmentFault

DTYPES = (torch.float32, torch.bfloat16)
ROWS, BAD = 3, 1
CASES = [
    pytest.param(competitor, dtype, id=f"{competitor.name}-{str(dtype)[6:]}")
    for competitor in competitors()
    for dtype in DTYPES
    if not (isinstance(competitor, SdcGuard) and dtype == torch.float32)
]


def _prompts(rows: int = ROWS, length: int = 6) -> Tensor:
    return (torch.arange(rows * length).reshape(rows, length) * 7 + 3) % VOCAB


@pytest.fixture(params=DTYPES, ids=["fp32", "bf16"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return tiny_model().to(request.param)


class Injector:
    """A fault in one module's output, for one forward call; its hook is there before all others."""

    def __init__(self, module: nn.Module) -> None:
        self._change: Callable[[Tensor], None] | None = None
        module.register_forward_hook(self._hook)

    def arm(self, change: Callable[[Tensor], None]) -> None:
        """Change the next output in place."""
        self._change = change

    def _hook(self, module: nn.Module, args: Any, output: Tensor) -> None:
        change, self._change = self._change, None
        if change is not None:
            change(output)


def _set(value: float, row: int = BAD) -> Callable[[Tensor], None]:
    def change(output: Tensor) -> None:
        output[row, -1, 5] = value

    return change


def _down(model: Any) -> nn.Module:
    module: nn.Module = model.model.layers[1].mlp.down_proj
    return module


def _step(model: Any, attached: Attached, ids: Tensor, **inputs: Any) -> list[bool]:
    """Flags of one pass by row; a detector of whole steps says the same for all."""
    attached.begin()
    with torch.no_grad():
        model(input_ids=ids, **inputs)
    flags = attached.flagged()
    assert flags.dtype == torch.bool
    return [bool(flag) for flag in flags.expand(ids.shape[0])]


@pytest.mark.parametrize(("competitor", "dtype"), CASES)
def test_it_flags_nothing_on_clean_steps(competitor: Competitor, dtype: torch.dtype) -> None:
    """Prompts, decode over a static and a growing cache, one row and several."""
    model: Any = tiny_model().to(dtype)
    attached = competitor.attach(model, (_prompts(), _prompts(1, 12)))
    for cache in (StaticCache(config=model.config, max_cache_len=16), DynamicCache()):
        assert not any(_step(model, attached, _prompts(), cache=cache))
        assert not any(_step(model, attached, _prompts()[:, :1], cache=cache))
    assert not any(_step(model, attached, _prompts(1, 12)))


@pytest.mark.parametrize(
    ("competitor", "value", "named"),
    [
        (AssertIsfinite(), math.nan, True),
        (AssertIsfinite(), math.inf, True),
        (AssertIsfinite(), 1e4, False),
        (NanLogits(), math.nan, True),
        (NanLogits(), 1e4, False),
        (AbsMax(), math.nan, True),
        (AbsMax(), -math.inf, True),
        (AbsMax(), -1e4, True),
        (AbsMax(), 0.0, False),
        (Dmr(), math.nan, True),
        (Dmr(), math.inf, True),
        (Dmr(), 1e4, True),
        (Dmr(), 0.5, True),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_it_names_the_row_of_what_it_claims_to_catch(
    model: nn.Module, competitor: Competitor, value: float, named: bool
) -> None:
    """A fault in one row flags that row and no other; what is out of its reach flags none."""
    injector = Injector(_down(model))
    attached = competitor.attach(model, (_prompts(),))
    injector.arm(_set(value))
    assert _step(model, attached, _prompts()) == [row == BAD and named for row in range(ROWS)]
    assert not any(_step(model, attached, _prompts())), "the next step is clean again"


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e4, 3.0])
def test_sdcguard_flags_a_step_with_a_wrong_linear_output(value: float) -> None:
    """Block checksums see it in bf16, for the whole step."""
    model = tiny_model().to(torch.bfloat16)
    injector = Injector(_down(model))
    attached = SdcGuard().attach(model)
    # Its check stands inside the module's forward: the fault must be in what that computes.
    original = torch.nn.functional.linear
    injector.arm(_set(value))
    with pytest.MonkeyPatch.context() as patch:
        weight = _down(model).weight

        def faulty(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
            y = original(x, w, bias)
            if w is weight:
                _set(value)(y)
            return y

        patch.setattr(torch.nn.functional, "linear", faulty)
        assert _step(model, attached, _prompts()) == [True] * ROWS
    assert not any(_step(model, attached, _prompts()))


def test_nan_in_the_logits_themselves_is_seen_and_infinity_is_not(model: Any) -> None:
    """What the serving engines ship asks for NaN alone."""
    injector = Injector(model.lm_head)
    attached = NanLogits().attach(model)
    injector.arm(_set(math.nan))
    assert _step(model, attached, _prompts()) == [False, True, False]
    injector.arm(_set(math.inf))
    assert not any(_step(model, attached, _prompts()))


def test_an_infinite_input_is_flagged_before_the_operator_hides_it(model: Any) -> None:
    """The assertion looks at what goes in, too: a normalisation turns infinity into zeros."""
    attached = AssertIsfinite().attach(model)
    norm = model.model.layers[0].post_attention_layernorm
    norm.register_forward_pre_hook(
        lambda module, args: (args[0].index_fill(0, torch.tensor([2]), math.inf),), prepend=True
    )
    norm.register_forward_hook(lambda module, args, output: torch.nan_to_num(output), prepend=True)
    assert _step(model, attached, _prompts()) == [False, False, True]


def test_double_execution_does_not_see_what_both_runs_share(model: Any) -> None:
    """A flipped weight is in both runs: that is what weight sums are for."""
    attached = Dmr().attach(model)
    with torch.no_grad():
        _down(model).weight[3, 3] += 1.0
    assert not any(_step(model, attached, _prompts()))


def test_double_execution_leaves_the_cache_as_one_run_would(model: Any) -> None:
    """Length and contents, static and growing, at the prompt and at a decode step."""
    for make in (lambda: StaticCache(config=model.config, max_cache_len=16), DynamicCache):
        caches = make(), make()
        attached = Dmr().attach(model)
        for ids in (_prompts(), _prompts()[:, :1]):
            _step(model, attached, ids, cache=caches[0])
        attached.detach()
        with torch.no_grad():
            for ids in (_prompts(), _prompts()[:, :1]):
                model(input_ids=ids, cache=caches[1])
        assert int(caches[0].get_seq_length()) == int(caches[1].get_seq_length()) == 7
        for one, two in zip(caches[0].layers, caches[1].layers, strict=True):
            assert torch.equal(one.keys, two.keys)
            assert torch.equal(one.values, two.values)


def _state(model: nn.Module) -> Iterator[tuple[Any, ...]]:
    for module in model.modules():
        yield (
            list(module._forward_hooks),
            list(module._forward_pre_hooks),
            type(module),
            sorted(vars(module)),
        )


@pytest.mark.parametrize(("competitor", "dtype"), CASES)
def test_detach_leaves_the_model_as_it_was(competitor: Competitor, dtype: torch.dtype) -> None:
    """Hooks, classes and attributes of every module, and the logits bit by bit."""
    model: Any = tiny_model().to(dtype)
    before = list(_state(model))
    with torch.no_grad():
        golden = model(input_ids=_prompts()).logits
    attached = competitor.attach(model, (_prompts(),))
    with torch.no_grad():
        assert torch.equal(model(input_ids=_prompts()).logits, golden)
    attached.detach()
    attached.detach()
    assert list(_state(model)) == before


def test_ranges_without_calibration_say_what_is_missing(model: nn.Module) -> None:
    """There is no sensible default for a range."""
    with pytest.raises(ContractError, match="no calibration prompts"):
        AbsMax().attach(model)


def test_sdcguard_on_float32_says_that_it_would_check_nothing() -> None:
    """Better no row than a cheap one that means nothing; the model is left alone."""
    model = tiny_model()
    before = list(_state(model))
    with pytest.raises(ContractError, match=r"checks no layer of this model.*float32"):
        SdcGuard().attach(model)
    assert list(_state(model)) == before


def test_sdcguard_checks_every_linear_module_of_the_model() -> None:
    """At share 1 none is left out in silence; at 1/8 about an eighth is checked."""
    model = tiny_model().to(torch.bfloat16)
    linears = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    attached: Any = SdcGuard().attach(model)
    assert {layer["name"] for layer in attached._guard.layers} == set(linears)
    assert set(attached.skipped) == {"rms_norm, rope, attention, swiglu, residual, embedding"}
    attached.detach()
    part: Any = SdcGuard(share=0.125).attach(model)
    assert 1 <= len(part._guard.layers) <= 3
    part.detach()


def test_a_missing_package_is_named_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bench goes on without it and its row says why."""
    monkeypatch.setitem(__import__("sys").modules, "sdcguard", None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'tocsin\[bench\]'"):
        SdcGuard().attach(tiny_model().to(torch.bfloat16))


def test_every_operator_is_looked_at_once(model: Any) -> None:
    """All modules without modules of their own, and the residual stream of each layer."""
    names = [name for name, _ in operators(model)]
    assert len(names) == len(set(names))
    linears = {name for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    norms = {name for name, m in model.named_modules() if "Norm" in type(m).__name__}
    layers = {f"model.layers.{i}" for i in range(2)}
    assert linears | norms | layers | {"model.embed_tokens", "model.rotary_emb"} <= set(names)


def test_twins_share_weights_and_nothing_else(model: Any) -> None:
    """Same logits, same memory, hooks and configuration of their own; fewer layers if asked."""
    other: Any = twin(model)
    with torch.no_grad():
        assert torch.equal(other(input_ids=_prompts()).logits, model(input_ids=_prompts()).logits)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(one is two for one, two in pairs)
    AssertIsfinite().attach(other)
    other.config._attn_implementation = "eager"
    assert not any(module._forward_hooks for module in model.modules())
    assert model.config._attn_implementation != "eager"
    short: Any = twin(model, layers=1)
    assert len(short.model.layers) == short.config.num_hidden_layers == 1
    assert len(model.model.layers) == 2
    with pytest.raises(ContractError, match="3 layers were asked for, the model has 2"):
        twin(model, layers=3)


def test_names_are_those_of_the_tables() -> None:
    """Both benches find the same competitor under one name and profile."""
    assert [(one.name, one.profile) for one in competitors()] == [
        ("assert-isfinite", "default"),
        ("nan-logits", "default"),
        ("absmax-x2", "default"),
        ("dmr", "default"),
        ("sdcguard", "default"),
    ]
