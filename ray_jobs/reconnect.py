"""A client whose connection breaks asks again, and takes only what it does not have yet."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from tocsin.core.history import Outcome, RequestRecord

Attempt = Callable[[], AsyncIterator[RequestRecord]]
"""Sends the request once more; see `client.send`."""
Broken = Callable[[RequestRecord], None]

ATTEMPTS_MAX = 4
_PAUSE_S = 0.05
SILENT_S = 30.0
"""A client that hears nothing for so long takes its connection for broken."""
_BROKEN = (
    "ConnectError",
    "ConnectTimeout",
    "ReadError",
    "ReadTimeout",
    "RemoteProtocolError",
    "WriteError",
)


def is_broken(record: RequestRecord) -> bool:
    """Whether a request ended because its connection did."""
    return record.outcome is Outcome.INFO and record.error.partition(":")[0] in _BROKEN


async def reconnecting(attempt: Attempt, broken: Broken) -> AsyncIterator[RequestRecord]:
    """The growing record of one request over all its connections.

    Greedy answers are the same each time, so a token that is there already is dropped by its
    index. One that differs from it is kept beside it: that is for the judge to see.

    Args:
        broken: told of each connection that broke, with what had arrived by then.
    """
    held: RequestRecord | None = None
    for number in range(ATTEMPTS_MAX):
        async with aclosing(attempt()) as records:  # type: ignore[type-var]
            last: RequestRecord | None = None
            async for record in records:
                last = record
                last_time = number == ATTEMPTS_MAX - 1
                if is_broken(record) and not last_time:
                    break
                yield record if held is None else joined(held, record)
            else:
                return
        if last is None:
            return
        broken(last)
        await asyncio.sleep(_PAUSE_S * 2**number)
        held = last if held is None else joined(held, last)
        held.outcome, held.error, held.t_end_ns = Outcome.OPEN, "", 0


def joined(held: RequestRecord, again: RequestRecord) -> RequestRecord:
    """What the client has after its latest connection, in the record of the first one.

    Args:
        held: grows by the tokens that it does not have.
        again: the whole record of the latest connection so far.
    """
    known = {chunk.index: chunk.token for chunk in held.chunks}
    for chunk in again.chunks:
        if known.get(chunk.index) != chunk.token:
            held.chunks.append(chunk)
            held.text += chunk.text
    if not again.stream:
        held.text = again.text
    elif again.finish_reason and len(again.text) > len(held.text):
        held.text = again.text  # what the ending brought belongs to no token
    held.t_first_ns = held.t_first_ns or again.t_first_ns
    for name in (
        "outcome",
        "error",
        "t_end_ns",
        "http_status",
        "finish_reason",
        "usage_tokens",
        "terminals",
        "degraded_header",
        "failure_id",
        "retry_after",
    ):
        setattr(held, name, getattr(again, name))
    held.degraded = tuple(dict.fromkeys((*held.degraded, *again.degraded)))
    held.attempts = tuple(dict.fromkeys((*held.attempts, *again.attempts)))
    return held
