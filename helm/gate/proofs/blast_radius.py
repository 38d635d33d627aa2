"""How far the chart reaches, and how far chaos does: the same bounds in every render."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import PodView
from tocsin.helm.gate.proofs.configs import mapping_of
from tocsin.helm.gate.proofs.many import outcomes
from tocsin.helm.gate.proofs.pods import pods
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.render import Case, Render, merged
from tocsin.helm.gate.rule import Finding, items, sub

RULE = "blast"
PROTECTED = ("kube-system", "kube-public", "kube-node-lease")
TARGET = "tocsin.dev/chaos-target"
HOOK = "helm.sh/hook"
CHAOS = "chaos"
# The one cluster-scoped thing that a person can ask for, and it only refuses.
GUARDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
NAMESPACED = frozenset(
    {
        "AlertmanagerConfig", "ConfigMap", "CronJob", "Deployment", "Job", "Lease",
        "NetworkPolicy", "PersistentVolumeClaim", "Pod", "PodDisruptionBudget", "PodMonitor",
        "PrometheusRule", "RayCluster", "RayCronJob", "RayJob", "RayService", "Role",
        "RoleBinding", "Secret", "Service", "ServiceAccount", "ServiceMonitor",
    }
)  # fmt: skip
HOST = ("hostNetwork", "hostPID", "hostIPC", "hostUsers")
RUNNERS = ("Job", "CronJob", "RayJob", "RayCronJob")
# What a driver may do, and nothing beyond: (group, resource) → verbs.
DRIVER: Mapping[tuple[str, str], frozenset[str]] = {
    ("", "namespaces"): frozenset({"get"}),
    ("", "pods"): frozenset({"get", "list", "delete"}),
    ("coordination.k8s.io", "leases"): frozenset({"get", "update"}),
}
NAMED = frozenset({"namespaces", "leases"})
"""Resources of which the driver may see one object only."""


def blast_radius(renders: Mapping[str, tuple[Case, Sequence[Manifest]]], chart: Path) -> Proof:
    """Hold every render to the bounds, and the protected namespaces to their refusal."""
    own = defaults(chart)
    findings: dict[Finding, None] = {}
    pairs = 0
    scoped = 0
    for case, objects in renders.values():
        findings.update(dict.fromkeys(blast_findings(objects, case, own)))
        pairs = max(pairs, cluster_pairs(objects))
        if not case.values:
            scoped += sum(one.kind not in NAMESPACED for one in objects)
    findings.update(dict.fromkeys(_protected(chart)))
    return Proof(
        "blast_radius",
        f"{pairs} cluster-wide pairs in {len(renders)} renders",
        {"renders": len(renders), "cluster_pairs": pairs, "cluster_scoped_at_defaults": scoped},
        tuple(findings),
    )


def defaults(chart: Path) -> dict[str, Any]:
    """What values.yaml says."""
    return dict(mapping_of((chart / "values.yaml").read_text(encoding="utf-8")))


def blast_findings(
    objects: Sequence[Manifest], case: Case, own: Mapping[str, Any]
) -> Iterator[Finding]:
    """What reaches further than it may in one render.

    Args:
        own: the chart's own values.
    """
    values = merged(own, case.values)
    for one in objects:
        yield from _scope(one, case, values)
        yield from _hook(one)
        if one.kind in ("Role", "ClusterRole"):
            yield from _rules(one)
    for pod in pods(objects):
        yield from _host(pod)
    yield from _armed(objects, values)
    yield from _targets(objects, values)


def cluster_pairs(objects: Sequence[Manifest]) -> int:
    """Resource × verb pairs that hold in every namespace."""
    found = 0
    for one in objects:
        if one.kind == "ClusterRole":
            for rule in items(one.body, "rules"):
                resources = rule.get("resources") or rule.get("nonResourceURLs") or ()
                found += len(resources) * len(rule.get("verbs") or ())
    return found


def _scope(one: Manifest, case: Case, values: Mapping[str, Any]) -> Iterator[Finding]:
    if one.kind in GUARDS:
        if not sub(values, "chaos", "admissionPolicy").get("enabled"):
            yield Finding(f"{RULE}.scope", one.where, "cluster-scoped, not asked for", "its switch")
        return
    if one.kind not in NAMESPACED:
        yield Finding(f"{RULE}.scope", one.where, "a kind that is not namespaced", "one that is")
        return
    found = one.metadata.get("namespace", case.namespace)
    if found != case.namespace:
        yield Finding(f"{RULE}.scope", one.where, f"namespace {found}", case.namespace)
    for subject in items(one.body, "subjects"):
        if subject.get("namespace") != case.namespace:
            found = subject.get("namespace")
            where = f"{one.where} subjects"
            yield Finding(f"{RULE}.scope", where, f"namespace {found}", case.namespace)


def _hook(one: Manifest) -> Iterator[Finding]:
    hook = sub(one.metadata, "annotations").get(HOOK)
    if hook is not None and (hook != "test" or one.kind in RUNNERS):
        expected = "no hook: what a hook makes is left behind by an uninstall"
        yield Finding(f"{RULE}.hook", one.where, f"{HOOK}: {hook}", expected)


def _rules(one: Manifest) -> Iterator[Finding]:
    rule_id = f"{RULE}.rights"
    for rule in items(one.body, "rules"):
        groups = [str(name) for name in rule.get("apiGroups") or ()]
        resources = [str(name) for name in rule.get("resources") or ()]
        verbs = [str(name) for name in rule.get("verbs") or ()]
        if "*" in (*groups, *resources, *verbs):
            yield Finding(rule_id, one.where, f"a wildcard in {dict(rule)}", "names")
        if any(name.split("/")[0] == "secrets" for name in resources):
            yield Finding(rule_id, one.where, "a right to secrets", "none")
        for verb in {"escalate", "bind", "impersonate"} & set(verbs):
            yield Finding(rule_id, one.where, f"the verb {verb}", "none that raises rights")
        for name in ("pods/exec", "pods/attach", "serviceaccounts/token"):
            if name in resources:
                yield Finding(rule_id, one.where, f"a right to {name}", "none")
        if one.metadata.get("labels", {}).get("app.kubernetes.io/component") == CHAOS:
            yield from _driver(one, groups, resources, verbs, rule.get("resourceNames"))


def _driver(
    one: Manifest, groups: list[str], resources: list[str], verbs: list[str], names: Any
) -> Iterator[Finding]:
    for group in groups:
        for resource in resources:
            allowed = DRIVER.get((group, resource), frozenset())
            if more := sorted(set(verbs) - allowed):
                found = f"{more} of {resource}"
                yield Finding(f"{RULE}.driver", one.where, found, f"at most {sorted(allowed)}")
            if resource in NAMED and not names:
                found = f"{resource} without resourceNames"
                yield Finding(f"{RULE}.driver", one.where, found, "the one that is its own")


def _host(pod: PodView) -> Iterator[Finding]:
    for key in HOST:
        if pod.spec.get(key):
            yield Finding(f"{RULE}.host", f"{pod.where} {key}", "true", "not said")
    for volume in items(pod.spec, "volumes"):
        if "hostPath" in volume:
            where = f"{pod.where} volume {volume.get('name')}"
            yield Finding(f"{RULE}.host", where, "hostPath", "a volume of the pod's own")
    for container in pod.containers():
        if sub(container.body, "securityContext").get("privileged"):
            yield Finding(f"{RULE}.host", f"{pod.where} {container.name}", "privileged", "not")
        for port in items(container.body, "ports"):
            if port.get("hostPort"):
                yield Finding(f"{RULE}.host", f"{pod.where} {container.name}", "hostPort", "none")


def _armed(objects: Sequence[Manifest], values: Mapping[str, Any]) -> Iterator[Finding]:
    """Nothing can attack unless a person said both words, and the policy says what they said."""
    chaos = sub(values, "chaos")
    enabled, dry = chaos.get("enabled") is True, chaos.get("dryRun") is not False
    policies = [
        mapping_of(str(sub(one.body, "data").get("policy.yaml", "")))
        for one in objects
        if one.kind == "ConfigMap" and "policy.yaml" in sub(one.body, "data")
    ]
    rule = f"{RULE}.armed"
    if len(policies) != 1:
        yield Finding(rule, "ConfigMap policy.yaml", f"{len(policies)} of them", "one, always")
    for policy in policies:
        if policy.get("enabled", False) is not enabled:
            found = f"enabled {policy.get('enabled')}"
            yield Finding(rule, "ConfigMap policy.yaml", found, f"chaos.enabled, {enabled}")
        if policy.get("dry_run", True) is not dry:
            found = f"dry_run {policy.get('dry_run')}"
            yield Finding(rule, "ConfigMap policy.yaml", found, f"chaos.dryRun, {dry}")
        yield from _limits(policy, chaos)
    for one in objects:
        is_chaos = sub(one.metadata, "labels").get("app.kubernetes.io/component") == CHAOS
        if is_chaos and not enabled and one.kind != "ConfigMap":
            yield Finding(rule, one.where, "rendered", "nothing of chaos while it is off")
        if one.kind == "CronJob" and is_chaos:
            asked = chaos.get("kind") == "cronjob" and bool(chaos.get("schedule"))
            suspended = sub(one.body, "spec").get("suspend")
            if suspended is not (not asked):
                expected = f"{not asked}: it runs by itself only with a schedule"
                yield Finding(rule, f"{one.where} spec.suspend", f"{suspended}", expected)
        if one.kind == "Role" and is_chaos:
            yield from _deletes(one, chaos, enabled and not dry)


def _limits(policy: Mapping[str, Any], chaos: Mapping[str, Any]) -> Iterator[Finding]:
    pairs = (
        ("allowed_faults", "allowedFaults"),
        ("max_concurrent_faults", "maxConcurrentFaults"),
        ("max_targets", "maxTargets"),
        ("max_duration_s", "maxDurationSeconds"),
        ("protected_namespaces", "protectedNamespaces"),
        ("namespace_label", "namespaceLabel"),
    )
    for written, said in pairs:
        if written in policy and policy[written] != chaos.get(said):
            where = f"ConfigMap policy.yaml {written}"
            yield Finding(f"{RULE}.armed", where, f"{policy[written]}", f"{chaos.get(said)}")
        if written not in policy and chaos.get("enabled"):
            where = f"ConfigMap policy.yaml {written}"
            yield Finding(f"{RULE}.armed", where, "not said", f"chaos.{said}")


def _deletes(one: Manifest, chaos: Mapping[str, Any], armed: bool) -> Iterator[Finding]:
    allowed = armed and "pod.delete" in (chaos.get("allowedFaults") or ())
    has = any(
        "delete" in (rule.get("verbs") or ()) and "pods" in (rule.get("resources") or ())
        for rule in items(one.body, "rules")
    )
    if has is not allowed:
        found = "may delete pods" if has else "may not delete pods"
        yield Finding(f"{RULE}.armed", one.where, found, f"{allowed}: dryRun and allowedFaults")


def _targets(objects: Sequence[Manifest], values: Mapping[str, Any]) -> Iterator[Finding]:
    """Chaos may delete only pods that carry the mark, and only those whose owner gave it."""
    base = sub(values, "worker").get("chaosTarget", False)
    groups = {
        name: group.get("chaosTarget", base) if isinstance(group, Mapping) else base
        for name, group in sub(values, "workerGroups").items()
    }
    for pod in pods(objects):
        marked = str(pod.labels.get(TARGET, "")).lower() == "true"
        if TARGET in pod.labels and not marked:
            found = f"{TARGET}: {pod.labels[TARGET]}"
            yield Finding(f"{RULE}.target", pod.where, found, "true, or no such label")
        if marked and pod.component != "worker":
            yield Finding(f"{RULE}.target", pod.where, "a target of chaos", "workers only")
        if pod.component == "worker" and "workerGroupSpecs" in pod.path:
            name = _group_name(pod)
            if marked is not bool(groups.get(name, base)):
                expected = f"{bool(groups.get(name, base))}: chaosTarget of {name}"
                yield Finding(f"{RULE}.target", pod.where, f"target {marked}", expected)


def _group_name(pod: PodView) -> str:
    from tocsin.helm.gate.proofs.pods import ray_group

    return str((ray_group(pod) or {}).get("groupName", ""))


def _protected(chart: Path) -> Iterator[Finding]:
    """A protected namespace refuses, dry or not."""
    cases = [
        Case(
            {"chaos": {"enabled": True, "dryRun": dry}, "worker": {"chaosTarget": True}}, "x", name
        )
        for name in PROTECTED
        for dry in (True, False)
    ]
    for case, outcome in zip(cases, outcomes(cases, chart=chart), strict=True):
        if isinstance(outcome, Render):
            where = f"namespace {case.namespace}"
            yield Finding(f"{RULE}.protected", where, "chaos rendered there", "helm's refusal")
