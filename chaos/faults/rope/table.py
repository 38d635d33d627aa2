"""The table of rotary frequencies changes while keys made with the old one are cached."""

from tocsin.chaos.bits import Patch
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import rotary_frequencies
from tocsin.core.calls import BatchCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "rope.table",
    expect=("numerical.rope_table",),
    priority=Priority.P0,
    source="vllm-project/vllm#27414, huggingface/transformers#27227: frequencies switch mid-answer",
    phase=Phase.BEFORE,
    params={"entry": None, "factor": 4.0},
)
def table(call: BatchCall, target: Target) -> Evidence | None:
    """Multiply one inverse frequency: new positions are rotated wrongly, norms stay right.

    Params: `entry` of the table, None draws one of the fastest quarter, where a step of one
    position turns furthest; `factor` may be nan. Stays until the table is repaired or healed.
    """
    if not target.live_rows():
        return None
    name, inv_freq = rotary_frequencies(target, "rope.table")
    entry = target.params["entry"]
    if entry is None:
        entry = target.below(max(1, inv_freq.numel() // 4), "entry")
    element = inv_freq[int(entry)]
    patch = Patch.overwrite(element, float(element) * float(target.params["factor"]))
    target.memory["patch"] = patch
    return Evidence(
        place=f"{name}[{entry}]",
        before=patch.words(patch.before),
        after=patch.words(patch.after),
        requests=tuple(filter(None, call.request_ids)),
    )


@table.heal
def heal(target: Target) -> None:
    """Put the frequency back, unless the table was rebuilt since."""
    if "patch" in target.memory:
        target.memory["patch"].undo()


@table.heal_verify
def is_healed(target: Target) -> bool:
    """The entry reads exactly as before."""
    return "patch" not in target.memory or target.memory["patch"].undone()
