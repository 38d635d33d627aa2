"""Requests that no honest client would send."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tocsin.chaos.contract import fault
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope
from tocsin.core.terms import Priority

PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What must be known of the server to send it something that it cannot serve.

    Attributes:
        name: of the model, for the body.
        vocab_size: first token id that does not exist.
        max_length: largest number of prompt and answer tokens of one request.
    """

    name: str
    vocab_size: int
    max_length: int


_PROMPTS: dict[str, Callable[[ServedModel], Any]] = {
    "out_of_range": lambda served: [1, served.vocab_size, 2],
    "negative": lambda served: [1, -1, 2],
    "empty": lambda served: [],
    "too_long": lambda served: [1] * (served.max_length + 1),
    "wrong_dtype": lambda served: [1.5, "two", None],
    "ragged": lambda served: [[1, 2, 3], [4], 5],
}
KINDS: tuple[str, ...] = tuple(_PROMPTS)


@fault(
    "batch.malformed",
    expect=("service.admission",),
    priority=Priority.P2,
    source="vllm-project/vllm#7283: an empty prompt kills the engine, and with it every request",
    scope=Scope.CLIENT,
    params={"kind": "out_of_range"},
)
def malformed(kind: str, served: ServedModel) -> dict[str, Any]:
    """JSON body of a malformed completion request; the right answer is a 4xx at the front door.

    Args:
        kind: one of `KINDS`.
        served: of the server that the body is made for.

    Returns:
        Body for `POST` to `PATH`; well-formed but for the prompt.

    Raises:
        SpecError: no such kind.
    """
    if kind not in _PROMPTS:
        raise SpecError(f"batch.malformed: kind is {kind!r}, expected one of {list(KINDS)}")
    prompt = _PROMPTS[kind](served)
    return {"model": served.name, "prompt": prompt, "max_tokens": 4, "stream": False}
