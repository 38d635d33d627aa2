"""Faults on pods: which pod a replica lives in, and the order book of the run that strikes it."""

from collections.abc import Callable, Iterable

from tocsin.chaos.contract import Fault, PodTarget
from tocsin.chaos.strikes import Report, Strikes
from tocsin.core.clock import Clock
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Order, OrderStatus, Scope
from tocsin.core.pods import Pod, Pods


class PodStriker(Strikes):
    """Carries out POD orders at once, through the API; ticked, it sees them heal."""

    def __init__(self, clock: Clock, report: Report, pods: Pods) -> None:
        """Nothing is struck yet."""
        super().__init__(clock, report)
        self._pods = pods

    def strike(self, order: Order, host: str, replaced: Callable[[], bool]) -> OrderStatus:
        """Carry out an order on the pod of a replica now; an occurrence is struck once.

        Args:
            order: its `kind` names a fault of scope POD.
            host: host name of the replica's process, which in Kubernetes is its pod's name.
            replaced: whether a replica that came up since has generated.
        """
        return self._strike(order, lambda: self._aim(order, host, replaced))

    def _aim(
        self, order: Order, host: str, replaced: Callable[[], bool]
    ) -> tuple[Fault, PodTarget]:
        """The fault and the pod, or why not."""
        fault = self._fault(order, Scope.POD)
        pod = pod_of(host, self._pods.all())
        if pod is None:
            raise SpecError(
                f"{order.occurrence}: no worker pod of the release is host {host!r}, expected the "
                "replica's own; see the labels of the release's pods"
            )
        params = fault.resolve(order.params)
        return fault, PodTarget(self._pods, pod, params, order.seed, self._clock, replaced)


def pod_of(host: str, pods: Iterable[Pod]) -> Pod | None:
    """The pod of a host name; None: none of these.

    A host name ends at 63 characters, a pod's name may be longer.
    """
    return next((pod for pod in pods if host and host == pod.name[:63].rstrip(".-")), None)
