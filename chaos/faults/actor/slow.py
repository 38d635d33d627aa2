"""A replica becomes a straggler: its steps take several times as long."""

from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import is_decode
from tocsin.core.calls import BatchCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority

_LONGEST_S = 10.0


@fault(
    "actor.slow",
    expect=("service.straggler",),
    priority=Priority.P2,
    source="intelligent-machine-learning/dlrover#678: one slow node, and nothing says which",
    phase=Phase.BEFORE,
    params={"delay_s": 0.75, "times": 8},
)
def slow(call: BatchCall, target: Target) -> Evidence | None:
    """Let decode steps take longer by a fixed time: the thread that steps sleeps before the launch.

    Heartbeats go on, and every answer is right. Params: `delay_s` of each step; `times` how many
    decode steps. Each delay is over with its step.
    """
    if not is_decode(call) or not target.live_rows():
        return None
    delay_s = seconds_of(target, "delay_s")
    began_ns = target.clock.now_ns()
    target.clock.sleep(delay_s)
    took_s = (target.clock.now_ns() - began_ns) / 1e9
    return Evidence(
        place=f"decode step of {len(target.live_rows())} requests, before its launch",
        before="0.00 s",
        after=f"{took_s:.2f} s",
        requests=tuple(filter(None, call.request_ids)),
    )


def seconds_of(target: Target, name: str) -> float:
    """A parameter in seconds.

    Raises:
        SpecError: it is no time that a replica may be held for.
    """
    value = target.params[name]
    if not isinstance(value, int | float) or not 0 < value <= _LONGEST_S:
        raise SpecError(f"actor: {name} is {value!r}, expected more than 0 and at most 10")
    return float(value)
