"""A request asks for tokens to be chosen in a way that makes no sense."""

from typing import Any

from tocsin.chaos.contract import fault
from tocsin.chaos.faults.batch.malformed import ServedModel
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope
from tocsin.core.terms import Priority

_POISONS: dict[str, dict[str, Any]] = {
    "temperature_nan": {"temperature": "nan"},  # JSON has no NaN: as text, which parsers accept
    "temperature_negative": {"temperature": -1.0},
    "temperature_huge": {"temperature": 1e9},
    "top_k_zero": {"top_k": 0},
    "top_k_negative": {"top_k": -5},
    "top_p_zero": {"top_p": 0.0},
    "top_p_nan": {"top_p": "nan"},
    "bias_inf": {"logit_bias": {"0": 1e308}},
}
KINDS: tuple[str, ...] = tuple(_POISONS)


@fault(
    "sampler.param_poison",
    expect=("service.admission",),
    priority=Priority.P2,
    source="NVIDIA/TensorRT-LLM#15715, vllm-project/vllm#2937: senseless temperatures are accepted",
    scope=Scope.CLIENT,
    params={"kind": "temperature_nan"},
)
def param_poison(kind: str, served: ServedModel) -> dict[str, Any]:
    """JSON body of a completion request with one poisoned parameter; the right answer is a 4xx.

    Args:
        kind: one of `KINDS`.
        served: of the server that the body is made for.

    Returns:
        Body for `POST /v1/completions`; well-formed but for that parameter.

    Raises:
        SpecError: no such kind.
    """
    if kind not in _POISONS:
        raise SpecError(f"sampler.param_poison: kind is {kind!r}, expected one of {list(KINDS)}")
    body = {"model": served.name, "prompt": [1], "max_tokens": 4, "stream": False}
    return body | _POISONS[kind]
