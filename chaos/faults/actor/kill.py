"""A serving process dies at once."""

import signal

from tocsin.chaos.contract import ProcessTarget, fault
from tocsin.chaos.process import is_replaced, send, state_of, wait_for
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_SEEN_WITHIN_S = 2.0


@fault(
    "actor.kill",
    expect=("service.actor_down",),
    priority=Priority.P1,
    source="vllm-project/vllm#16259: health stays 200 after the workers crashed",
    scope=Scope.PROCESS,
)
def kill(target: ProcessTarget) -> Evidence:
    """Send SIGKILL; the evidence is that the kernel no longer runs the process."""
    before = state_of(target)
    send(target, signal.SIGKILL)
    after = wait_for(target, lambda state: state == "gone", _SEEN_WITHIN_S)
    return Evidence(place=f"pid {target.pid}", before=f"state {before}", after=f"state {after}")


@kill.heal_verify
def is_healed(target: ProcessTarget) -> bool:
    """Another living process serves in its place; where nobody is to, that it is gone."""
    return is_replaced(target)
