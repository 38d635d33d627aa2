"""Connections break off in the middle of an answer."""

from tocsin.chaos.contract import RoadTarget, fault
from tocsin.chaos.road_striker import is_clear, seen
from tocsin.chaos.toxin import number_of
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_KIND = "net.reset"


@fault(
    _KIND,
    expect=("service.connection",),
    priority=Priority.P2,
    source="Shopify/toxiproxy#274, toxic reset_peer; ai-dynamo/dynamo#7634: a stream that is taken "
    "up again must not repeat what it has said",
    scope=Scope.NETWORK,
    params={"share": 0.5},
)
def reset(target: RoadTarget) -> Evidence:
    """Send RST to both ends of a `share` of the connections in use, of one at least.

    Done once, on the connections of the run's own load alone; the seed says on which.
    """
    share = number_of(_KIND, "share", target.params["share"], least=0.0, most=1.0)
    before = target.road.reading().resets

    def cut() -> str:
        target.road.cut(max(share, 1e-9), target.seed)
        return f"{target.road.reading().resets} connections were reset"

    return Evidence(
        place=f"the road to {target.road.service}",
        before=f"{before} connections were reset",
        after=seen(target, cut, f"{before} connections were reset"),
    )


@reset.heal_verify
def is_healed(target: RoadTarget) -> bool:
    """Nothing is in force on the road: a connection that is made anew stays."""
    return is_clear(target)
