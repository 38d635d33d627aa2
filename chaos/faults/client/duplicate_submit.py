"""A client sends the same request again: while it is under way, and after its answer."""

from tocsin.chaos.clients import ClientTarget
from tocsin.chaos.contract import fault
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.history import Outcome
from tocsin.core.terms import Priority


@fault(
    "client.duplicate_submit",
    expect=("service.idempotency",),
    priority=Priority.P2,
    source="ai-dynamo/dynamo#7634: a request that is sent again has parts of its answer twice",
    scope=Scope.CLIENT,
    params={"copies": 2, "afterwards": 1, "stream": True},
)
async def duplicate_submit(target: ClientTarget) -> Evidence:
    """Send one request several times under one Idempotency-Key, each on a connection of its own.

    It must be executed once, and everybody must get that one answer (property `exec.idempotent`).
    Params: `copies` that are under way together, 2 at least; `afterwards`: copies sent after these
    were answered; `stream`: whether they stream.
    """
    copies, afterwards = int(target.params["copies"]), int(target.params["afterwards"])
    if copies < 2 or afterwards < 0:
        raise SpecError(f"copies is {copies}, afterwards {afterwards}; expected 2 and 0 at least")
    first = target.request(stream=bool(target.params["stream"]))
    key = f"key-{target.occurrence}-{target.seed:x}"
    same = {"prompt_id": first.prompt_id, "body": first.body, "idempotency_key": key}
    stream = first.stream
    together = [target.request(stream=stream, **same) for _ in range(copies)]
    target.strike()
    records = await target.send(together)
    for _ in range(afterwards):
        records += await target.send([target.request(stream=stream, **same)])
    replayed = [one for one in records if one.replayed]
    target.seen_ns = min((one.t_end_ns for one in replayed), default=0)
    target.memory["records"] = tuple(records)
    answered = sum(one.outcome is Outcome.OK for one in records)
    return Evidence(
        place=f"Idempotency-Key {key}",
        before="never sent",
        after=f"sent {len(records)} times, {copies} of them at once: {answered} answered, "
        f"{len(replayed)} of them from the first",
        requests=tuple(one.request_id for one in records),
    )


@duplicate_submit.heal_verify
def is_healed(target: ClientTarget) -> bool:
    """Every copy was answered, and so was a fresh request without a key."""
    answered = all(one.outcome is Outcome.OK for one in target.memory["records"])
    return answered and target.served_again
