"""A client asks for a long answer and hardly reads it."""

from dataclasses import replace

from tocsin.chaos.clients import ClientTarget
from tocsin.chaos.contract import fault
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_AT_ONCE = "reads what comes as it comes"


@fault(
    "client.slow_consumer",
    expect=("service.slow_client",),
    priority=Priority.P2,
    source="IBM/mcp-context-forge#1682, OpenCTI-Platform/opencti#13908: what a slow client does "
    "not take is held without a bound",
    scope=Scope.CLIENT,
    params={"clients": 1, "tokens_per_s": 1.0, "duration_s": 20.0, "max_tokens": 256},
)
async def slow_consumer(target: ClientTarget) -> Evidence:
    """Open streams whose clients read a token a second, or none at all, through a small buffer.

    What waits for them must be bounded and shown in `tocsin_client_backlog_bytes`; that client
    alone is dropped, with an error that it finds when it does read. Params: `clients` that do so;
    `tokens_per_s`, 0: they stop; `duration_s` until they read the rest; `max_tokens` asked for.
    """
    params = target.params
    clients, rate = int(params["clients"]), float(params["tokens_per_s"])
    duration_s, tokens = float(params["duration_s"]), int(params["max_tokens"])
    if clients < 1 or rate < 0 or not 0 < duration_s <= 300 or tokens < 1:
        raise SpecError(
            f"clients is {clients}, tokens_per_s {rate}, duration_s {duration_s}, max_tokens "
            f"{tokens}; expected at least 1, at least 0, 0 to 300 and at least 1"
        )
    every_s = 1.0 / rate if rate else duration_s
    honest = [target.request(stream=True) for _ in range(clients)]
    requests = [
        replace(
            one,
            body={**one.body, "max_tokens": tokens, "ignore_eos": True},
            max_new_tokens=tokens,
            malformed="slow_consumer",
            reads_every_s=every_s,
            slow_for_s=duration_s,
        )
        for one in honest
    ]
    target.strike()
    records = await target.send(requests)
    slow_until_ns = target.fired_ns + int(duration_s * 1e9)
    read = sum(chunk.t_ns <= slow_until_ns for one in records for chunk in one.chunks)
    dropped = [one for one in records if one.error]
    target.seen_ns = min((one.t_end_ns for one in dropped), default=0)
    begun = any(one.http_status == 200 for one in records)
    return Evidence(
        place=f"{clients} streams of {tokens} tokens",
        before=_AT_ONCE,
        after=f"read {read} tokens in {duration_s:g} s, {len(dropped)} were dropped"
        if begun
        else _AT_ONCE,
        requests=tuple(one.request_id for one in records),
    )


@slow_consumer.heal_verify
def is_healed(target: ClientTarget) -> bool:
    """The slow clients are gone, and a fresh request was answered whole."""
    return target.served_again
