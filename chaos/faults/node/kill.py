"""A Ray node is lost with everything that runs on it."""

import signal

from tocsin.chaos.contract import ELSEWHERE, ProcessTarget, RayTarget, fault
from tocsin.chaos.process import look, send, state_of, wait_for
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_KIND = "node.kill"
_SEEN_WITHIN_S = 5.0


@fault(
    _KIND,
    expect=("service.actor_down", "service.heartbeat"),
    priority=Priority.P1,
    source="ray-project/ray#20929: Ray's chaos tests kill raylets while work is under way",
    scope=Scope.NODE,
)
def kill(target: RayTarget) -> Evidence:
    """Send SIGKILL to the raylet of the replica's node; its workers end with it.

    Never the head's: control plane, gateway and board are there.
    """
    if target.node == target.session.head:
        raise SpecError(
            f"{_KIND}: the replica is on the head, expected it on another node; set system.nodes "
            "to 2 or more, then the head serves no replica"
        )
    pid = target.session.raylet(target.node)
    reading = None if pid is None else look(pid)
    if pid is None or reading is None:
        raise SpecError(
            f"{_KIND}: node {target.node} has no raylet of this user on this machine, expected "
            "one; the fault is for a cluster that the run started itself"
        )
    raylet = ProcessTarget(pid, reading.started_ticks, target.params, target.seed, target.clock)
    before = state_of(raylet)
    send(raylet, signal.SIGKILL)
    after = wait_for(raylet, lambda state: state == "gone", _SEEN_WITHIN_S)
    target.memory["raylet"] = raylet
    place = f"raylet of node {target.node[:12]}, pid {pid}"
    return Evidence(place=place, before=_words(before), after=_words(after))


def _words(state: str) -> str:
    return "gone" if state == "gone" else "runs"


@kill.heal_verify
def is_healed(target: RayTarget) -> bool:
    """The raylet is gone for good, and another living process serves what it served."""
    raylet = target.memory.get("raylet")
    if raylet is None or state_of(raylet) != "gone":
        return False
    if target.replacement is None:
        return True
    pid = target.replacement()
    reading = None if pid is None or pid == ELSEWHERE else look(pid)
    return pid == ELSEWHERE or (reading is not None and not reading.dead)
