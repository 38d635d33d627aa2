"""Attached checks change no token of any family, and detach leaves no trace."""

import inspect
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tocsin
from tocsin.checker.attach.rotary import is_wrapped
from tocsin.core.calls import Call, ResidualCall, RMSNormCall, RopeCall, SwiGLUCall
from tocsin.core.errors import ContractError
from tocsin.core.terms import Operator, Phase

pytestmark = pytest.mark.slow

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3")
DTYPES = (torch.float32, torch.bfloat16)
Build = Callable[..., nn.Module]


def prompt(batch: int = 2) -> dict[str, Tensor]:
    """Token ids with left padding in the first row."""
    generator = torch.Generator().manual_seed(3)
    input_ids = torch.randint(2, 160, (batch, 11), generator=generator)
    mask = torch.ones_like(input_ids)
    mask[0, :3] = 0
    return {"input_ids": input_ids, "attention_mask": mask}


def generate(model: Any, tokens: int = 12) -> Tensor:
    with torch.no_grad():
        answer: Tensor = model.generate(
            **prompt(), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
        )
    return answer


def listen(guard: Any) -> list[Call]:
    """Keep the record of every call after its operator ran."""
    heard: list[Call] = []
    for operator in Operator:
        guard.seams.add_check(operator, Phase.AFTER, heard.append)
    return heard


def trace(model: nn.Module) -> dict[str, Any]:
    """Everything that attaching might leave behind."""
    import sys

    state: dict[str, Any] = {"implementation": model.config._attn_implementation}
    for name, module in model.named_modules():
        state[name] = (
            type(module),
            tuple(sorted(vars(module))),
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            len(module._forward_hooks_always_called),
            len(module._forward_hooks_with_kwargs),
            len(module._forward_pre_hooks_with_kwargs),
            "forward" in vars(module),
            module.training,
        )
    modeling = sys.modules[type(model).__module__]
    state["rotary"] = modeling.apply_rotary_pos_emb
    state["eager"] = modeling.eager_attention_forward
    return state


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_attached_model_generates_the_same_tokens_and_detach_restores_it(
    family: str, dtype: torch.dtype, family_model: Build
) -> None:
    """Proves rule 1 of attaching: no fault, no difference; and no trace afterwards."""
    model = family_model(family, dtype)
    before_state = {key: value.clone() for key, value in model.state_dict().items()}
    before_trace = trace(model)
    before = generate(model)
    signature = inspect.signature(model.forward)

    guard = tocsin.attach(model, "full")
    assert inspect.signature(model.forward) == signature  # generate() hands over by it
    heard = listen(guard)
    with guard.step() as step:
        attached = generate(model)
    assert torch.equal(attached, before)
    assert step.verdict.findings == ()
    guard.detach()

    assert trace(model) == before_trace
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before_state.items())
    assert not is_wrapped(type(model).__module__)
    heard.clear()
    assert torch.equal(generate(model), before)
    assert heard == []


@pytest.mark.parametrize("family", FAMILIES)
def test_every_operator_of_a_layer_is_announced(family: str, family_model: Build) -> None:
    """Proves that nothing of a decoder layer is left out without a reason."""
    model = family_model(family)
    guard = tocsin.attach(model, "off")
    heard = listen(guard)
    with guard.step():
        model(**prompt())
    count = Counter(str(call.operator) for call in heard)
    depth = model.config.num_hidden_layers
    assert count["linear"] == 7 * depth + 1
    assert count["rope"] == count["attention"] == count["swiglu"] == depth
    assert count["residual"] == 2 * depth
    assert count["embedding"] == count["logits"] == 1
    sandwich = family in ("gemma2", "gemma3")
    qk_norms = family in ("qwen3", "gemma3")
    assert count["rms_norm"] == depth * (2 + 2 * sandwich + 2 * qk_norms) + 1
    layers = [call for call in heard if call.depth == 1]
    assert layers
    assert all(call.rows == 2 for call in heard)
    guard.detach()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_records_say_what_the_operators_did(
    family: str, dtype: torch.dtype, family_model: Build
) -> None:
    """Proves that x, weight and output of each record belong together, by plain arithmetic."""
    model = family_model(family, dtype)
    guard = tocsin.attach(model, "off")
    seen: Counter[str] = Counter()
    loose = (
        {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    )

    def close(actual: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(actual.float(), expected.float(), **loose)

    def residual(call: Call) -> None:
        assert isinstance(call, ResidualCall)
        assert call.output is not None
        close(call.output, call.x + call.delta)
        seen["residual"] += 1

    def swiglu(call: Call) -> None:
        assert isinstance(call, SwiGLUCall)
        assert call.output is not None
        gate = call.gate.float()
        act = (
            nn.functional.silu(gate)
            if call.activation == "silu"
            else nn.functional.gelu(gate, approximate="tanh")
        )
        close(call.output, act * call.up.float())
        seen["swiglu"] += 1

    def norm(call: Call) -> None:
        assert isinstance(call, RMSNormCall)
        assert call.output is not None
        x = call.x.float()
        unit = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + call.eps)
        close(call.output, unit * call.weight.float())
        assert call.weight_trusted is not None
        close(call.weight_trusted, call.weight)
        seen["norm"] += 1

    def rope(call: Call) -> None:
        assert isinstance(call, RopeCall)
        assert call.inv_freq is not None
        assert call.q_out is not None
        angles = call.position_ids[..., None].double() * call.inv_freq
        close(call.cos[..., : angles.shape[-1]], angles.cos() * call.table_scale)
        seen["rope"] += 1

    for operator, listener in (
        (Operator.RESIDUAL, residual),
        (Operator.SWIGLU, swiglu),
        (Operator.RMS_NORM, norm),
        (Operator.ROPE, rope),
    ):
        guard.seams.add_check(operator, Phase.AFTER, listener)
    with guard.step():
        model(**prompt())
    assert set(seen) == {"residual", "swiglu", "norm", "rope"}
    guard.detach()


@pytest.mark.parametrize(
    ("family", "implementation"),
    [
        ("llama", "eager"),
        ("llama", "sdpa"),
        ("mistral", "sdpa"),
        ("gemma2", "eager"),  # its soft cap is not in SDPA
        ("gemma3", "eager"),
        ("gemma3", "sdpa"),
    ],
)
def test_the_attention_record_explains_its_own_output(
    family: str, implementation: str, family_model: Build
) -> None:
    """Proves mask, causal flag, scale and soft cap of the record against plain attention."""
    model: Any = family_model(family)
    model.set_attn_implementation(implementation)
    guard = tocsin.attach(model, "off")
    seen = 0

    def compare(call: Any) -> None:
        nonlocal seen
        groups = call.q.shape[1] // call.k.shape[1]
        k = call.k.repeat_interleave(groups, dim=1).double()
        v = call.v.repeat_interleave(groups, dim=1).double()
        scores = call.q.double() @ k.transpose(-1, -2) * call.scale
        if call.softcap is not None:
            scores = torch.tanh(scores / call.softcap) * call.softcap
        if call.mask is not None:
            mask = call.mask
            scores = (
                scores.masked_fill(~mask, -torch.inf)
                if mask.dtype == torch.bool
                else scores + mask.double()
            )
        if call.causal:
            rows, columns = scores.shape[-2:]
            keep = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
            scores = scores.masked_fill(~keep, -torch.inf)
        expected = torch.softmax(scores, -1) @ v
        real = prompt()["attention_mask"].bool()[:, None, :, None]  # padding attends to nothing
        difference = ((call.output.double() - expected).nan_to_num() * real).abs().amax()
        assert difference < 1e-4
        assert call.backend == implementation
        seen += 1

    guard.seams.add_check(Operator.ATTENTION, Phase.AFTER, compare)
    with guard.step():
        model(**prompt(), use_cache=False)
    assert seen == model.config.num_hidden_layers
    guard.detach()


def test_a_fault_reaches_the_tensor_that_the_model_goes_on_with(family_model: Build) -> None:
    """Proves that an in-place change of a record's output changes the logits."""
    model = family_model("llama")
    guard = tocsin.attach(model, "off")
    with guard.step():
        clean = model(**prompt()).logits.clone()
    for operator in (
        Operator.EMBEDDING,
        Operator.LINEAR,
        Operator.RMS_NORM,
        Operator.SWIGLU,
        Operator.RESIDUAL,
        Operator.ATTENTION,
    ):

        def spoil(call: Any) -> None:
            call.output[-1, ..., -1] += 1.0

        remove = guard.seams.add_fault(operator, Phase.AFTER, spoil)
        with guard.step():
            assert not torch.equal(model(**prompt()).logits, clean), operator
        remove()
    with guard.step():
        assert torch.equal(model(**prompt()).logits, clean)
    guard.detach()


def test_two_attached_models_in_two_threads_do_not_hear_each_other(family_model: Build) -> None:
    """Proves that the shared rotary function tells threads and models apart."""
    models = [family_model("llama"), family_model("llama", num_hidden_layers=2)]
    guards = [tocsin.attach(model, "off") for model in models]
    heard = [listen(guard) for guard in guards]
    expected = []
    for model, guard in zip(models, guards, strict=True):
        with guard.step():
            expected.append(model(**prompt()).logits)
    for calls in heard:
        calls.clear()
    same = [True, True]

    def work(index: int) -> None:
        for _ in range(5):
            with guards[index].step():
                same[index] &= torch.equal(models[index](**prompt()).logits, expected[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True, True]
    for index, calls in enumerate(heard):
        depth = models[index].config.num_hidden_layers
        assert sum(call.operator is Operator.ROPE for call in calls) == 5 * depth
    guards[0].detach()
    assert is_wrapped(type(models[1]).__module__)
    guards[1].detach()
    assert not is_wrapped(type(models[1]).__module__)


def test_an_unattached_model_next_to_an_attached_one_is_not_heard(family_model: Build) -> None:
    """Proves that the wrapped module function is inert outside the attached model."""
    attached, other = family_model("llama"), family_model("llama")
    guard = tocsin.attach(attached, "off")
    heard = listen(guard)
    with torch.no_grad():
        other(**prompt())
    assert heard == []
    guard.detach()


def test_an_exception_inside_attention_leaves_no_model_current(family_model: Build) -> None:
    """Proves that a failed forward pass does not lend its name to the next model."""
    attached, other = family_model("llama"), family_model("llama")
    guard = tocsin.attach(attached, "off")
    heard = listen(guard)

    def fail(call: Call) -> None:
        raise RuntimeError("the kernel failed")

    remove = guard.seams.add_fault(Operator.ATTENTION, Phase.AFTER, fail)
    with pytest.raises(RuntimeError, match="the kernel failed"), guard.step():
        attached(**prompt())
    remove()
    heard.clear()
    with torch.no_grad():
        other(**prompt())
    assert heard == []
    guard.detach()


def test_a_model_is_attached_once(family_model: Build) -> None:
    """Proves that a second guard is refused while the first holds the model, and only then."""
    model = family_model("llama")
    guard = tocsin.attach(model)
    with pytest.raises(ContractError, match="attached already"):
        tocsin.attach(model)
    guard.detach()
    guard.detach()
    tocsin.attach(model).detach()


def test_an_implementation_chosen_while_attached_survives_detach(family_model: Build) -> None:
    """Proves that detach undoes our own switch and nobody else's."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model)
    model.set_attn_implementation("eager")
    guard.detach()
    assert model.config._attn_implementation == "eager"


def test_a_plain_module_without_a_family_is_attached_by_its_linears() -> None:
    """Proves that attach serves any nn.Module with known operators."""
    model = nn.Sequential(nn.Linear(8, 16), nn.RMSNorm(16), nn.Linear(16, 4)).eval()
    guard = tocsin.attach(model, "off")
    heard = listen(guard)
    with guard.step():
        model(torch.randn(3, 8))
    assert [str(call.operator) for call in heard] == ["linear", "rms_norm", "linear"]
    guard.detach()
    assert all(not module._forward_hooks for module in model.modules())
