"""What a chaos run would do and to whom, without doing any of it."""

from collections.abc import Callable, Mapping
from typing import Any

from tocsin.chaos.plan import Plan, make_plan, plan_table
from tocsin.chaos.pod_striker import pod_of
from tocsin.chaos.policy import objections, tightened
from tocsin.chaos.spec import Experiment
from tocsin.core.errors import TocsinError
from tocsin.core.pods import Pod
from tocsin.ray_jobs.attack import Attack
from tocsin.ray_jobs.kube.guards import LabelsStand, kube_pods
from tocsin.ray_jobs.service import Service, ask, fitted


def dry_run(spec: Experiment, attack: Attack, say: Callable[[str], None]) -> None:
    """Tell the plan, its targets and what would keep a run from injecting; nothing is injected.

    Raises:
        EnvironmentFault: the application does not say what its replicas are.
        SpecError: the experiment cannot be run on it.
    """
    say("dry run: nothing is injected")
    service = ask(attack.url)
    spec, changed = fitted(spec, service)
    if attack.policy is not None:
        spec = tightened(attack.policy, spec)
    plan = make_plan(spec)
    say(plan_table(plan))
    for line in changed:
        say(f"{spec.name}: {line}")
    pods = _pods(attack, say)
    struck = _struck(plan, service)
    for replica, kinds in struck.items():
        say(_target(replica, service.replicas[replica], kinds, pods))
    say(_radius(spec, service, struck, pods))
    for line in _reasons(spec, attack):
        say(f"a run that injects would be refused: {line}")


def _struck(plan: Plan, service: Service) -> dict[str, list[str]]:
    """Kinds of fault by the replica that they are planned for; some are aimed at none."""
    replicas = list(service.replicas)
    struck: dict[str, list[str]] = {}
    for one in plan.occurrences:
        if not one.scope.aimless:
            kinds = struck.setdefault(replicas[one.replica % len(replicas)], [])
            kinds += [] if one.kind in kinds else [one.kind]
    return struck


def _target(replica: str, facts: Mapping[str, Any], kinds: list[str], pods: tuple[Pod, ...]) -> str:
    pod = pod_of(str(facts.get("host", "")), pods)
    where = f"pod {pod.name}, node {pod.node}" if pod else f"host {facts.get('host') or 'unknown'}"
    return f"target: replica {replica}, {where}: {', '.join(kinds)}"


def _radius(
    spec: Experiment, service: Service, struck: Mapping[str, Any], pods: tuple[Pod, ...]
) -> str:
    """How much is hit, in numbers."""
    hosts = {str(service.replicas[one].get("host", "")) for one in struck}
    hit = [pod for pod in pods if any(pod_of(host, (pod,)) for host in hosts)]
    in_pods = f", {len(hit)} pods, {len({pod.node for pod in hit})} nodes" if hit else ""
    at_once = min(len(struck), int(spec.safety.max_targets * spec.system.replicas))
    return (
        f"blast radius: {len(struck)} of {spec.system.replicas} replicas{in_pods}; at one time at "
        f"most {spec.safety.max_concurrent_faults} faults on {at_once} replicas, for at most "
        f"{spec.safety.max_duration_s:g} s"
    )


def _pods(attack: Attack, say: Callable[[str], None]) -> tuple[Pod, ...]:
    """The release's worker pods; why they cannot be read is said."""
    if attack.policy is None:
        return ()
    try:
        with kube_pods(attack.policy) as pods:
            return tuple(pods.all())
    except TocsinError as error:
        say(f"pods are not shown: {error}")
        return ()


def _reasons(spec: Experiment, attack: Attack) -> list[str]:
    """Everything that would keep the run from injecting."""
    policy = attack.policy
    if policy is None:
        return []
    found = [] if not policy.dry_run else ["policy: dry_run is true, expected false"]
    found += objections(policy, spec, attack.url)
    try:
        with kube_pods(policy) as pods:
            reason = LabelsStand(pods, policy).why_not()
    except TocsinError as error:
        reason = str(error)
    return [*found, reason] if reason else found
