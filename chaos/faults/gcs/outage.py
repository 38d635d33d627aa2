"""Ray's control plane is away: what serves must go on serving."""

from tocsin.chaos.contract import ProcessTarget, RayTarget, fault
from tocsin.chaos.freezing import let_go, stop
from tocsin.chaos.process import look, state_of
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_KIND = "gcs.outage"
_LONGEST_S = 15.0
"""Ray's own processes give the control plane up after a minute; far below that none does."""


@fault(
    _KIND,
    expect=("service.control_plane",),
    priority=Priority.P1,
    source="ray-project/ray#17089, #20929: Ray's own chaos kills nodes, and its control plane "
    "without a store behind it does not come back: here it stands still and goes on",
    scope=Scope.CLUSTER,
    params={"duration_s": 6.0},
)
def outage(target: RayTarget) -> Evidence:
    """Stop the run's own `gcs_server` for `duration_s`, with a guardian ready to let it go on.

    Existing handles keep serving; nothing new can be created, found by name or counted.
    """
    duration_s = float(target.params["duration_s"])
    if not 0 < duration_s <= _LONGEST_S:
        raise SpecError(
            f"{_KIND}: duration_s is {duration_s}, expected more than 0 and at most {_LONGEST_S:g}"
        )
    pid = target.session.gcs()
    reading = None if pid is None else look(pid)
    if pid is None or reading is None:
        raise SpecError(
            f"{_KIND}: {target.session.name} has no gcs_server of this user on this machine, "
            "expected one; the fault is for a cluster that the run started itself"
        )
    process = ProcessTarget(pid, reading.started_ticks, target.params, target.seed, target.clock)
    target.memory["process"] = process
    return stop(_KIND, process, duration_s)


@outage.heal
def heal(target: RayTarget) -> None:
    """Let the control plane go on before its time."""
    if "process" in target.memory:
        let_go(target.memory["process"])


@outage.heal_verify
def is_healed(target: RayTarget) -> bool:
    """The very process runs: neither stopped nor gone."""
    return "process" in target.memory and state_of(target.memory["process"]) not in ("T", "gone")
