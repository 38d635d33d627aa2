"""A bit of a logit flips between the head and the sampler."""

from tocsin.chaos.bits import Patch, chosen_bit
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import is_one_a_row, line_at
from tocsin.core.calls import LogitsCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Priority


@fault(
    "logits.bitflip",
    expect=("numerical.logits_bound", "numerical.logits_winner"),
    priority=Priority.P0,
    source="vllm-project/vllm#13035, #22881: damaged logits are sampled as if nothing had happened",
    params={"bit": None},
)
def bitflip(call: LogitsCall, target: Target) -> Evidence | None:
    """Flip one bit of a positive logit of one row: by default its token becomes the winner.

    Params: `bit` 0 is the lowest, None the highest exponent bit that is not set. A low bit
    mostly leaves the winner as it was, and then nobody but the head's checksum can see it.
    Lasts for this call only.
    """
    logits, rows = call.logits, target.live_rows()
    if not rows or not is_one_a_row(logits, target):
        return None
    row = rows[target.below(len(rows), "row")]
    logits_V = line_at(logits, row)
    positive = (logits_V > 0).nonzero().flatten()
    if positive.numel() == 0:
        return None
    token = int(positive[target.below(positive.numel(), "token")])
    element = logits_V[token]
    bit = chosen_bit(target.params["bit"], element)
    patch = Patch.flip(element, bit)
    return Evidence(
        place=f"logit of token {token} in row {row} bit {bit}",
        before=patch.words(patch.before),
        after=patch.words(patch.after),
        requests=(target.request_ids[row],),
    )
