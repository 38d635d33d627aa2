"""`semantic.logit_processor`: a mask takes away, and nothing else."""

import torch

from tocsin.checker.checks.semantic.logit_processor import logit_processor
from tocsin.core.calls import LogitProcessorCall

INF = float("inf")


def rows(before: list[float], after: list[float], allowed: list[int] | None = None) -> bool:
    call = LogitProcessorCall(
        before=torch.tensor([before], dtype=torch.float32),
        after=torch.tensor([after], dtype=torch.float32),
        allowed=None if allowed is None else torch.tensor([allowed]).bool(),
    )
    return bool(torch.isinf(logit_processor(call)).any())


def test_masking_all_but_one_is_legal_and_masking_that_one_is_not() -> None:
    """The nearest miss: a grammar may leave a single token."""
    assert not rows([1, 2, 3], [-INF, 2, -INF])
    assert rows([1, 2, 3], [-INF, -INF, -INF])


def test_lowering_a_kept_logit_alarms() -> None:
    """A mask that is added as -1 instead of -inf only shifts the choice."""
    assert rows([1, 2, 3], [1, 1, 3])
    assert rows([1, 2, 3], [1, 2.0001, 3])


def test_allowed_and_masked_must_be_the_same_set() -> None:
    """Too much and too little are both wrong."""
    assert not rows([1, 2, 3], [-INF, 2, 3], [0, 1, 1])
    assert rows([1, 2, 3], [-INF, 2, -INF], [0, 1, 1])
    assert rows([1, 2, 3], [1, 2, 3], [0, 1, 1])


def test_a_logit_that_an_earlier_processor_masked_stays_masked() -> None:
    """It may be in the allowed set of this one all the same."""
    assert not rows([-INF, 2, 3], [-INF, 2, -INF], [1, 1, 0])
    assert rows([-INF, 2, 3], [0, 2, -INF], [1, 1, 0])
