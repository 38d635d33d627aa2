"""`tocsin.with_fault_check`: the checks of an operator around a function of one's own."""

import inspect
import warnings

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tocsin
from tocsin.checker.decorator import ChecksSkipped
from tocsin.core.errors import CheckFailed, ContractError


@tocsin.with_fault_check("rms_norm")
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """RMSNorm as it should be."""
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


@tocsin.with_fault_check("rms_norm", layers=("numerical",))
def without_eps(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """An implementation that raises eps where the variance is small."""
    return functional.rms_norm(x, x.shape[-1:], weight, max(eps, 1e-3))


@tocsin.with_fault_check("rope")
def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Forgets to turn k."""
    half = q.shape[-1] // 2
    turned = torch.cat((-q[..., half:], q[..., :half]), dim=-1)
    return q * cos[:, None] + turned * sin[:, None], k


def test_a_correct_function_returns_what_it_computed() -> None:
    """The result is the function's own object, unchanged."""
    x, weight = torch.randn(3, 16), torch.ones(16)
    assert torch.equal(rms_norm(x, weight), functional.rms_norm(x, (16,), weight, 1e-6))


def test_a_wrong_result_raises_with_its_findings() -> None:
    """The error names the check, the place and the default argument that was in force."""
    with pytest.raises(CheckFailed, match=r"rms_norm: .*\[numerical\.rms_range\]") as caught:
        without_eps(torch.randn(3, 16) * 1e-3, torch.ones(16))
    assert "numerical.rms_range" in {finding.check for finding in caught.value.findings}
    assert caught.value is not None
    assert tocsin.CheckFailed is CheckFailed


def test_only_the_chosen_layers_run() -> None:
    """A layer that was not asked for does not alarm."""
    memory_only = tocsin.with_fault_check("rms_norm", layers=("memory",))(
        lambda x, weight, eps: x * float("nan")
    )
    assert memory_only(torch.ones(2, 4), torch.ones(4), 1e-6).isnan().all()


def test_a_tuple_fills_the_outputs_in_order() -> None:
    """q was rotated and k was not: the second output alarms."""
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 3, 8)
    angles = torch.arange(3.0)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
    angles = torch.cat((angles, angles), dim=-1)[None]
    with pytest.raises(CheckFailed, match="rope_signed_sum"):
        rope(q, k, angles.cos(), angles.sin(), torch.arange(3)[None])


def test_a_mapping_fills_the_outputs_by_name() -> None:
    """A tokenizer returns its tensors by name; the limits are its arguments."""

    @tocsin.with_fault_check("tokenizer_output")
    def tokenize(text: str, vocab_size: int = 256) -> dict[str, Tensor]:
        ids = torch.tensor([[ord(letter) for letter in text]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    assert tokenize("plain")["input_ids"].shape == (1, 5)
    with pytest.raises(CheckFailed, match="token_range"):
        tokenize("Ω")


def test_arguments_caught_by_name_count_too() -> None:
    """A function that passes everything on is checked as well."""

    @tocsin.with_fault_check("swiglu")
    def passes_on(**fields: Tensor) -> Tensor:
        return functional.silu(fields["gate"]) * fields["up"].abs()

    with pytest.raises(CheckFailed, match="swiglu"):
        passes_on(gate=torch.ones(2, 4), up=-torch.ones(2, 4))


def test_other_arguments_are_the_functions_own() -> None:
    """A parameter that is no field of the operator is left alone."""

    @tocsin.with_fault_check("linear")
    def linear(x: Tensor, weight: Tensor, note: str = "") -> Tensor:
        return x @ weight.T

    assert linear(torch.ones(2, 4), torch.ones(3, 4), note="kept").shape == (2, 3)


def test_the_function_keeps_its_name_and_signature() -> None:
    """Documentation and callers see the function that was written."""
    assert rms_norm.__name__ == "rms_norm"
    assert rms_norm.__doc__ == "RMSNorm as it should be."
    assert list(inspect.signature(rms_norm).parameters) == ["x", "weight", "eps"]


def test_autograd_skips_the_checks_and_says_so_once() -> None:
    """A training step is not checked, and that is not silent."""

    @tocsin.with_fault_check("linear")
    def wrong(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.T + 1

    x, weight = torch.randn(2, 4), torch.randn(3, 4, requires_grad=True)
    with pytest.warns(ChecksSkipped, match="autograd is on"):
        wrong(x, weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrong(x, weight)
    with torch.no_grad(), pytest.raises(CheckFailed):
        wrong(x, weight)


def test_inference_with_autograd_merely_switched_on_is_checked() -> None:
    """PyTorch's default mode is not training: nothing here asks for a gradient."""
    with pytest.raises(CheckFailed):
        without_eps(torch.randn(3, 16) * 1e-3, torch.ones(16))


def test_a_function_that_cannot_be_checked_is_refused_at_once() -> None:
    """A parameter that the operator needs is missing: an error at import, not in production."""
    with pytest.raises(ContractError, match=r"has no parameter eps, weight"):

        @tocsin.with_fault_check("rms_norm")
        def norm(x: Tensor, w: Tensor) -> Tensor:
            return x * w


def test_unknown_operators_and_layers_are_refused_at_once() -> None:
    """A typo does not become a function without checks."""
    with pytest.raises(ContractError, match="known are"):
        tocsin.with_fault_check("rmsnorm")
    with pytest.raises(ContractError, match="found layer numeric, known are numerical"):
        tocsin.with_fault_check("rms_norm", layers=("numeric",))


def test_a_missing_argument_is_still_the_functions_own_error() -> None:
    """The wrapper does not hide a TypeError behind its own."""
    with pytest.raises(TypeError, match="weight"):
        rms_norm(torch.ones(2, 2))  # type: ignore[call-arg]


def test_only_three_packages_are_needed() -> None:
    """`import tocsin` alone loads no part; the names come at first use."""
    assert {"inspect", "with_fault_check", "CheckFailed"} <= set(tocsin.__all__)
    with pytest.raises(AttributeError, match="no attribute 'inspekt'"):
        _ = tocsin.inspekt
