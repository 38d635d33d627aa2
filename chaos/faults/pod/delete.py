"""The pod of a replica is deleted, as a node drain, an eviction or a person does it."""

from tocsin.chaos.contract import PodTarget, fault
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.pods import Pod
from tocsin.core.terms import Priority

_SEEN_WITHIN_S = 10.0
_POLL_S = 0.25
_GRACE_MAX_S = 600


@fault(
    "pod.delete",
    expect=("service.actor_down", "service.heartbeat"),
    priority=Priority.P1,
    source="ray-project/kuberay#1153: 502 for seconds while a pod of the service is replaced",
    scope=Scope.POD,
    params={"grace_s": None},
)
def delete(target: PodTarget) -> Evidence:
    """Delete the pod through the API; the evidence is that its uid is gone or terminating.

    `grace_s` is the time in which the pod may end by itself: 0 kills it at once, none leaves it
    what its own specification says.
    """
    grace_s = _grace_s(target)
    before = target.pod
    there = target.pods.all()
    target.memory["before"] = {pod.uid for pod in there}
    target.memory["wanted"] = sum(pod.ready for pod in there)
    target.pods.delete(before, grace_s)
    return Evidence(f"pod {before.name} on node {before.node}", before.words, _seen(target))


def _grace_s(target: PodTarget) -> int | None:
    grace_s = target.params["grace_s"]
    if grace_s is None:
        return None
    if isinstance(grace_s, int) and not isinstance(grace_s, bool) and 0 <= grace_s <= _GRACE_MAX_S:
        return grace_s
    raise SpecError(
        f"pod.delete: grace_s is {grace_s!r}, expected none or whole seconds from 0 to "
        f"{_GRACE_MAX_S}"
    )


def _seen(target: PodTarget) -> str:
    """What the API shows of the pod's uid, as soon as it is another thing than before."""
    deadline_ns = target.clock.now_ns() + int(_SEEN_WITHIN_S * 1e9)
    while True:
        words = _words(target, target.pods.get(target.pod.name))
        if words != target.pod.words or target.clock.now_ns() >= deadline_ns:
            return words
        target.clock.sleep(_POLL_S)


def _words(target: PodTarget, now: Pod | None) -> str:
    if now is None or now.uid != target.pod.uid:
        return f"uid {target.pod.uid} gone"
    return now.words


@delete.heal_verify
def is_healed(target: PodTarget) -> bool:
    """As many worker pods are ready as before, a new one among them, and its replica generates."""
    ready = [pod for pod in target.pods.all() if pod.ready and not pod.terminating]
    newcomers = [pod for pod in ready if pod.uid not in target.memory["before"]]
    return bool(newcomers) and len(ready) >= target.memory["wanted"] and target.replaced()
