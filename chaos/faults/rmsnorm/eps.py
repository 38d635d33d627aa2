"""RMSNorm is computed with another epsilon than the model's."""

from tocsin.chaos.bits import Patch
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import chosen_depth, is_one_a_row, line_at
from tocsin.core.calls import RMSNormCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Priority


@fault(
    "rmsnorm.eps",
    expect=("numerical.rms_range", "numerical.rms_dot"),
    priority=Priority.P1,
    source="nntrainer/nntrainer#4318, pytorch/pytorch#41527: epsilon lost or floored in the kernel",
    params={"eps": 1.0, "module": "post_attention_layernorm", "depth": None},
)
def eps(call: RMSNormCall, target: Target) -> Evidence | None:
    """Compute one row of a norm's output anew with another epsilon.

    Params: `eps` at least 0: one of the size of the mean square shrinks the row; 0 changes
    nothing but rows of next to nothing, where it makes NaN; `module` end of the norm's name;
    `depth` None draws. Lasts for this call only.
    """
    other = float(target.params["eps"])
    if not other >= 0:
        raise SpecError(f"rmsnorm.eps: eps is {other}, expected at least 0")
    output, rows = call.output, target.live_rows()
    if (
        output is None
        or not rows
        or not call.module.endswith(str(target.params["module"]))
        or call.depth != chosen_depth(target)
        or not is_one_a_row(output, target)
    ):
        return None
    row = rows[target.below(len(rows), "row")]
    x_D = line_at(call.x, row).double()
    scaled = x_D * (x_D.square().mean() + other).rsqrt() * call.weight.detach().double()
    patch = Patch.overwrite(line_at(output, row), scaled.to(output.dtype))
    return Evidence(
        place=f"{call.module} row {row}, eps {other:g} for {call.eps:g}",
        before=patch.words(patch.before),
        after=patch.words(patch.after),
        requests=(target.request_ids[row],),
    )
