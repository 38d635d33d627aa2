"""How a wrong answer is wrong: near tie, confident flip, somebody else's text, or broken structure.

Greedy divergence alone is not corruption (vllm-project/vllm#39146); the margin of the golden
decode at the first difference tells near ties from confident flips.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tocsin.core.system import GoldenAnswer

GRAM = 4
"""Length of the token runs by which text is told to be somebody else's."""
_LOOP = 8


class Category(StrEnum):
    """Classes of divergence (chaos reference, 5.3)."""

    EQUAL = "equal"
    TIE_FLIP = "tie_flip"
    CONFIDENT_FLIP = "confident_flip"
    FOREIGN = "foreign"
    STRUCTURAL = "structural"


DIVERGENCES = tuple(one for one in Category if one is not Category.EQUAL)


@dataclass(frozen=True, slots=True)
class Triage:
    """The class of one answer.

    Attributes:
        first_index: first index that differs, -1 when none does.
        margin: golden margin (top-1 minus top-2 logit) there; None: beyond the golden answer.
    """

    category: Category
    first_index: int
    margin: float | None
    detail: str


class ForeignIndex:
    """Token runs that occur in the golden answer of one prompt only."""

    def __init__(self, golden: Mapping[str, GoldenAnswer]) -> None:
        """Index every golden answer; runs shared by several prompts belong to nobody."""
        owners: dict[tuple[int, ...], str] = {}
        for prompt_id, answer in golden.items():
            for gram in _grams(answer.tokens):
                owners[gram] = prompt_id if owners.get(gram, prompt_id) == prompt_id else ""
        self._owners = {gram: owner for gram, owner in owners.items() if owner}

    def owner(self, tokens: Sequence[int], prompt_id: str) -> str:
        """Another prompt whose text occurs in the tokens; empty when there is none."""
        for gram in _grams(tokens):
            owner = self._owners.get(gram, "")
            if owner and owner != prompt_id:
                return owner
        return ""


def triage(
    tokens: Sequence[int],
    finish_reason: str,
    golden: GoldenAnswer,
    foreign: ForeignIndex,
    tau: float,
) -> Triage:
    """Compare a completed answer with its golden decode.

    Args:
        tokens: as received, in order of arrival.
        finish_reason: "stop" or "length"; empty: not known, then it is not compared.
        tau: largest margin at which numerics alone may turn the order of two tokens.
    """
    first = first_difference(tokens, golden.tokens)
    if first < 0:
        if finish_reason and finish_reason != golden.finish_reason:
            detail = f"ended by {finish_reason}, golden by {golden.finish_reason}"
            return Triage(Category.STRUCTURAL, len(tokens), None, detail)
        return Triage(Category.EQUAL, -1, None, "")
    owner = foreign.owner(tokens[max(0, first - GRAM + 1) :], golden.prompt_id)
    margin = golden.margins[first] if first < len(golden.margins) else None
    if owner:
        return Triage(Category.FOREIGN, first, margin, f"holds text of prompt {owner}")
    broken = _structure(tokens, golden.tokens, first)
    if broken:
        return Triage(Category.STRUCTURAL, first, margin, broken)
    if margin is not None and margin <= tau:
        return Triage(Category.TIE_FLIP, first, margin, f"margin {margin:.3g}, tau {tau:.3g}")
    return Triage(Category.CONFIDENT_FLIP, first, margin, _margin_text(margin, tau))


def first_difference(tokens: Sequence[int], golden: Sequence[int]) -> int:
    """First index at which two answers differ, also by one of them ending; -1: they are equal."""
    for i, (ours, theirs) in enumerate(zip(tokens, golden, strict=False)):
        if ours != theirs:
            return i
    return -1 if len(tokens) == len(golden) else min(len(tokens), len(golden))


def is_prefix(tokens: Sequence[int], golden: Sequence[int]) -> bool:
    """Whether the tokens are the beginning of the golden answer (or all of it)."""
    return len(tokens) <= len(golden) and first_difference(tokens, golden[: len(tokens)]) < 0


def _structure(tokens: Sequence[int], golden: Sequence[int], first: int) -> str:
    """Broken structure in words; empty when it is an answer like any other."""
    if not tokens:
        return "the answer is empty"
    if first == len(tokens):
        return f"cut off after {len(tokens)} of {len(golden)} tokens"
    if first == len(golden):
        return f"goes on after the end: {len(tokens)} tokens, golden has {len(golden)}"
    rest = tokens[first:]
    if len(rest) >= 2 and not any(rest):
        return f"only zeros from index {first} on"
    if len(rest) >= _LOOP and len(set(rest)) == 1 and len(set(golden[first:])) > 1:
        return f"token {rest[0]} over and over from index {first} on"
    if Counter(tokens[: len(golden)]) == Counter(golden):
        return f"the golden tokens in another order from index {first} on"
    if list(tokens[first:]) == list(golden[first + 1 : first + 1 + len(rest)]):
        return f"a token is missing at index {first}"
    if list(tokens[first + 1 :]) == list(golden[first : first + len(rest) - 1]) and len(rest) > 1:
        return f"a token too many at index {first}"
    return ""


def _margin_text(margin: float | None, tau: float) -> str:
    known = "unknown" if margin is None else f"{margin:.3g}"
    return f"margin {known}, beyond tau {tau:.3g}"


def _grams(tokens: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
