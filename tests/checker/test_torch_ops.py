"""Plain PyTorch code under `tocsin.checking`: all operators heard, no bit changed, none raised."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tocsin
from tocsin.checker.fault_checker import FaultChecker
from tocsin.core.clock import ManualClock
from tocsin.core.errors import ContractError
from tocsin.core.terms import Operator, Phase, Profile

D, HEADS, SIZE, VOCABULARY = 32, 4, 8, 50


class Plain:
    """A decoder layer in plain functions: no module that an adapter could hook."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(5)

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator).mul(0.2).to(dtype))

        self.table, self.norm = weight(VOCABULARY, D), weight(D)
        self.qkv, self.bias, self.out = weight(3 * D, D), weight(3 * D), weight(D, D)
        self.gate, self.up, self.down = weight(48, D), weight(48, D), weight(48, D)

    def __call__(self, ids_RS: Tensor) -> Tensor:
        x = functional.embedding(ids_RS, self.table)
        normed = functional.rms_norm(x, (D,), self.norm, 1e-6)
        q, k, v = functional.linear(normed, self.qkv, self.bias).chunk(3, dim=-1)
        q, k, v = (one.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for one in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + functional.linear(mixed.transpose(1, 2).flatten(-2), self.out)
        normed = torch.rms_norm(x, (D,), self.norm, 1e-6)
        gated = functional.silu(normed @ self.gate.t()) * torch.matmul(normed, self.up.T)
        x = torch.add(x, gated @ self.down)
        return functional.softmax(functional.linear(x, self.table).float(), dim=-1)


IDS = torch.arange(12).view(2, 6)
HEARD = {
    Operator.EMBEDDING: 1,
    Operator.RMS_NORM: 2,
    Operator.LINEAR: 6,
    Operator.ATTENTION: 1,
    Operator.SWIGLU: 1,
    Operator.RESIDUAL: 2,
    Operator.SAMPLER: 1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_plain_code_is_checked_operator_by_operator_without_an_alarm(dtype: torch.dtype) -> None:
    """Proves that each operator is heard as often as it is called, and clean work stays clean."""
    model = Plain(dtype)
    heard: Counter[Operator] = Counter()
    with torch.no_grad(), tocsin.checking("full") as step:
        for operator in HEARD:
            step.seams.add_check(operator, Phase.AFTER, lambda call: heard.update([call.operator]))
        for _ in range(2):
            model(IDS)
    assert heard == {operator: 2 * count for operator, count in HEARD.items()}
    assert step.verdict.ok, step.verdict.findings
    assert step.verdict.checks_run > 30
    assert step.skipped == {}
    assert not step.counters.check_errors


@pytest.mark.parametrize("profile", ["off", "guard", "full"])
def test_no_bit_changes(profile: str) -> None:
    """Proves that outputs and gradients are those of the code alone, under every profile."""
    model = Plain()
    model(IDS)[..., 3].sum().backward()
    expected, gradient = model(IDS), model.qkv.grad
    model.qkv.grad = None
    with tocsin.checking(profile) as step:
        got = model(IDS)
        got[..., 3].sum().backward()
    assert torch.equal(got, expected)
    assert gradient is not None
    assert model.qkv.grad is not None
    assert torch.equal(model.qkv.grad, gradient)
    assert step.verdict.ok
    assert (step.verdict.checks_run > 0) is (profile != "off")


def spoil(call: Any) -> None:
    """A finite change of one value, as a flipped exponent bit makes it."""
    output = call.probs if call.operator is Operator.SAMPLER else call.output
    place = (0,) * (output.ndim - 1) + (3,)
    output[place] = output[place] * -8.0 + 3.0


@pytest.mark.parametrize("operator", HEARD)
def test_a_fault_in_any_operator_is_found_and_nothing_is_raised(operator: Operator) -> None:
    """Proves that the operator itself is named, and the code runs to its end."""
    model = Plain()
    checking = tocsin.checking("full")
    remove = checking.seams.add_fault(operator, Phase.AFTER, spoil)
    with torch.no_grad(), checking as step:
        model(IDS)
    found = [finding for finding in step.verdict.findings if finding.operator is operator]
    assert found
    assert found[0].module == f"{operator}.0"
    assert found[0].rows == (0,)
    remove()
    with torch.no_grad(), checking as step:
        model(IDS)
    assert step.verdict.ok


def test_a_weight_that_flips_after_its_first_use_is_found() -> None:
    """Proves trusted sums: a bit that changes in memory, unannounced, shows at the next use."""
    model, checking = Plain(), tocsin.checking("full")
    with torch.no_grad(), checking as step:
        model(IDS)
    assert step.verdict.ok
    bits = torch.from_numpy(model.gate.detach().numpy()).view(torch.int32)  # raises no version
    bits[5, 3] ^= 1 << 29
    with torch.no_grad(), checking as step:
        model(IDS)
    assert {finding.check for finding in step.verdict.findings} >= {"numerical.linear_checksum"}
    assert step.verdict.findings[0].operator is Operator.LINEAR


def test_a_declared_write_to_a_weight_is_no_alarm() -> None:
    """Proves the near miss: an optimizer's step changes the version, and the sums are new."""
    model, checking = Plain(), tocsin.checking("full")
    for _ in range(3):
        with torch.no_grad(), checking as step:
            model(IDS)
            model.gate.mul_(1.5)
            model.bias.add_(0.1)
        assert step.verdict.ok, step.verdict.findings


def test_the_verdict_is_read_once_and_after_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the buffer is copied once a step, however often the verdict is looked at."""
    checking = tocsin.checking("full")
    reads = 0
    read = checking.runtime.evaluation.buffer.read

    def counted(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(*args)

    monkeypatch.setattr(checking.runtime.evaluation.buffer, "read", counted)
    with pytest.raises(ContractError, match="before the step ended"):
        _ = checking.verdict
    with torch.no_grad(), checking as step:
        Plain()(IDS)
        with pytest.raises(ContractError, match="leave the `with` block"):
            _ = step.verdict
    assert reads == 0
    assert step.verdict.ok is step.verdict.ok is True
    assert reads == 1


def case_bool_mask(model: Plain) -> Tensor:
    q, k, v = torch.randn(3, 2, HEADS, 6, SIZE).unbind(0)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def case_shared_heads(model: Plain) -> Tensor:
    q, k = torch.randn(2, HEADS, 6, SIZE), torch.randn(1, 2, 9, SIZE)
    return functional.scaled_dot_product_attention(q, k, k, enable_gqa=True, scale=0.3)


def case_top_left(model: Plain) -> Tensor:
    q, k = torch.randn(1, HEADS, 3, SIZE), torch.randn(1, HEADS, 7, SIZE)
    return functional.scaled_dot_product_attention(q, k, k, is_causal=True)


def case_three_axes(model: Plain) -> Tensor:
    q = torch.randn(HEADS, 5, SIZE)
    return functional.scaled_dot_product_attention(q, q, q)


def case_norm_without_weight(model: Plain) -> Tensor:
    return nn.RMSNorm(D, elementwise_affine=False)(torch.randn(3, D))


def case_addmm(model: Plain) -> Tensor:
    return torch.addmm(model.bias[:48], torch.randn(5, D), model.gate.t())


def case_gelu(model: Plain) -> Tensor:
    gate, up = torch.randn(2, 4, 9).unbind(0)
    return up * functional.gelu(gate, approximate="tanh") + functional.gelu(gate) * up


def case_modules(model: Plain) -> Tensor:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, HEADS, 48, batch_first=True, dropout=0.0)
    result = layer.train()(torch.randn(2, 5, D))
    assert isinstance(result, Tensor)
    return result


def case_one_vector(model: Plain) -> Tensor:
    return functional.linear(torch.randn(D), model.out)


def case_no_token(model: Plain) -> Tensor:
    return functional.linear(torch.randn(0, D), model.out)


CASES = [value for name, value in sorted(globals().items()) if name.startswith("case_")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_way_to_call_an_operator_is_clean(case: Callable[[Plain], Tensor]) -> None:
    """Proves masks, alignment, shared heads, axes and defaults: what is legal raises no alarm."""
    torch.manual_seed(1)
    model = Plain()
    with torch.no_grad(), tocsin.checking("full") as step:
        result = case(model)
    assert torch.isfinite(result).all()
    assert step.verdict.ok, step.verdict.findings
    assert not step.counters.check_errors


@pytest.mark.parametrize(
    ("operator", "call"),
    [
        ("attention", lambda m, x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)),
        ("sampler", lambda m, x: functional.softmax(x, dim=1)),
        ("rms_norm", lambda m, x: functional.rms_norm(x, x.shape[-2:])),
        ("residual", lambda m, x: x.clone().add_(x)),
        ("linear", lambda m, x: torch.mm(x[0, 0], x[0, 0].T, out=torch.empty(6, 6))),
        ("swiglu", lambda m, x: functional.silu(x.clone(), inplace=True) * x),
        ("linear", lambda m, x: torch.einsum("td,nd->tn", x[0, :, :, 0], m.table[:, :6])),
        ("linear", lambda m, x: torch.einsum("td,nd->tn", torch.zeros(2, D), m.table)),
        ("attention", lambda m, x: nn.MultiheadAttention(8, 2)(x[0], x[0], x[0])[0]),
    ],
)
def test_what_cannot_be_looked_at_is_told(
    operator: str, call: Callable[[Plain, Tensor], Tensor]
) -> None:
    """Proves that a gap is in `skipped` with its reason, never silent."""
    with torch.no_grad(), tocsin.checking("full") as step:
        call(Plain(), torch.randn(2, 3, 6, 8))
    assert set(step.skipped) == {operator}
    assert step.status()["skipped"] == step.skipped


def test_a_product_of_activations_is_no_linear() -> None:
    """Proves that only a parameter is trusted: scores q @ k.T have no sums from before."""
    heard: list[Any] = []
    with torch.no_grad(), tocsin.checking("full") as step:
        step.seams.add_check(Operator.LINEAR, Phase.AFTER, heard.append)
        q, k = torch.randn(2, 6, SIZE).unbind(0)
        q @ k.T
    assert heard == []
    assert step.verdict.ok


def test_an_error_of_the_code_is_the_codes_own() -> None:
    """Proves that an exception passes through unchanged and leaves no mode behind."""
    checking = tocsin.checking("full")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), checking:
        functional.linear(torch.randn(2, 3), torch.randn(4, 5))
    assert not checking.runtime.active
    with checking as step:
        functional.linear(torch.randn(2, 3), torch.randn(4, 3))
    assert step.verdict.ok


def test_one_object_one_step_at_a_time() -> None:
    """Proves the order: no step inside itself, none after detach; two objects may be nested."""
    checking, other = tocsin.checking("full"), tocsin.checking("full")
    with torch.no_grad(), checking, other:
        with pytest.raises(ContractError, match="inside another"):
            checking.__enter__()
        functional.linear(torch.randn(2, 3), torch.randn(4, 3))
    assert checking.verdict.checks_run == other.verdict.checks_run > 0
    checking.detach()
    checking.detach()
    with pytest.raises(ContractError, match="detached"):
        checking.__enter__()


def test_the_switchboard_works_inside() -> None:
    """Proves that a profile can be changed between two steps, and that `off` hears nothing."""
    checking = tocsin.checking("full", clock=ManualClock())
    model = Plain()
    checking.switchboard.set_profile(Profile.OFF, "a test")
    with torch.no_grad(), checking as step:
        model(IDS)
    assert step.verdict.checks_run == 0
    checking.switchboard.set_profile(Profile.FULL, "a test")
    with torch.no_grad(), checking as step:
        model(IDS)
    assert step.verdict.checks_run > 0


def test_every_adapter_is_a_fault_checker() -> None:
    """Proves the one interface: a guard on a model and checks of plain operators answer alike."""
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    checkers: list[FaultChecker] = [tocsin.attach(model), tocsin.checking("full")]
    for checker in checkers:
        assert isinstance(checker, FaultChecker)
        with torch.no_grad(), checker.step() as step:
            model(torch.randn(2, 4))
        assert step.verdict.ok
        assert step.verdict.checks_run > 0
        assert set(checker.status()) >= {"profile", "checks", "skipped"}
        assert checker.counters.checks.total() > 0
        checker.detach()


def test_nan_in_an_input_is_named_at_the_first_operator_that_shows_it() -> None:
    """Proves order: the finding that stands first is of the operator where it began."""
    model = Plain()
    with torch.no_grad():
        model.norm[3] = math.nan
    with torch.no_grad(), tocsin.checking("full") as step:
        model(IDS)
    assert step.verdict.findings[0].operator is Operator.RMS_NORM
