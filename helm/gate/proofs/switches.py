"""What a value switches on is there, and what it leaves off is not: in every render."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import COMPONENT, PodView
from tocsin.helm.gate.proofs.blast_radius import defaults
from tocsin.helm.gate.proofs.configs import mapping_of
from tocsin.helm.gate.proofs.pods import clusters, pods, variables
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.render import Case, merged
from tocsin.helm.gate.rule import Finding, Tree, items, sub

RULE = "switch"
IN_HEAD = ("rayjob", "raycronjob")
DEGRADE = "monitoring.alertmanagerConfig.degrade"
CLAIM = "persistentVolumeClaim"
MODELS = "/models"
# What chaos consists of besides its policy, which is always there.
CHAOS = {"CronJob", "Lease", "Role", "RoleBinding", "ServiceAccount"}
GUARDS = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
RELAY = {"Deployment", "Service", "ServiceAccount"}
# Where a worker answers when it serves, and where any pod of Ray does when it runs.
SERVES, RUNS = ("/-/healthz", "serve"), ("/api/healthz", 52365)

Pair = tuple[str, object, object]
"""What it is about, what the values ask for, what the objects do."""


def switches(renders: Mapping[str, tuple[Case, Sequence[Manifest]]], chart: Path) -> Proof:
    """Hold every render to its values, both ways: a thing is there if and only if it is asked for.

    Args:
        renders: name → what was asked and what came of it.
    """
    own = defaults(chart)
    findings: dict[Finding, None] = {}
    pairs = 0
    for case, objects in renders.values():
        held = list(_pairs(objects, case, own))
        pairs += len(held)
        findings.update(dict.fromkeys(_differing(held)))
    return Proof("switches", f"{pairs} held", {"pairs": pairs}, tuple(findings))


def switch_findings(
    objects: Sequence[Manifest], case: Case, own: Mapping[str, Any]
) -> Iterator[Finding]:
    """Where one render does other than its values say.

    Args:
        own: the chart's own values.
    """
    yield from _differing(_pairs(objects, case, own))


def _differing(pairs: Iterable[Pair]) -> Iterator[Finding]:
    for name, asked, found in pairs:
        if asked != found:
            where = f"values {name}"
            yield Finding(f"{RULE}.{name.partition(' ')[0]}", where, f"{found}", f"{asked}")


def _pairs(objects: Sequence[Manifest], case: Case, own: Mapping[str, Any]) -> Iterator[Pair]:
    said, made = Said(merged(own, case.values)), Made(objects, tuple(pods(objects)))
    for part in (_ray, _drains, _pods, _chaos, _policy, _monitoring):
        yield from part(said, made)


@dataclass(frozen=True, slots=True)
class Said:
    """The values of a render, the chart's own included."""

    values: Tree

    def at(self, path: str) -> Any:
        """What stands at a path; None where nothing does."""
        *above, last = path.split(".")
        return sub(self.values, *above).get(last)

    def on(self, path: str) -> bool:
        """Whether something is switched on, or given at all."""
        return bool(self.at(path))

    def runs_as(self, kind: str, needs: str) -> bool:
        """Whether chaos is on, of this kind, and has what that kind runs by."""
        return self.on("chaos.enabled") and self.at("chaos.kind") == kind and self.on(needs)


@dataclass(frozen=True, slots=True)
class Made:
    """The objects of a render and their pods."""

    objects: Sequence[Manifest]
    pods: Sequence[PodView]

    def of(self, kind: str, component: str = "") -> list[Manifest]:
        """Objects of a kind, and of one part where that is asked."""
        return [one for one in self.objects if one.kind == kind and _is_of(one, component)]

    def kinds(self, component: str, among: set[str]) -> set[str]:
        """Which of these kinds a part has."""
        return {one.kind for one in self.objects if _is_of(one, component)} & among

    def text(self, key: str) -> Tree:
        """A file of the program in one of the ConfigMaps."""
        held = (sub(one.body, "data") for one in self.of("ConfigMap"))
        return mapping_of(str(next((data[key] for data in held if key in data), "")))

    def of_ray(self, component: str = "") -> list[PodView]:
        """The pods in which Ray runs, or those of one part."""
        return [pod for pod in self.pods if pod.group and component in ("", pod.component)]

    def variables(self, pods: Sequence[PodView]) -> dict[str, set[object]]:
        """Variable → its values in these pods; the number of containers without it is no value."""
        found: dict[str, set[object]] = {}
        for pod in pods:
            for container in pod.containers():
                for entry in variables(container) if not container.is_injected else ():
                    found.setdefault(str(entry.get("name")), set()).add(entry.get("value"))
        return found


def _is_of(one: Manifest, component: str) -> bool:
    return component in ("", sub(one.metadata, "labels").get(COMPONENT))


def _ray(said: Said, made: Made) -> Iterator[Pair]:
    """The service or the cluster, and what belongs to it."""
    in_cluster, stands = said.at("topology") == "cluster", not said.on("ray.suspend")
    yield "topology service", not in_cluster, bool(made.of("RayService"))
    yield "topology cluster", in_cluster, bool(made.of("RayCluster"))
    serves = [one for one in made.of("RayJob") if _is_of(one, "service")]
    yield "topology deploys", in_cluster and stands, bool(serves)
    for one in (*made.of("RayService"), *made.of("RayCluster")):
        yield "ray.suspend", not stands, sub(one.body, "spec").get("suspend", False)
    scales, keeps = said.on("ray.autoscaling.enabled"), said.on("ray.gcsFaultTolerance.enabled")
    for _, spec in clusters(made.objects):
        yield "ray.autoscaling", scales, spec.get("enableInTreeAutoscaling", False)
        yield "ray.autoscaling options", scales, "autoscalerOptions" in spec
        kept = sub(spec, "gcsFaultToleranceOptions")
        yield "ray.gcsFaultTolerance", keeps, bool(kept)
        for key, secret in (("redisUsername", "username"), ("redisPassword", "password")):
            asked = keeps and said.on(f"ray.gcsFaultTolerance.{secret}Secret.name")
            yield f"ray.gcsFaultTolerance {secret}", asked, bool(kept.get(key))
    for kind in ("Role", "RoleBinding"):
        yield f"ray.autoscaling {kind}", scales, bool(made.of(kind, "head"))
    for one in made.of("RayService"):
        upgrade = sub(one.body, "spec", "upgradeStrategy")
        steps = said.at("ray.upgrade.strategy") == "NewClusterWithIncrementalUpgrade"
        yield "ray.upgrade", said.at("ray.upgrade.strategy"), upgrade.get("type")
        yield "ray.upgrade steps", steps, bool(upgrade.get("clusterUpgradeOptions"))
    for one in made.of("RayCluster"):
        kind = "None" if said.at("ray.upgrade.strategy") == "None" else "Recreate"
        yield "ray.upgrade", kind, sub(one.body, "spec", "upgradeStrategy").get("type")


def _drains(said: Said, made: Made) -> Iterator[Pair]:
    """How many pods stay in a drain: all but those that may be missed, and the only head."""
    guards, scales = said.on("disruptionBudget.enabled"), said.on("ray.autoscaling.enabled")
    asked: dict[str, int] = {}
    for name, own in sub(said.values, "workerGroups").items() if guards else ():
        group = merged(sub(said.values, "worker"), own or {})
        count = int(group["minReplicas"] if scales else group["replicas"])
        stay = count - int(said.at("disruptionBudget.workerMaxUnavailable"))
        asked |= {str(name): stay} if stay > 0 else {}
    found = {
        str(sub(one.body, "spec", "selector", "matchLabels").get("ray.io/group")): sub(
            one.body, "spec"
        ).get("minAvailable")
        for one in made.of("PodDisruptionBudget", "worker")
    }
    yield "disruptionBudget workers", asked, found
    moves = said.on("ray.gcsFaultTolerance.enabled")
    yield (
        "disruptionBudget head",
        [1] if guards and not moves else [],
        [
            sub(one.body, "spec").get("minAvailable")
            for one in made.of("PodDisruptionBudget", "head")
        ],
    )


def _pods(said: Said, made: Made) -> Iterator[Pair]:
    """What the pods of Ray are given: a model, a token, addresses, and when they are ready."""
    in_volume = said.at("model.source") == "pvc"
    name = said.at("model.name")
    served = sub(next(iter(items(made.text("serve.yaml"), "applications")), {}), "args")
    yield "model", MODELS if in_volume else name, served.get("model")
    yield "model name", name if in_volume else None, served.get("name")
    in_head = said.on("ray.autoscaling.enabled") or said.at("topology") == "cluster"
    serving = SERVES if said.at("topology") == "service" else RUNS
    for pod in made.of_ray():
        mounted = any("claimName" in sub(one, CLAIM) for one in items(pod.spec, "volumes"))
        yield f"model of {pod.component}", in_volume, mounted
        probe = sub(next(iter(items(pod.spec, "containers")), {}), "readinessProbe", "httpGet")
        ready = serving if pod.component == "worker" else RUNS
        yield f"topology ready {pod.component}", ready, (probe.get("path"), probe.get("port"))
        token = pod.spec.get("automountServiceAccountToken")
        yield f"token of {pod.component}", in_head and pod.is_ray_head, token
    for pod in made.pods:
        asked = said.at("image.pullSecrets") or []
        secrets = [one.get("name") for one in items(pod.spec, "imagePullSecrets")]
        yield f"image.pullSecrets {pod.component}", asked, secrets
    for pod in made.of_ray():
        held = made.variables([pod])
        for variable, value in (
            ("TOCSIN_TOKEN", "token.name"),
            ("TOCSIN_ALERTMANAGER_URL", "alertmanager.url"),
            ("TOCSIN_GATEWAY_URL", "alertmanager.url"),
            ("TOCSIN_ALERT_LABELS", "alertmanager.url"),
        ):
            yield f"{value} {variable}", said.on(value), variable in held
    told, to = said.on("telemetry.enabled"), said.on("telemetry.endpoint")
    for pod in made.pods:
        held = made.variables([pod])
        yield "telemetry off", not told, "OTEL_SDK_DISABLED" in held
        yield "telemetry on", told, "OTEL_TRACES_SAMPLER_ARG" in held
        yield "telemetry endpoint", told and to, "OTEL_EXPORTER_OTLP_ENDPOINT" in held
    tests = [pod for pod in made.pods if pod.component == "test"]
    yield "test.enabled", 2 if said.on("test.enabled") else 0, len(tests)


def _chaos(said: Said, made: Made) -> Iterator[Pair]:
    """The driver, what it may do, and in which form it runs."""
    is_on = said.on("chaos.enabled")
    yield "chaos.enabled", CHAOS if is_on else set(), made.kinds("chaos", CHAOS)
    asked = is_on and said.on("chaos.admissionPolicy.enabled")
    yield "chaos.admissionPolicy", GUARDS if asked else set(), made.kinds("chaos", GUARDS)
    once = "chaos.runOnce"
    yield "chaos.kind job", said.runs_as("job", once), bool(made.of("Job", "chaos"))
    yield "chaos.kind rayjob", said.runs_as("rayjob", once), bool(made.of("RayJob", "chaos"))
    gate = said.runs_as("raycronjob", "chaos.rayCronJobGate")
    yield "chaos.kind raycronjob", gate, bool(made.of("RayCronJob", "chaos"))
    in_head = is_on and said.at("chaos.kind") in IN_HEAD
    for one in made.of("RoleBinding", "chaos"):
        yield "chaos.kind accounts", 1 + in_head, len(items(one.body, "subjects"))
    for one in made.of("CronJob", "chaos"):
        marks = sub(one.metadata, "annotations")
        dry = "true" if said.on("chaos.dryRun") else "false"
        yield "chaos.dryRun", dry, marks.get("tocsin.dev/dry-run")
    sends = said.on("chaos.publish.url") and said.on("chaos.publish.secretName")
    for pod in made.pods:
        if pod.component == "chaos":
            held = any("envFrom" in container.body for container in pod.containers())
            yield "chaos.publish", sends, held
    experiments = [one for one in made.of("ConfigMap") if "experiment.yaml" in one.body["data"]]
    yield "chaos.experiment", is_on and said.on("chaos.experiment.text"), bool(experiments)


def _policy(said: Said, made: Made) -> Iterator[Pair]:
    """What the program is told to stop at, and who is let through to what."""
    policy, watches = made.text("policy.yaml"), said.on("chaos.stopOnAlert.enabled")
    asked = said.at("alertmanager.url") if watches else None
    yield "chaos.stopOnAlert", asked, policy.get("stop_on_alert")
    yield "chaos.stopOnAlert matchers", watches, "stop_matchers" in policy
    guards = said.on("networkPolicy.enabled")
    parts = 3 + said.on("chaos.enabled") + said.on("monitoring.relay.enabled")
    yield "networkPolicy.enabled", parts if guards else 0, len(made.of("NetworkPolicy"))
    narrow = said.on("networkPolicy.egress.restrict")
    for one in made.of("NetworkPolicy", "network"):
        if sub(one.body, "spec").get("egress") or one.name.endswith("-ray"):
            found = "Egress" in (sub(one.body, "spec").get("policyTypes") or ())
            yield "networkPolicy.egress", narrow, found

    told = [said.on(f"{DEGRADE}.enabled"), said.on("monitoring.alertmanagerConfig.enabled")]
    heads = [one for one in made.of("NetworkPolicy", "network") if one.name.endswith("-head")]
    let_in = {
        name
        for one in heads
        for rule in items(one.body, "spec", "ingress")
        if [port.get("port") for port in items(rule, "ports")] == [8000]
        for peer in items(rule, "from")
        for term in items(peer, "namespaceSelector", "matchExpressions")
        for name in term.get("values") or ()
    }
    asked = set(said.at(f"{DEGRADE}.fromNamespaces") or ()) if all([guards, *told]) else set()
    yield f"{DEGRADE}.fromNamespaces", asked, let_in


def _monitoring(said: Said, made: Made) -> Iterator[Pair]:
    """Each object for those who watch, and what a receiver is told by."""
    for kind, key in (
        ("PodMonitor", "podMonitor"),
        ("PrometheusRule", "prometheusRule"),
        ("AlertmanagerConfig", "alertmanagerConfig"),
    ):
        asked = said.on(f"monitoring.{key}.enabled")
        yield f"monitoring.{key}", int(asked), len(made.of(kind))
    shows = said.on("monitoring.dashboards.enabled")
    yield "monitoring.dashboards", shows, bool(made.of("ConfigMap", "monitoring"))
    asked = said.on("monitoring.relay.enabled")
    yield "monitoring.relay", RELAY if asked else set(), made.kinds("relay", RELAY)
    ways: Mapping[str, Callable[[Tree], bool]] = {
        "pagerdutyConfigs": lambda way: bool(sub(way, "pagerdutySecret").get("name")),
        "slackConfigs": lambda way: bool(sub(way, "slack", "urlSecret").get("name")),
        "emailConfigs": lambda way: bool(sub(way, "email").get("to")),
    }
    base = "monitoring.alertmanagerConfig"
    for one in made.of("AlertmanagerConfig"):
        receivers = {str(r.get("name")): r for r in items(sub(one.body, "spec"), "receivers")}
        yield f"{base} degrade", said.on(f"{base}.degrade.enabled"), "degrade" in receivers
        for key, way in sub(said.values, *f"{base}.receivers".split(".")).items():
            receiver = next((r for n, r in receivers.items() if n.endswith(key)), {})
            for channel, is_asked in ways.items():
                yield f"{base} {key} {channel}", is_asked(way), channel in receiver
            hooks = bool(way.get("relay")) + bool(sub(way, "webhookSecret").get("name"))
            yield f"{base} {key} webhooks", hooks, len(items(receiver, "webhookConfigs"))
