"""Bytes are late on their way: a far region, a full queue, a busy middlebox."""

from tocsin.chaos.contract import RoadTarget, fault
from tocsin.chaos.road_striker import clear, is_clear, put
from tocsin.chaos.toxin import Toxin, directions_of, duration_of, number_of
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_KIND = "net.delay"
_LATEST_MS = 10_000.0


@fault(
    _KIND,
    expect=("service.latency", "service.reachable"),
    priority=Priority.P2,
    source="Shopify/toxiproxy#274, toxics latency and jitter: the seed that this one has",
    scope=Scope.NETWORK,
    params={"latency_ms": 400.0, "jitter_ms": 100.0, "direction": "from", "duration_s": 3.0},
)
def delay(target: RoadTarget) -> Evidence:
    """Let every chunk be late by `latency_ms` ± `jitter_ms`; none overtakes another.

    Lasts `duration_s`, on the connections of the run's own load alone. Params: `direction` is
    `to` the service, `from` it, or `both`.
    """
    params = target.params
    toxin = Toxin(
        seed=target.seed,
        directions=directions_of(_KIND, params["direction"]),
        latency_ms=number_of(_KIND, "latency_ms", params["latency_ms"], least=1, most=_LATEST_MS),
        jitter_ms=number_of(_KIND, "jitter_ms", params["jitter_ms"], least=0, most=_LATEST_MS),
    )
    return put(target, toxin, duration_of(_KIND, params["duration_s"]), "late")


@delay.heal
def heal(target: RoadTarget) -> None:
    """Let bytes pass as they come; those that wait go on at once."""
    clear(target)


@delay.heal_verify
def is_healed(target: RoadTarget) -> bool:
    """Nothing is in force on the road."""
    return is_clear(target)
