"""A bit of an activation flips on its way from one operator to the next."""

import torch

from tocsin.chaos.bits import Patch, chosen_bit
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import chosen_depth
from tocsin.core.calls import LinearCall, ResidualCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Priority


@fault(
    "act.bitflip",
    expect=("numerical.linear_checksum",),
    priority=Priority.P0,
    source="ROCm/vllm#247, vllm-project/vllm#19022: values change between operators, no error",
    params={"operator": "linear", "module": "down_proj", "depth": None, "bit": None},
)
def bitflip(call: LinearCall | ResidualCall, target: Target) -> Evidence | None:
    """Flip one bit of one request's output of an operator, in one decode step.

    Lasts for this call only: the next step computes the value anew, so there is nothing to heal.
    Params: `operator` linear or residual; `module` end of the linear's name; `depth` None draws;
    `bit` 0 is the lowest, None the highest exponent bit not set.
    """
    output, rows = call.output, target.live_rows()
    if (
        output is None
        or not rows
        or call.operator.value != target.params["operator"]
        or (isinstance(call, LinearCall) and not call.module.endswith(target.params["module"]))
        or call.depth != chosen_depth(target)
        or output.numel() != len(target.request_ids) * output.shape[-1]
    ):
        return None
    row = rows[target.below(len(rows), "row")]
    column = target.below(output.shape[-1], "column")
    lead = torch.unravel_index(torch.tensor(row), output.shape[:-1])
    element = output.detach()[(*(int(axis) for axis in lead), column)]
    bit = chosen_bit(target.params["bit"], element)
    patch = Patch.flip(element, bit)
    return Evidence(
        place=f"{call.module or call.operator} depth {call.depth} row {row} [{column}] bit {bit}",
        before=patch.words(patch.before),
        after=patch.words(patch.after),
        requests=(target.request_ids[row],),
    )
