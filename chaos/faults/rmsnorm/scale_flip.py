"""The sign of a norm's weight flips and stays flipped."""

from tocsin.chaos.bits import Patch, width
from tocsin.chaos.contract import Target, fault
from tocsin.core.calls import BatchCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "rmsnorm.scale_flip",
    expect=("numerical.rms_dot", "state.weight_sum"),
    priority=Priority.P0,
    source="ggml-org/llama.cpp#8685: weights differ after the copy to the device, answers drift",
    phase=Phase.BEFORE,
    params={"module": "input_layernorm", "depth": None},
)
def scale_flip(call: BatchCall, target: Target) -> Evidence | None:
    """Flip the sign bit of one channel of a live norm weight: every row is wrong from then on.

    The size of the output stays exactly right, so that nothing which looks at magnitudes sees it.
    Params: `module` end of the norm's name; `depth` number among the norms of that name, None
    draws.
    """
    if not target.live_rows():
        return None
    suffix = f"{target.params['module']}.weight"
    found = [
        (name, weight)
        for name, weight in target.model.named_parameters()
        if name.endswith(suffix) and weight.dim() == 1
    ]
    if not found:
        raise SpecError(
            f"rmsnorm.scale_flip: no norm is named …{suffix}; name the end of a norm of the model"
        )
    depth = target.params["depth"]
    name, weight = found[target.below(len(found), "depth") if depth is None else int(depth)]
    channel = target.below(weight.shape[0], "channel")
    element = weight.detach()[channel]
    patch = Patch.flip(element, width(element.dtype) - 1)
    target.memory["patch"] = patch
    return Evidence(
        place=f"{name}[{channel}], its sign",
        before=patch.words(patch.before),
        after=patch.words(patch.after),
        requests=tuple(filter(None, call.request_ids)),
    )


@scale_flip.heal
def heal(target: Target) -> None:
    """Flip it back, unless the weight was copied anew since."""
    if "patch" in target.memory:
        target.memory["patch"].undo()


@scale_flip.heal_verify
def is_healed(target: Target) -> bool:
    """The channel reads exactly as before."""
    return "patch" not in target.memory or target.memory["patch"].undone()
