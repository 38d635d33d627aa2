"""A NaN appears in the hidden state between two layers."""

from tocsin.chaos.bits import Patch
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import chosen_depth, is_one_a_row, line_at
from tocsin.core.calls import ResidualCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Priority


@fault(
    "act.nan",
    expect=("numerical.residual", "numerical.finite"),
    priority=Priority.P0,
    source="vllm-project/vllm#13035, huggingface/transformers#27179: a product overflows in fp16",
    params={"value": "nan", "depth": None},
)
def nan(call: ResidualCall, target: Target) -> Evidence | None:
    """Overwrite one feature of one request's residual stream, in one decode step.

    From there the whole row is lost: its token becomes 0, its keys and values become NaN.
    Params: `value` nan, inf or -inf; `depth` None draws. Lasts for this call only; with checks
    off what it made of the pages stays.
    """
    output, rows = call.output, target.live_rows()
    if (
        output is None
        or not rows
        or call.depth != chosen_depth(target)
        or not is_one_a_row(output, target)
    ):
        return None
    row = rows[target.below(len(rows), "row")]
    column = target.below(output.shape[-1], "column")
    element = line_at(output, row)[column]
    patch = Patch.overwrite(element, float(target.params["value"]))
    return Evidence(
        place=f"{call.module or call.operator} depth {call.depth} row {row} [{column}]",
        before=patch.words(patch.before),
        after=patch.words(patch.after),
        requests=(target.request_ids[row],),
    )
