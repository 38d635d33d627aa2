"""`semantic.sampler`: probabilities are some, and the token is one that they allow."""

import pytest
import torch

from tocsin.checker.checks.semantic.sampler import sampler
from tocsin.core.calls import SamplerCall

PROBS = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]])


def call(**fields: object) -> SamplerCall:
    return SamplerCall(**{"probs": PROBS.clone(), "token_ids": torch.tensor([1, 3]), **fields})  # type: ignore[arg-type]


def rows(sampled: SamplerCall) -> list[int]:
    return (~(sampler(sampled) <= 1)).nonzero().flatten().tolist()


def test_any_of_several_likeliest_tokens_is_greedy() -> None:
    """The nearest miss: a tie may be broken either way."""
    for first in (0, 1):
        assert rows(call(token_ids=torch.tensor([first, 3]), temperature=0.0)) == []
    assert rows(call(token_ids=torch.tensor([0, 2]), temperature=0.0)) == [1]


def test_a_token_without_probability_alarms_however_it_was_sampled() -> None:
    """The filters had removed it."""
    for temperature in (None, 0.0, 1.0):
        assert rows(call(token_ids=torch.tensor([2, 3]), temperature=temperature)) == [0]


def test_rows_may_have_parameters_of_their_own() -> None:
    """Greedy and sampled requests share a step."""
    sampled = call(
        token_ids=torch.tensor([1, 0]),
        temperature=torch.tensor([0.0, 1.0]),
        top_p=torch.tensor([1.0, 0.9]),
        top_k=torch.tensor([2, -1]),
    )
    assert rows(sampled) == []
    sampled.temperature = torch.tensor([1.0, 0.0])
    assert rows(sampled) == [1]
    sampled.top_k = torch.tensor([1, 3])
    assert rows(sampled) == [1]


def test_ties_at_the_border_of_top_k_are_not_too_many() -> None:
    """Two equal probabilities may both survive top_k = 1."""
    assert rows(call(probs=PROBS[:1], token_ids=torch.tensor([0]), top_k=1)) == []
    assert rows(call(probs=PROBS[1:], token_ids=torch.tensor([3]), top_k=1)) == [0]


def test_the_least_temperature_may_come_in_single_precision() -> None:
    """1e-5 rounded to float32 is a little less than 1e-5, and legal."""
    assert rows(call(temperature=torch.full((2,), 1e-5))) == []


def test_one_token_more_than_top_k_alarms() -> None:
    """The nearest miss: four distinct probabilities are what top_k = 4 leaves, not 3."""
    four = call(probs=PROBS[1:], token_ids=torch.tensor([3]), top_k=4)
    assert rows(four) == []
    four.top_k = 3
    assert rows(four) == [0]


def test_a_greedy_row_need_not_apply_top_k() -> None:
    """It takes the likeliest token of the whole distribution, whatever else the request says."""
    greedy = call(temperature=0.0, top_k=1)
    assert rows(greedy) == []
    greedy.temperature = torch.tensor([0.0, 0.7])
    assert rows(greedy) == [1]
    greedy.top_k = 0
    assert rows(greedy) == [0, 1]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", (1e-5, 1.0, 100.0), (-1.0, 1e-12, float("nan"), float("inf"))),
        ("top_p", (1e-6, 1.0), (0.0, -0.1, 1.1, float("nan"))),
        ("top_k", (-1, 4), (0, -2, 5, 2**30)),
    ],
)
def test_parameters_are_checked_in_positive_form(
    name: str, good: tuple[float, ...], bad: tuple[float, ...]
) -> None:
    """NaN passes every negated range (NVIDIA/TensorRT-LLM#2217): here it passes none."""
    for value in good:
        assert rows(call(**{name: value})) == [], value
    for value in bad:
        assert rows(call(**{name: value})) == [0, 1], value


def test_half_precision_sums_have_their_roundings() -> None:
    """49,152 probabilities in bfloat16 do not add up to exactly 1."""
    probs = torch.randn(2, 49_152).softmax(-1).bfloat16()
    assert rows(SamplerCall(probs=probs, token_ids=probs.argmax(-1), temperature=0.0)) == []
    assert rows(SamplerCall(probs=probs * 1.01)) == [0, 1]
