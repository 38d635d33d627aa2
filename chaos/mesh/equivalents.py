"""Which kind of fault is which resource of Chaos Mesh, and why the others are none.

Field names and limits: api/v1alpha1 of chaos-mesh/chaos-mesh (chaos-mesh.org/v1alpha1).
"""

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.core.faulting import Scope

HEAD = "head"
WORKER = "worker"

Params = Mapping[str, Any]

_FIELDS = {
    "IOChaos": "ioChaos",
    "NetworkChaos": "networkChaos",
    "PodChaos": "podChaos",
    "StressChaos": "stressChaos",
    "TimeChaos": "timeChaos",
}


@dataclass(frozen=True, slots=True)
class Equivalent:
    """What stands for a fault in a cluster.

    Attributes:
        kind: of the resource: `PodChaos`.
        spec: its specification without selector, mode and duration.
        differs: in what it is another thing than ours; empty: in nothing that matters.
        component: whose pods it is aimed at.
    """

    kind: str
    spec: Mapping[str, Any]
    differs: str = ""
    component: str = WORKER

    @property
    def field(self) -> str:
        """The key of a workflow's template that holds the specification: `podChaos`."""
        return _FIELDS[self.kind]


def equivalent(fault: str, params: Params, scope: Scope) -> Equivalent | str:
    """The resource for a fault, or why there is none, in one line.

    Args:
        fault: id of its declaration.
        params: of the occurrence, defaults filled in.
    """
    made = _MADE.get(fault)
    if made is not None:
        return made(params)
    return _NONE.get(fault) or _NONE_OF_SCOPE.get(scope, _NO_KIND)


def number(params: Params, *names: str, default: float) -> float:
    """The first of these parameters that is set to a number."""
    for name in names:
        value = params.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return default


def milliseconds(value_ms: float) -> str:
    """A duration as Chaos Mesh reads it; whole milliseconds, at least one."""
    return f"{max(1, round(value_ms))}ms"


def _pod_kill(params: Params) -> Equivalent:
    grace_s = int(number(params, "grace_s", default=0))
    return Equivalent("PodChaos", {"action": "pod-kill", "gracePeriod": grace_s})


def _process_kill(params: Params) -> Equivalent:
    return Equivalent(
        "PodChaos",
        {"action": "pod-kill", "gracePeriod": 0},
        "the whole pod goes, not one process in it",
    )


def _node_kill(params: Params) -> Equivalent:
    return Equivalent(
        "PodChaos",
        {"action": "pod-kill", "gracePeriod": 0},
        "a Ray node is a pod there, so its pod goes",
    )


def _control_plane_outage(params: Params) -> Equivalent:
    return Equivalent(
        "PodChaos",
        {"action": "pod-failure"},
        "the whole head is away, its dashboard and drivers too",
        HEAD,
    )


def _memory(params: Params) -> Equivalent:
    return Equivalent(
        "StressChaos",
        {"stressors": {"memory": {"workers": 1, "size": "80%"}}},
        "memory is really taken; ours only pretends",
    )


def _out_of_memory(params: Params) -> Equivalent:
    return Equivalent(
        "StressChaos",
        {"stressors": {"memory": {"workers": 1, "size": "100%", "oomScoreAdj": -1000}}},
        "the kernel chooses its victim among all processes of the container",
    )


def _processor(params: Params) -> Equivalent:
    workers = int(number(params, "workers", "threads", default=2))
    return Equivalent(
        "StressChaos", {"stressors": {"cpu": {"workers": max(1, workers), "load": 100}}}
    )


def _network_delay(params: Params) -> Equivalent:
    latency_ms = number(params, "latency_ms", "delay_ms", default=100.0)
    jitter_ms = number(params, "jitter_ms", default=0.0)
    delay = {"latency": milliseconds(latency_ms), "correlation": "0"}
    if jitter_ms > 0:
        delay["jitter"] = milliseconds(jitter_ms)
    return Equivalent(
        "NetworkChaos",
        {"action": "delay", "direction": "to", "delay": delay},
        "all traffic that leaves the pod is late, Ray's too",
    )


def _network_partition(params: Params) -> Equivalent:
    return Equivalent(
        "NetworkChaos",
        {"action": "partition", "direction": "both"},
        "the pod is cut off from everybody, from Ray's head too",
    )


def _network_bandwidth(params: Params) -> Equivalent:
    rate_bytes = number(params, "rate_bytes_s", "bytes_per_s", default=64 * 1024)
    kbps = max(1, round(rate_bytes / 1024))
    return Equivalent(
        "NetworkChaos",
        {
            "action": "bandwidth",
            "direction": "to",
            "bandwidth": {"rate": f"{kbps}kbps", "limit": 20 * 1024 * 1024, "buffer": 10_000},
        },
        "all traffic that leaves the pod shares the rate",
    )


_STATE_VOLUME = "/var/lib/tocsin"
"""Where the chart mounts what replicas write: journal, captures, metric files."""


def _disk_full(params: Params) -> Equivalent:
    return Equivalent(
        "IOChaos",
        {
            "action": "fault",
            "errno": errno.ENOSPC,
            "volumePath": _STATE_VOLUME,
            "methods": ["write", "fsync"],
            "percent": 100,
        },
    )


def _disk_slow(params: Params) -> Equivalent:
    delay_ms = number(params, "delay_ms", "latency_ms", default=200.0)
    return Equivalent(
        "IOChaos",
        {
            "action": "latency",
            "delay": milliseconds(delay_ms),
            "volumePath": _STATE_VOLUME,
            "methods": ["write", "fsync"],
            "percent": 100,
        },
    )


def _clock(params: Params) -> Equivalent:
    offset_s = number(params, "offset_s", "skew_s", "jump_s", default=60.0)
    return Equivalent(
        "TimeChaos",
        {"timeOffset": f"{offset_s:g}s", "clockIds": ["CLOCK_REALTIME"]},
        "every process of the container reads the wrong time",
    )


_MADE: Mapping[str, Callable[[Params], Equivalent]] = {
    "actor.kill": _process_kill,
    "actor.oom": _out_of_memory,
    "clock.jump": _clock,
    "clock.skew": _clock,
    "disk.full": _disk_full,
    "disk.slow": _disk_slow,
    "gcs.outage": _control_plane_outage,
    "host.cpu_hog": _processor,
    "host.mem_pressure": _memory,
    "net.bandwidth": _network_bandwidth,
    "net.delay": _network_delay,
    "net.partition": _network_partition,
    "node.kill": _node_kill,
    "pod.delete": _pod_kill,
    "rpc.delay": _network_delay,
}

_NONE: Mapping[str, str] = {
    "actor.freeze": "Chaos Mesh stops no process; pod-failure would restart the container instead",
    "net.reset": "Chaos Mesh drops or delays packets, it resets no connection",
    "rpc.loss": "lost packets are sent again by TCP; a lost call of Ray is another thing",
}

_NONE_OF_SCOPE: Mapping[Scope, str] = {
    Scope.WORKER: "it changes one place inside the serving process, which no cluster reaches",
    Scope.CLIENT: "it is what clients send and do; send it with tocsin chaos run --on",
    Scope.SIDE: "it acts beside the replicas of one machine, on processes that have no pod",
}
_NO_KIND = "no kind of Chaos Mesh does it"
