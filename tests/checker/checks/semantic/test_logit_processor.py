"""`semantic.logit_processor`: a mask takes away, and nothing else."""

import pytest
import torch

from tocsin.checker import native
from tocsin.checker.checks.semantic.logit_processor import logit_processor
from tocsin.core.calls import LogitProcessorCall

INF = float("inf")


@pytest.fixture(autouse=True, params=["operator", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one native pass where it could be built, and with torch alone."""
    if request.param == "torch":
        monkeypatch.setattr(native, "loaded", lambda: False)
    elif not native.available():
        pytest.skip(native.reason())


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


@pytest.mark.parametrize("size", [5, 16, 45])
def test_each_logit_of_a_row_counts(size: int) -> None:
    """Proves that neither way skips a place: one wrong logit anywhere in a row is that row's."""
    before = torch.randn(3, size)
    allowed = torch.rand(3, size) < 0.5
    allowed[:, 0] = True
    masked = before.masked_fill(~allowed, -INF)
    clean = LogitProcessorCall(before=before, after=masked, allowed=allowed)
    assert logit_processor(clean).tolist() == [0, 0, 0]
    for at in range(size):
        for wrong in (0.5, INF, float("nan"), -INF):
            after = masked.clone()
            after[1, at] = wrong
            call = LogitProcessorCall(before=before, after=after, allowed=allowed)
            expected = 0.0 if wrong == masked[1, at] else INF
            assert logit_processor(call).tolist() == [0, expected, 0], (at, wrong)
    before[2] = torch.tensor(INF)
    call = LogitProcessorCall(before=before, after=before, allowed=torch.ones_like(allowed))
    assert logit_processor(call).tolist() == [0, 0, INF]  # nothing that could be chosen is left
