"""A prompt whose text is made to keep a tokenizer busy."""

from collections.abc import Callable
from typing import Any

from tocsin.chaos.contract import fault
from tocsin.chaos.faults.batch.malformed import ServedModel
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope
from tocsin.core.terms import Priority

_TEXTS: dict[str, Callable[[int], str]] = {
    "repeats": lambda count: "again " * (count // 6),
    "one_word": lambda count: "a" * count,
    "combining": lambda count: "e" + "\u0301" * count,
    "special_tokens": lambda count: "<|im_start|>" * (count // 12),
    "brackets": lambda count: "[" * count,
}
"""Text of about so many characters."""
KINDS: tuple[str, ...] = tuple(_TEXTS)
_SHORTEST = 100_000
_TOKEN_LONGEST = 100
"""Characters; longer runs of one letter are no token of any vocabulary that we know."""


@fault(
    "prompt.poison",
    expect=("service.admission",),
    priority=Priority.P2,
    source="vllm-project/vllm#7283, vllm-project/vllm#6521: what a client may send ends the engine",
    scope=Scope.CLIENT,
    params={"kind": "repeats"},
)
def poison(kind: str, served: ServedModel) -> dict[str, Any]:
    """JSON body with a pathological text, far too long as well; the right answer is a quick 4xx.

    Kinds: repeats (one word over and over), one_word (a single word that no merge ends), combining
    (marks piled up on one letter), special_tokens (of the chat template), brackets.

    Args:
        kind: one of `KINDS`.
        served: of the server that the body is made for.

    Returns:
        Body for `POST /v1/completions`; well-formed but for the length of its prompt.

    Raises:
        SpecError: no such kind.
    """
    if kind not in _TEXTS:
        raise SpecError(f"prompt.poison: kind is {kind!r}, expected one of {list(KINDS)}")
    text = _TEXTS[kind](max(_SHORTEST, _TOKEN_LONGEST * served.max_length))
    return {"model": served.name, "prompt": text, "max_tokens": 4, "stream": False}
