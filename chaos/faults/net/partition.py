"""Nothing gets through: the two sides are there and cannot hear each other."""

from tocsin.chaos.contract import RoadTarget, fault
from tocsin.chaos.road_striker import clear, is_clear, put
from tocsin.chaos.toxin import Toxin, directions_of, duration_of
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_KIND = "net.partition"


@fault(
    _KIND,
    expect=("service.reachable",),
    priority=Priority.P1,
    source="ray-project/ray#17079: a library that injects partitions into Ray applications is "
    "asked for",
    scope=Scope.NETWORK,
    params={"direction": "both", "half_open": False, "duration_s": 3.0},
)
def partition(target: RoadTarget) -> Evidence:
    """Hold all bytes and all new connections for `duration_s`; then they go on, as TCP has it.

    On the connections of the run's own load alone. Params: `direction` is `to` the service,
    `from` it, or `both`; `half_open` takes the service's end of every connection in use away: the
    client hears nothing until the end, and then that the connection is reset.
    """
    half_open = target.params["half_open"]
    if not isinstance(half_open, bool):
        raise SpecError(f"{_KIND}: half_open is {half_open!r}, expected true or false; correct it")
    directions = directions_of(_KIND, target.params["direction"])
    toxin = Toxin(seed=target.seed, directions=directions, blocked=True)
    duration_s = duration_of(_KIND, target.params["duration_s"])
    return put(target, toxin, duration_s, "held", half_open=half_open)


@partition.heal
def heal(target: RoadTarget) -> None:
    """Let through what waits; connections without a far end are reset."""
    clear(target)


@partition.heal_verify
def is_healed(target: RoadTarget) -> bool:
    """Nothing is in force on the road."""
    return is_clear(target)
