"""A native call holds Python's lock, and every thread of the process stands still."""

import ctypes

from tocsin.chaos.contract import Target, fault
from tocsin.chaos.faults.actor.slow import seconds_of
from tocsin.chaos.places import is_decode
from tocsin.core.calls import BatchCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority

_SLICE_US = 500_000
"""usleep(3) need not take a second or more at once."""


@fault(
    "actor.gil_lock",
    expect=("service.straggler",),
    priority=Priority.P2,
    source="vllm-project/vllm#9818: the engine blocks the GIL, its heartbeats stop, all is ended",
    phase=Phase.BEFORE,
    params={"hold_s": 0.75, "times": 8},
)
def gil_lock(call: BatchCall, target: Target) -> Evidence | None:
    """Call a function of the C library that sleeps, without letting go of the interpreter's lock.

    Heartbeats, health answers and streams of the process wait as long as the step does: below the
    patience of the board nobody else may notice. Params: `hold_s` in each step; `times` how many
    decode steps. Each hold is over with its step.
    """
    if not is_decode(call) or not target.live_rows():
        return None
    hold_s = seconds_of(target, "hold_s")
    began_ns = target.clock.now_ns()
    if target.real_time:
        hold(hold_s)
    else:
        target.clock.sleep(hold_s)  # one thread, and time that only moves when it is told to
    took_s = (target.clock.now_ns() - began_ns) / 1e9
    return Evidence(
        place=f"decode step of {len(target.live_rows())} requests, the interpreter's lock",
        before="held for 0.00 s",
        after=f"held for {took_s:.2f} s",
        requests=tuple(filter(None, call.request_ids)),
    )


def hold(seconds: float) -> None:
    """Sleep with the lock held: `PyDLL` does not release it around a call, as `CDLL` does."""
    sleep = ctypes.PyDLL(None).usleep
    left_us = round(seconds * 1e6)
    while left_us > 0:
        part = min(left_us, _SLICE_US)
        sleep(ctypes.c_uint(part))
        left_us -= part
