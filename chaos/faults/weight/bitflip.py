"""A bit of a resident weight flips and stays flipped."""

from tocsin.chaos.bits import Patch, chosen_bit
from tocsin.chaos.contract import Target, fault
from tocsin.core.calls import BatchCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "weight.bitflip",
    expect=("numerical.linear_checksum", "state.weight_sum"),
    priority=Priority.P0,
    source="ggml-org/llama.cpp#8685: weights differ after the copy to the device, answers drift",
    phase=Phase.BEFORE,
    params={"module": "mlp.down_proj", "depth": None, "bit": None},
)
def bitflip(call: BatchCall, target: Target) -> Evidence | None:
    """Flip one bit of one element of a live weight matrix: every request is wrong from then on.

    Params: `module` end of the matrix's module name; `depth` number among the matrices of that
    name, None draws; `bit` 0 is the lowest, None the highest exponent bit not set.
    """
    if not target.live_rows():
        return None
    suffix = f"{target.params['module']}.weight"
    found = [(n, w) for n, w in target.model.named_parameters() if n.endswith(suffix)]
    if not found:
        raise SpecError(
            f"weight.bitflip: no weight is named …{suffix}; name the end of a module of the model"
        )
    depth = target.params["depth"]
    name, weight = found[target.below(len(found), "depth") if depth is None else int(depth)]
    index = tuple(target.below(size, f"axis {axis}") for axis, size in enumerate(weight.shape))
    element = weight.detach()[index]
    bit = chosen_bit(target.params["bit"], element)
    patch = Patch.flip(element, bit)
    target.memory["patch"] = patch
    return Evidence(
        place=f"{name}{list(index)} bit {bit}",
        before=patch.words(patch.before),
        after=patch.words(patch.after),
        requests=tuple(filter(None, call.request_ids)),
    )


@bitflip.heal
def heal(target: Target) -> None:
    """Flip it back, unless the weight was copied anew since."""
    if "patch" in target.memory:
        target.memory["patch"].undo()


@bitflip.heal_verify
def is_healed(target: Target) -> bool:
    """The element reads exactly as before."""
    return "patch" not in target.memory or target.memory["patch"].undone()
