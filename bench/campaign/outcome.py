"""What a fault did to an answer, with the margins fixed before anything was measured.

Axes: n steps after the fault · V vocabulary.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from tocsin.core.errors import ContractError

MARGINS = {torch.float32: 2e-4, torch.float16: 0.0625, torch.bfloat16: 0.5}
"""Largest clean distance of the two best logits at which a changed token is a near tie, by dtype:
what a clean change of shape moves (fp32 and bf16 from the protocol; fp16 as bf16 by its ulp)."""


class Outcome(StrEnum):
    """Classes of the protocol; `harmful` and `due` are what a detector is judged by."""

    MASKED = "masked"  # every logit has its golden bits
    BENIGN = "benign"  # logits differ, tokens do not
    NEAR_TIE = "near_tie"  # the first changed token was a tie within the margin
    HARMFUL = "harmful"  # a token changed against a clean margin
    DUE = "due"  # logits that are no numbers, or an exception

    @property
    def counts(self) -> bool:
        """Whether the fault must be caught."""
        return self in (Outcome.HARMFUL, Outcome.DUE)


@dataclass(frozen=True, slots=True)
class Judged:
    """Attributes: wrong_step: steps after the fault until the first wrong token, -1 for none."""

    outcome: Outcome
    wrong_step: int


def margin_of(dtype: torch.dtype) -> float:
    """The margin of a dtype.

    Raises:
        ContractError: none was fixed for it.
    """
    if dtype not in MARGINS:
        raise ContractError(
            f"outcome: no margin was fixed for {dtype}, expected one of {list(MARGINS)}; "
            "fix it in MARGINS before measuring"
        )
    return MARGINS[dtype]


def judge(faulty_nV: Tensor, golden_nV: Tensor, margin: float) -> Judged:
    """Class of one trial by its logits and the golden ones; tokens are chosen greedily.

    Both are fed the golden tokens: the first difference is the first of the free-running answer.

    Args:
        faulty_nV, golden_nV: one row a step; fewer faulty ones than golden: an exception ended it.
    """
    changed = False
    for step, golden in enumerate(golden_nV):
        if step >= len(faulty_nV) or not bool(torch.isfinite(faulty_nV[step]).all()):
            return Judged(Outcome.DUE, step)
        faulty = faulty_nV[step]
        best = golden.topk(2)
        if int(faulty.argmax()) != int(best.indices[0]):
            tie = float(best.values[0] - best.values[1]) <= margin
            return Judged(Outcome.NEAR_TIE if tie else Outcome.HARMFUL, step)
        changed = changed or not torch.equal(faulty, golden)
    return Judged(Outcome.BENIGN if changed else Outcome.MASKED, -1)
