"""Waiting for long calls that block, without being held by them."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from tocsin.core.virtual import VirtualLoop

Answer = TypeVar("Answer")

_LOOK_S = 0.15


async def patiently(
    call: Callable[[], Answer], unwanted: Callable[[], bool], tell: Callable[[], None]
) -> Answer | None:
    """Run a call in a thread of its own and wait for it.

    Args:
        call: may block for minutes.
        unwanted: whether nobody wants the answer any more; then it is left to itself.
        tell: called a few times a second while it lasts.

    Returns:
        Its answer; None when it was left to itself.

    Raises:
        Exception: whatever the call raised.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):  # a thread knows nothing of its time
        return call()
    done = asyncio.Event()
    answers: list[Answer] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            failures.append(error)
        with contextlib.suppress(RuntimeError):  # the loop has gone: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    # A daemon: the end of the program must not wait for what nobody wants.
    threading.Thread(target=work, daemon=True).start()
    while not unwanted():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), _LOOK_S)
        if done.is_set():
            if failures:
                raise failures[0]
            return answers[0]
        tell()
    return None
