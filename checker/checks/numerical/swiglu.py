"""Whether a gated activation is act(gate) * up, number by number."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from tocsin.checker.contract import check
from tocsin.checker.ratios import nothing, over
from tocsin.checker.rounding import U32, smallest_step, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import SwiGLUCall
from tocsin.core.terms import Priority

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda gate: functional.gelu(gate, approximate="tanh"),
}


@check(
    "numerical.swiglu",
    priority=Priority.P1,
    impact="the feed-forward block passes on a wrong value: the text drifts, nothing is raised",
    source="GLU variants, arXiv:2002.05202; vllm-project/vllm#22881: gate * up overflows float16",
)
def swiglu(call: SwiGLUCall, limit_ulp: float = 4.0) -> Tensor:
    """Distance of each output from the product recomputed in float32, in units of the limit.

    Args:
        call: gate_TN, up_TN and the output of them; an activation that is not known here is not
            checked.
        limit_ulp: allowed distance, in unit roundoffs of the output's dtype; two roundings
            (the activation, the product) make 2.

    Returns:
        ratio_T, float32, the largest over features.
    """
    if call.output is None:
        return nothing(call)
    if (early := unready(call, call.gate)) is not None:
        return early
    activation = _ACTIVATIONS.get(call.activation)
    if activation is None:
        return nothing(call)
    gate, up = call.gate.to(torch.float32), call.up.to(torch.float32)
    exact = activation(gate) * up
    # Near its flat end an activation is a small difference of large numbers.
    flat = (gate * up).abs() * (8 * U32)
    step = smallest_step(call.output.dtype) * (1 + up.abs())
    limit = exact.abs() * (limit_ulp * unit_roundoff(call.output.dtype)) + flat + step
    ratio = over(call.output.to(torch.float32) - exact, limit)
    return ratio.reshape(-1, ratio.shape[-1]).amax(dim=-1)
