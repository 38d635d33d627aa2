"""What an experiment asks of the place where it is run: a road, a cluster of its own."""

from tocsin.chaos.contract import faults
from tocsin.chaos.spec import Experiment
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope

_RAY_ITSELF = (Scope.NODE, Scope.CLUSTER)
_OF_RECEIVERS = ("alert.sink_down", "obs.otel_backpressure")


def needs_road(spec: Experiment) -> bool:
    """Whether its load must travel by a proxy: some fault is on the network."""
    return any(faults()[one.kind].scope is Scope.NETWORK for one in spec.faults)


def needs_sink(spec: Experiment) -> bool:
    """Whether its alerts and spans must go to the run: some fault has them refused."""
    return any(one.kind in _OF_RECEIVERS for one in spec.faults)


def check_own_cluster(spec: Experiment, *, own: bool) -> None:
    """Make sure that nobody else's cluster is broken.

    Args:
        own: the cluster was started by this run, for this run.

    Raises:
        SpecError: a fault acts on Ray itself, and others may rely on this cluster.
    """
    if own:
        return
    for i, one in enumerate(spec.faults):
        if faults()[one.kind].scope in _RAY_ITSELF:
            raise SpecError(
                f"{spec.name}: faults[{i}].kind: {one.kind} acts on Ray itself, and this cluster "
                "was not started by the run; run it without RAY_ADDRESS and --on, or remove it"
            )
