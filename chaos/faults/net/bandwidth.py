"""The road is narrow, and cuts what it carries into small pieces."""

from tocsin.chaos.contract import RoadTarget, fault
from tocsin.chaos.road_striker import clear, is_clear, put
from tocsin.chaos.toxin import FROM, Toxin, duration_of, number_of
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_KIND = "net.bandwidth"


@fault(
    _KIND,
    expect=("service.latency", "service.reachable"),
    priority=Priority.P2,
    source="Shopify/toxiproxy#274, toxics bandwidth and slicer: a client must not rely on how a "
    "stream of events is cut into packets",
    scope=Scope.NETWORK,
    params={"rate_bytes_s": 600, "slice_bytes": 7, "duration_s": 4.0},
)
def bandwidth(target: RoadTarget) -> Evidence:
    """Let all answers together have `rate_bytes_s`, in pieces of 1 to `slice_bytes`.

    Lasts `duration_s`, on the connections of the run's own load alone. Params: `slice_bytes` 0
    leaves chunks whole.
    """
    params = target.params
    toxin = Toxin(
        seed=target.seed,
        directions=(FROM,),
        rate_bytes_s=number_of(_KIND, "rate_bytes_s", params["rate_bytes_s"], least=1, most=1e9),
        slice_bytes=int(number_of(_KIND, "slice_bytes", params["slice_bytes"], least=0, most=1e6)),
    )
    return put(target, toxin, duration_of(_KIND, params["duration_s"]), "late")


@bandwidth.heal
def heal(target: RoadTarget) -> None:
    """Let bytes pass as they come; those that wait go on at once."""
    clear(target)


@bandwidth.heal_verify
def is_healed(target: RoadTarget) -> bool:
    """Nothing is in force on the road."""
    return is_clear(target)
