"""`semantic.sampler`: probabilities are some, and the token is one that they allow."""

import pytest
import torch

from tocsin.checker import native
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


def troubled(rows_: int, size: int) -> torch.Tensor:
    """Rows of probabilities: filtered, tied, negative, with NaN, all zero, one infinite."""
    probs = torch.softmax(torch.randn(rows_, size) * 3, dim=-1)
    probs[probs < probs.median()] = 0.0
    probs[1, :5], probs[2, size // 2] = probs[1].max(), -0.25
    probs[3, size - 1], probs[4] = float("nan"), 0.0
    probs[5, 0], probs[6, 3] = float("inf"), -0.0
    return probs


@pytest.mark.parametrize("size", [3, 16, 37, 1000])
def test_the_operator_says_what_torch_says(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that one native pass finds the rows that the passes of torch find, row by row."""
    if not native.available():
        pytest.skip(native.reason())
    probs = torch.stack([one for _ in range(4) for one in troubled(9, max(size, 8))[:, :size]])
    ids = torch.randint(-1, size + 1, (len(probs),))
    sampled = call(
        probs=probs,
        token_ids=ids,
        temperature=torch.rand(len(probs)).round(),
        top_p=torch.ones(len(probs)),
        top_k=torch.randint(-1, size + 2, (len(probs),)),
        draws=torch.rand(len(probs), dtype=torch.float64),
    )
    operator = sampler(sampled)
    monkeypatch.setattr(native, "loaded", lambda: False)
    torch.testing.assert_close(operator, sampler(sampled), rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("way", ["operator", "torch"])
def test_each_way_counts_what_top_k_left(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves, a count on either side of the limit, that neither way is off by one."""
    if way == "torch":
        monkeypatch.setattr(native, "loaded", lambda: False)
    elif not native.available():
        pytest.skip(native.reason())
    probs = torch.zeros(1, 40)
    probs[0, [2, 17, 18, 39]] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    for top_k, wrong in ((3, [0]), (4, []), (-1, [])):
        filtered = call(probs=probs, token_ids=torch.tensor([18]), top_k=torch.tensor([top_k]))
        assert rows(filtered) == wrong
    # The draw falls on the token at which the mass passes it: 0.1, 0.3, 0.6, 1.
    for draw, token in ((0.05, 2), (0.2, 17), (0.45, 18), (0.99, 39)):
        for other in (2, 17, 18, 39):
            drawn = call(
                probs=probs, token_ids=torch.tensor([other]), draws=torch.tensor([draw]).double()
            )
            assert rows(drawn) == ([] if other == token else [0])


def test_no_limit_costs_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that -1 looks for no trace of a filter in [R,V]; a tensor is not asked."""
    monkeypatch.setattr(native, "loaded", lambda: False)
    seen: list[int] = []
    where = torch.where

    def counting(*args: torch.Tensor) -> torch.Tensor:
        seen.append(args[0].numel())
        return where(*args)

    monkeypatch.setattr(torch, "where", counting)
    for top_k in (-1, None):
        assert rows(call(top_k=top_k)) == []
    assert seen == []
    assert rows(call(top_k=torch.tensor([-1, 4]))) == []
    assert seen
