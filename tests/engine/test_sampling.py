"""Seeded sampling: the same draw for the same token, whatever happened around it."""

from dataclasses import replace

import pytest
import torch

from tests.engine.tiny import CONFIG, VOCAB, alone, answers, drain, request, tiny_model
from tocsin.core.calls import SamplerCall
from tocsin.core.requests import Sampling
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator, Phase
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.sampler import sample

HOT = Sampling(temperature=1.5, seed=11)


def test_a_seed_gives_one_answer_in_any_company() -> None:
    """Alone, in a crowd, and resumed elsewhere: the same sampled tokens."""
    model = tiny_model()
    asked = request("a", 6, new=12, sampling=HOT)
    expected = alone(model, asked)
    engine = ReferenceEngine(model, config=CONFIG)
    engine.submit(request("other", 20, new=9, start=9, sampling=replace(HOT, seed=5)))
    engine.submit(asked)
    assert answers(drain(engine))["a"] == expected
    resumed = replace(asked, delivered=tuple(expected[:5]))
    assert alone(model, resumed) == expected[5:]


def test_another_seed_gives_another_answer() -> None:
    """The draw depends on the seed."""
    model = tiny_model()
    found = {
        tuple(alone(model, request("a", 6, new=12, sampling=replace(HOT, seed=seed))))
        for seed in range(4)
    }
    assert len(found) == 4


def test_greedy_takes_the_first_largest_logit() -> None:
    """Ties go to the lower id, as argmax has it; the margin of a tie is zero."""
    logits = torch.zeros(2, VOCAB)
    logits[1, 5] = logits[1, 9] = 2.0
    logits[0, 7] = 1.0
    choices = sample(logits, [(Sampling(), 0), (Sampling(), 0)], Seams())
    assert [(one.token, one.margin) for one in choices if one] == [(7, 1.0), (5, 0.0)]


def test_a_row_of_nan_yields_token_zero() -> None:
    """The silent ending of a poisoned request is real: it is not hidden here."""
    logits = torch.full((1, VOCAB), float("nan"))
    (choice,) = sample(logits, [(Sampling(), 3)], Seams())
    assert choice is not None
    assert (choice.token, choice.margin) == (0, 0.0)


def test_rows_that_do_not_ask_get_nothing() -> None:
    """Idle and prefilling rows have no token."""
    assert sample(torch.zeros(2, VOCAB), [None, None], Seams()) == (None, None)


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(temperature=1.0, top_k=1), {3}),
        (Sampling(temperature=1.0, top_k=2), {3, 4}),
        (Sampling(temperature=1.0, top_p=0.5), {3}),
        (Sampling(temperature=1.0, top_p=0.8), {3, 4}),
        (Sampling(temperature=1.0, top_k=0), {2, 3, 4}),
    ],
)
def test_filters_keep_what_they_allow(sampling: Sampling, allowed: set[int]) -> None:
    """Many draws from a known distribution reach all allowed tokens and no other."""
    logits = torch.full((1, 6), float("-inf"))
    logits[0, 2:5] = torch.tensor([0.15, 0.55, 0.30]).log()
    drawn = set()
    for index in range(200):
        (choice,) = sample(logits, [(sampling, index)], Seams())
        assert choice is not None
        drawn.add(choice.token)
    assert drawn == allowed


def test_draws_follow_the_distribution() -> None:
    """Frequencies of 2000 draws are near the probabilities (five standard deviations)."""
    logits = torch.tensor([[0.2, 0.5, 0.3]]).log()
    counts = [0, 0, 0]
    for index in range(2000):
        (choice,) = sample(logits, [(Sampling(temperature=1.0, seed=3), index)], Seams())
        assert choice is not None
        counts[choice.token] += 1
    for count, share in zip(counts, (0.2, 0.5, 0.3), strict=True):
        assert abs(count - 2000 * share) < 5 * (2000 * share * (1 - share)) ** 0.5


def test_what_a_fault_does_at_the_sampler_is_what_is_released() -> None:
    """The seam is real: a changed token id leaves the sampler."""
    seams = Seams()

    def change(call: object) -> None:
        assert isinstance(call, SamplerCall)
        assert torch.allclose(call.probs.sum(-1), torch.ones(2))
        assert call.token_ids is not None
        call.token_ids[1] = 42

    seams.add_fault(Operator.SAMPLER, Phase.AFTER, change)
    logits = torch.zeros(2, VOCAB)
    choices = sample(logits, [(Sampling(), 0), (HOT, 0)], seams)
    assert choices[1] is not None
    assert choices[1].token == 42


def test_a_step_without_filters_announces_no_processor() -> None:
    """Greedy rows: nothing was masked, so there is no mask to check, and no filter's trace."""
    seams, heard = Seams(), []
    for operator in (Operator.LOGIT_PROCESSOR, Operator.SAMPLER):
        seams.add_check(operator, Phase.AFTER, heard.append)
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    chosen = sample(logits, [(Sampling(), 0), None], seams)
    (call,) = heard
    assert isinstance(call, SamplerCall)
    assert call.token_ids is not None
    assert call.token_ids.tolist() == logits.argmax(dim=-1).tolist()
    assert chosen[0] is not None
    assert (call.temperature, call.top_k, call.top_p, call.draws) == (0.0, None, None, None)
    torch.testing.assert_close(call.probs, torch.softmax(logits, dim=-1))
    heard.clear()
    sample(logits, [(Sampling(temperature=1.0, top_k=3), 0), (Sampling(), 0)], seams)
    assert [call.operator for call in heard] == [Operator.LOGIT_PROCESSOR, Operator.SAMPLER]
    assert int(heard[0].allowed[0].sum()) == 3
