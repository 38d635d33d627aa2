"""Many clients come at the same moment, as after an outage."""

import asyncio

from tocsin.chaos.clients import ClientTarget
from tocsin.chaos.contract import fault
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.history import SHED, Outcome, RequestRecord
from tocsin.core.terms import Priority

_WAIT_S_MAX = 30.0


@fault(
    "load.thundering_herd",
    expect=("service.admission",),
    priority=Priority.P2,
    source="vllm-project/vllm#18826, vllm-project/vllm#2901: the queue has no bound, a burst piles "
    "up and is never told so",
    scope=Scope.CLIENT,
    params={"factor": 10.0, "retries": 1},
)
async def thundering_herd(target: ClientTarget) -> Evidence:
    """Send `factor` times the workload's concurrency at once, on top of the load under way.

    What does not fit must be turned away with 429 and Retry-After, what was taken must be served
    in turn (property `overload.fair`), and nobody may multiply the requests. Params: `factor`, from
    1 to 100; `retries`: how often one that was turned away comes again, when it was told to.
    """
    factor, retries = float(target.params["factor"]), int(target.params["retries"])
    if not 1 <= factor <= 100 or not 0 <= retries <= 5:
        raise SpecError(f"factor is {factor}, retries {retries}; expected 1 to 100, and 0 to 5")
    usual = target.load.spec.workload.concurrency
    many = round(factor * usual)
    target.strike()
    records: list[RequestRecord] = []

    async def come() -> None:
        for _ in range(retries + 1):
            record = await target.load.send(target.request())
            records.append(record)
            if record.http_status not in SHED or not (record.retry_after or "").isdecimal():
                return
            await asyncio.sleep(min(float(record.retry_after or 0), _WAIT_S_MAX))

    await asyncio.gather(*(come() for _ in range(many)))
    shed = [one for one in records if one.http_status in SHED]
    answered = sum(one.outcome is Outcome.OK for one in records)
    target.seen_ns = min((one.t_end_ns for one in shed), default=0)
    return Evidence(
        place="requests at the front door",
        before=f"{usual} clients",
        after=f"{usual} clients and {many} more at once: {len(records)} requests sent, "
        f"{answered} answered, {len(shed)} told to come again",
        requests=tuple(one.request_id for one in records),
    )


@thundering_herd.heal_verify
def is_healed(target: ClientTarget) -> bool:
    """A fresh request is taken and answered whole."""
    return target.served_again
