"""Many clients give their requests up at the same moment."""

from tocsin.chaos.clients import ClientTarget
from tocsin.chaos.contract import fault
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.history import Outcome
from tocsin.core.terms import Priority

_WAIT_S = 30.0


@fault(
    "client.abort_storm",
    expect=("service.abort",),
    priority=Priority.P2,
    source="ai-dynamo/dynamo#12389: after aborts /health stays 200 while generation is wedged",
    scope=Scope.CLIENT,
    params={"ratio": 0.6, "streams_min": 4},
)
async def abort_storm(target: ClientTarget) -> Evidence:
    """Cut the connections of a share of the streams that are under way, all at once.

    Every replica that had one must free its pages in a bounded number of steps (property
    `abort.effective`), tell so, and serve a fresh request. Params: `ratio` of the streams, from
    0.3 to 1; `streams_min`: it waits until so many are in the middle of their answers.
    """
    ratio, least = float(target.params["ratio"]), int(target.params["streams_min"])
    if not 0.3 <= ratio <= 1.0 or least < 1:
        raise SpecError(f"ratio is {ratio}, streams_min {least}; expected 0.3 to 1, and at least 1")
    await target.wait_for(lambda: len(target.streaming()) >= least, _WAIT_S)
    running = target.streaming()
    before = f"{len(running)} clients read their streams"
    if len(running) < least:
        return Evidence("streams under way", before, before)
    target.strike()
    chosen = target.shuffled(running)[: max(1, round(ratio * len(running)))]
    left = [name for name in chosen if target.load.leave(name)]
    target.memory["left"] = tuple(left)
    after = f"{len(running) - len(left)} clients read their streams, {len(left)} cut them off"
    return Evidence("streams under way", before, after, requests=tuple(left))


@abort_storm.heal_verify
def is_healed(target: ClientTarget) -> bool:
    """Every connection that was cut has ended for its client, and a fresh request was answered."""
    records = target.load.records
    ended = all(records[name].outcome is Outcome.CANCELLED for name in target.memory["left"])
    return ended and target.served_again
