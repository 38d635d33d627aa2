"""What a fault is to the rest of the system: an order to a target, and the evidence it left."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Scope(StrEnum):
    """Where a fault acts."""

    WORKER = "worker"  # in the serving process, at a seam, under a lease
    PROCESS = "process"  # on the process, by a chaos actor of its node
    POD = "pod"  # on the pod of a replica, by the run itself through the Kubernetes API
    NODE = "node"  # on the Ray node of a replica, by a chaos actor of the head
    CLUSTER = "cluster"  # on Ray itself, in a cluster of the run's own
    NETWORK = "network"  # on the road between the run's own load and the service
    SIDE = "side"  # beside the replicas of this machine: metrics, what is written; serving goes on
    CLIENT = "client"  # a request that no honest client would send, or how clients ask and leave

    @property
    def takes_replica(self) -> bool:
        """A replica is away while it lasts: all others must be well, and no other fault begins."""
        return self in (Scope.PROCESS, Scope.POD, Scope.NODE)

    @property
    def takes_all(self) -> bool:
        """It is aimed at no replica, and all of them may feel it: no other fault begins."""
        return self in (Scope.CLUSTER, Scope.NETWORK)

    @property
    def outside(self) -> bool:
        """It is struck from outside the replicas, by order."""
        return self.alone or self is Scope.SIDE

    @property
    def aimless(self) -> bool:
        """It is aimed at no replica."""
        return self in (Scope.CLIENT, Scope.SIDE) or self.takes_all

    @property
    def alone(self) -> bool:
        """No other fault begins while it lasts, and it is struck from outside the replicas."""
        return self.takes_replica or self.takes_all


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a fault changed: read before, changed, read again.

    Attributes:
        place: where, in words that a person can follow: `page 7 depth 3 V[2, 5] bit 14`.
        before, after: the readings, JSON-safe; NaN and infinities as text.
        requests: requests that the fault touched, where known.
    """

    place: str
    before: str
    after: str
    requests: tuple[str, ...] = ()

    @property
    def fired(self) -> bool:
        """The place reads otherwise than before."""
        return self.before != self.after


@dataclass(frozen=True, slots=True)
class Order:
    """Tells a target to suffer one occurrence of a fault.

    Attributes:
        occurrence: `<fault id in the spec>@<n>`.
        kind: id of the fault's declaration, `kv.bitflip`.
        seed: the occurrence's private random number.
        params: from the spec, over the declaration's defaults.
        after_step: earliest step of the target at which to fire (its own logical clock).
        ttl_s: lease; not renewed in time, the target disarms and heals by itself.
    """

    occurrence: str
    kind: str
    seed: int
    after_step: int
    ttl_s: float
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrderStatus:
    """Where an order stands, as its target tells it.

    Attributes:
        state: `armed`, `fired`, `healed` (gone and shown to be gone), `unhealed` (heal_verify
            said no), `expired` (lease ran out before it fired), `disarmed` (taken back).
        fired_ns, fired_step, healed_ns: when; 0 and -1 while it has not happened.
        error: why it could not fire or heal, empty when nothing went wrong.
    """

    occurrence: str
    state: str
    evidence: Evidence | None = None
    fired_ns: int = 0
    fired_step: int = -1
    healed_ns: int = 0
    error: str = ""
