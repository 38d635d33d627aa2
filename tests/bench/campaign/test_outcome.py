"""The classes of the protocol, with the margin as their only number."""

import pytest
import torch

from tocsin.bench.campaign.outcome import Judged, Outcome, judge, margin_of
from tocsin.core.errors import ContractError

GOLDEN = torch.tensor([[0.0, 5.0, 1.0], [2.0, 1.9, 0.0], [0.0, 0.0, 9.0]])
MARGIN = 0.5


def changed(step: int, values: list[float]) -> torch.Tensor:
    faulty = GOLDEN.clone()
    faulty[step] = torch.tensor(values)
    return faulty


@pytest.mark.parametrize(
    ("faulty", "expected"),
    [
        (GOLDEN, Judged(Outcome.MASKED, -1)),
        (changed(0, [0.0, 4.0, 1.0]), Judged(Outcome.BENIGN, -1)),
        (changed(1, [1.8, 1.9, 0.0]), Judged(Outcome.NEAR_TIE, 1)),
        (changed(0, [6.0, 5.0, 1.0]), Judged(Outcome.HARMFUL, 0)),
        (changed(2, [0.0, 10.0, 9.0]), Judged(Outcome.HARMFUL, 2)),
        (changed(1, [2.0, float("nan"), 0.0]), Judged(Outcome.DUE, 1)),
        (changed(1, [float("inf"), 1.9, 0.0]), Judged(Outcome.DUE, 1)),
        (GOLDEN[:1], Judged(Outcome.DUE, 1)),
    ],
)
def test_classes(faulty: torch.Tensor, expected: Judged) -> None:
    """Same bits, same tokens, a tie, a wrong token early and late, no numbers, an exception."""
    assert judge(faulty, GOLDEN, MARGIN) == expected


def test_the_first_wrong_token_decides() -> None:
    """After a near tie the answer has gone another way: what follows is not judged."""
    faulty = changed(1, [1.8, 1.9, 0.0])
    faulty[2] = torch.tensor([9.0, 0.0, 0.0])
    assert judge(faulty, GOLDEN, MARGIN) == Judged(Outcome.NEAR_TIE, 1)


def test_only_harm_counts() -> None:
    """The denominator of coverage."""
    assert [one for one in Outcome if one.counts] == [Outcome.HARMFUL, Outcome.DUE]


def test_margins_are_the_protocol_s() -> None:
    """Fixed before anything was measured."""
    assert margin_of(torch.float32) == 2e-4
    assert margin_of(torch.bfloat16) == 0.5
    with pytest.raises(ContractError, match="no margin"):
        margin_of(torch.float64)
