"""What the KubeRay operator refuses after the server has accepted it, as far as values can reach.

Restated from the behaviour of KubeRay 1.7, ray-operator/controllers/ray/utils/validation.go. A
refusal there makes no pods and is seen in the operator's log only, so it is found here.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tocsin.helm.gate import syntax
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.rule import Complaint, Tree, items, on_object, sub

# The operator appends to these names; what results must still be a label.
NAME_LENGTH_MAX = {"RayCluster": 53, "RayService": 47, "RayJob": 47, "RayCronJob": 36}
ANNOTATION_TIMEOUT = "ray.io/initializing-timeout"
ANNOTATION_FT = "ray.io/ft-enabled"
ANNOTATION_STORAGE = "ray.io/external-storage-namespace"
RESOURCE_PARAMS = ("num-cpus", "num-gpus", "memory", "resources")
# Options that the operator sets itself, or that have a field of their own.
RESERVED_PARAMS = ("labels", "redis-password", "redis-username")
ENV_AUTOSCALER = "RAY_enable_autoscaler_v2"
ENV_AUTOSCALER_COMMAND = "KUBERAY_GEN_AUTOSCALER_START_CMD"
TRUE_WORDS = ("1", "true")
TOKEN_RAY_MIN = (2, 52)
AUTOSCALER_V2_RAY_MIN = (2, 10)
GATED = ("networkPolicy", "tlsOptions", "historyServerOptions")
DURATION = re.compile(r"([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+|[0-9]+")


@on_object("ray.name")
def name(one: Manifest) -> Iterator[Complaint]:
    """Names leave room for what the operator appends."""
    limit = NAME_LENGTH_MAX.get(one.kind)
    if limit is None:
        return
    if len(one.name) > limit:
        found = f"{len(one.name)} characters"
        yield Complaint("metadata.name", found, f"at most {limit} for a {one.kind}")
    if not syntax.is_label_1035(one.name):
        yield Complaint("metadata.name", one.name, "a DNS label that begins with a letter")
    timeout = sub(one.metadata, "annotations").get(ANNOTATION_TIMEOUT)
    if timeout and (not DURATION.fullmatch(str(timeout)) or not re.search("[1-9]", str(timeout))):
        path = f"metadata.annotations[{ANNOTATION_TIMEOUT}]"
        yield Complaint(path, f"{timeout}", "a duration such as 30m, above 0")


@on_object("ray.groups")
def groups(one: Manifest) -> Iterator[Complaint]:
    """Groups have counts that fit, one place for resources, and no reserved start option."""
    for path, cluster in clusters(one):
        scales = cluster.get("enableInTreeAutoscaling") is True
        yield from _start(f"{path}.headGroupSpec", sub(cluster, "headGroupSpec"))
        for index, group in enumerate(items(cluster, "workerGroupSpecs")):
            where = f"{path}.workerGroupSpecs[{index}]"
            yield from _start(where, group)
            yield from _counts(where, group, scales)
        if not items(cluster, "workerGroupSpecs"):
            yield Complaint(f"{path}.workerGroupSpecs", "none", "a group that serves")


def _start(path: str, group: Tree) -> Iterator[Complaint]:
    options = sub(group, "rayStartParams")
    if path.endswith("headGroupSpec") and options.get("num-cpus") != "0":
        found = f"{options.get('num-cpus')}"
        yield Complaint(f"{path}.rayStartParams.num-cpus", found, "0: no model on the head")
    yield from _amounts(path, group, options)
    if sub(group, "resources") and any(options.get(key) for key in RESOURCE_PARAMS):
        yield Complaint(f"{path}.resources", "beside rayStartParams", "one of the two")
    for key in RESERVED_PARAMS:
        if key in options:
            yield Complaint(f"{path}.rayStartParams.{key}", "an option", "the field made for it")
    for key, value in sub(group, "labels").items():
        if not (syntax.is_qualified_name(key) and syntax.is_label_value(value)):
            yield Complaint(f"{path}.labels", f"{key}: {value!r}", "a label")
    if not items(group, "template", "spec", "containers"):
        yield Complaint(f"{path}.template", "no container", "at least one")


def _amounts(path: str, group: Tree, options: Tree) -> Iterator[Complaint]:
    """Ray is told of no more than the pod has."""
    spec = sub(group, "template", "spec")
    store = options.get("object-store-memory")
    for volume in items(spec, "volumes"):
        empty = sub(volume, "emptyDir")
        room = syntax.quantity(empty.get("sizeLimit"))
        if store is None or empty.get("medium") != "Memory" or room is None:
            continue
        if not str(store).isdecimal() or int(str(store)) > room:
            place = f"{path}.rayStartParams.object-store-memory"
            yield Complaint(place, f"{store}", f"bytes, at most /dev/shm ({int(room)})")
    for container in items(spec, "containers")[:1]:
        gpus = sub(container, "resources", "limits").get("nvidia.com/gpu")
        if gpus is not None and str(options.get("num-gpus", gpus)) != str(gpus):
            place = f"{path}.rayStartParams.num-gpus"
            yield Complaint(place, f"{options['num-gpus']}", f"the limit, {gpus}")


def _counts(path: str, group: Tree, scales: bool) -> Iterator[Complaint]:
    least, count, most = (group.get(key) for key in ("minReplicas", "replicas", "maxReplicas"))
    if not scales and (least is None or most is None):
        yield Complaint(path, "a count missing", "minReplicas and maxReplicas")
    for key, number in (("minReplicas", least), ("maxReplicas", most), ("replicas", count)):
        if number is not None and (not isinstance(number, int) or number < 0):
            yield Complaint(f"{path}.{key}", f"{number}", "0 or more")
    known = [number for number in (least, count, most) if isinstance(number, int)]
    if known != sorted(known):
        found = f"{least} ≤ {count} ≤ {most}"
        yield Complaint(path, found, "minReplicas ≤ replicas ≤ maxReplicas")
    if not syntax.is_label(group.get("groupName")):
        yield Complaint(f"{path}.groupName", f"{group.get('groupName')!r}", "a DNS label")


@on_object("ray.autoscaling")
def autoscaling(one: Manifest) -> Iterator[Complaint]:
    """What only the autoscaler understands is said only with it, and says it once."""
    for path, cluster in clusters(one):
        options, env = sub(cluster, "autoscalerOptions"), _env(sub(cluster, "headGroupSpec"))
        is_v2 = options.get("version") == "v2" or env.get(ENV_AUTOSCALER) in TRUE_WORDS
        if cluster.get("enableInTreeAutoscaling") is not True:
            if env.get(ENV_AUTOSCALER) in TRUE_WORDS:
                yield Complaint(path, f"{ENV_AUTOSCALER} set", "enableInTreeAutoscaling with it")
            if options:
                yield Complaint(f"{path}.autoscalerOptions", "options", "none while it is off")
        else:
            yield from _scaled(path, cluster, env)
        for group in items(cluster, "workerGroupSpecs"):
            said = group.keys() & {"idleTimeoutSeconds", "priority"}
            if any(group[key] for key in said) and not is_v2:
                found = f"{', '.join(sorted(said))} in {group.get('groupName')}"
                yield Complaint(path, found, "autoscalerOptions.version v2 with it")


def _scaled(path: str, cluster: Tree, env: Tree) -> Iterator[Complaint]:
    options = sub(cluster, "autoscalerOptions")
    if "version" in options and ENV_AUTOSCALER in env:
        yield Complaint(path, f"version and {ENV_AUTOSCALER}", "one of them")
    if any(entry.get("name") == ENV_AUTOSCALER_COMMAND for entry in items(options, "env")):
        yield Complaint(f"{path}.autoscalerOptions.env", ENV_AUTOSCALER_COMMAND, "not that one")
    if options.get("version") != "v2":
        found = f"{options.get('version')}"
        yield Complaint(f"{path}.autoscalerOptions.version", found, "v2: the other one is old")
    else:
        if _version(cluster) < AUTOSCALER_V2_RAY_MIN:
            yield Complaint(f"{path}.rayVersion", f"{cluster.get('rayVersion')}", "2.10 for v2")
        for where, group in _every_group(path, cluster):
            policy = sub(group, "template", "spec").get("restartPolicy")
            if policy not in (None, "", "Never"):
                yield Complaint(f"{where}.template.spec.restartPolicy", policy, "Never with v2")
    for group in items(cluster, "workerGroupSpecs"):
        if group.get("suspend") is True:
            found = f"{group.get('groupName')} suspended"
            yield Complaint(path, found, "no suspended group while scaling")


@on_object("ray.fault_tolerance")
def fault_tolerance(one: Manifest) -> Iterator[Complaint]:
    """Where the head keeps its state is said in one place."""
    annotations = sub(one.metadata, "annotations")
    for path, cluster in clusters(one):
        env = _env(sub(cluster, "headGroupSpec"))
        if "REDIS_USERNAME" in env:
            yield Complaint(path, "REDIS_USERNAME", "gcsFaultToleranceOptions.redisUsername")
        if "gcsFaultToleranceOptions" in cluster:
            where = f"{path}.gcsFaultToleranceOptions"
            yield from _kept(where, sub(cluster, "gcsFaultToleranceOptions"), env, annotations)
        elif "RAY_REDIS_ADDRESS" in env and annotations.get(ANNOTATION_FT) != "true":
            yield Complaint(path, "RAY_REDIS_ADDRESS", "gcsFaultToleranceOptions")


def _kept(path: str, options: Tree, env: Tree, annotations: Tree) -> Iterator[Complaint]:
    for key in ("REDIS_PASSWORD", "RAY_REDIS_ADDRESS"):
        if key in env:
            yield Complaint(path, f"{key} beside the options", "the options alone")
    for key in (ANNOTATION_FT, ANNOTATION_STORAGE):
        if annotations.get(key):
            yield Complaint(f"metadata.annotations[{key}]", "an annotation", "the options")
    if options.get("backend", "redis") != "redis":
        yield Complaint(f"{path}.backend", f"{options['backend']}", "redis: it needs no gate")
    elif "storage" in options:
        yield Complaint(f"{path}.storage", "a store", "none: it is for another backend")


@on_object("ray.gates")
def gates(one: Manifest) -> Iterator[Complaint]:
    """Nothing needs a gate of the operator that is off by default; tokens need a Ray that knows."""
    for path, cluster in clusters(one):
        for key in GATED:
            if key in cluster:
                yield Complaint(f"{path}.{key}", "a gated field", "none")
        mode = sub(cluster, "authOptions").get("mode")
        if mode == "token" and _version(cluster) < TOKEN_RAY_MIN:
            yield Complaint(f"{path}.rayVersion", f"{cluster.get('rayVersion')}", "2.52 for tokens")


@on_object("ray.service")
def service(one: Manifest) -> Iterator[Complaint]:
    """A RayService upgrades in a way it can, and its Serve config is one."""
    if one.kind != "RayService":
        return
    spec = sub(one.body, "spec")
    cluster, upgrade = sub(spec, "rayClusterConfig"), sub(spec, "upgradeStrategy")
    if spec.get("excludeHeadPodFromServeSvc") is not True:
        found = f"{spec.get('excludeHeadPodFromServeSvc')}"
        yield Complaint("spec.excludeHeadPodFromServeSvc", found, "true: no model on the head")
    if "upgradeStrategy" in cluster:
        yield Complaint("spec.rayClusterConfig.upgradeStrategy", "a strategy", "the service's own")
    if sub(cluster, "headGroupSpec", "headService", "metadata").get("name"):
        yield Complaint("spec.rayClusterConfig.headGroupSpec.headService", "a name", "none")
    if upgrade.get("type") == "NewClusterWithIncrementalUpgrade":
        yield from _incremental(cluster, sub(upgrade, "clusterUpgradeOptions"))
    applications = sub(loaded(spec.get("serveConfigV2"))).get("applications")
    if not isinstance(applications, list) or not applications:
        yield Complaint("spec.serveConfigV2", "no applications", "a Serve config with some")


def _incremental(cluster: Tree, options: Tree) -> Iterator[Complaint]:
    path = "spec.upgradeStrategy"
    if cluster.get("enableInTreeAutoscaling") is not True:
        yield Complaint(path, "NewClusterWithIncrementalUpgrade", "autoscaling with it")
    step, surge = options.get("stepSizePercent"), options.get("maxSurgePercent", 100)
    if not isinstance(step, int) or not isinstance(surge, int) or not 0 <= step <= surge <= 100:
        found = f"step {step} of surge {surge}"
        yield Complaint(f"{path}.clusterUpgradeOptions", found, "0 ≤ step ≤ surge ≤ 100")
    if (options.get("intervalSeconds") or 0) <= 0 or not options.get("gatewayClassName"):
        found = "no interval or gateway class"
        yield Complaint(f"{path}.clusterUpgradeOptions", found, "intervalSeconds, gatewayClassName")


def clusters(one: Manifest) -> Iterator[tuple[str, Tree]]:
    """Every description of a Ray cluster in an object, with its path."""
    paths = {
        "RayCluster": ("spec",),
        "RayService": ("spec", "rayClusterConfig"),
        "RayJob": ("spec", "rayClusterSpec"),
        "RayCronJob": ("spec", "jobTemplate", "rayClusterSpec"),
    }
    path = paths.get(one.kind)
    if path is not None and sub(one.body, *path):
        yield ".".join(path), sub(one.body, *path)


def _every_group(path: str, cluster: Tree) -> Iterator[tuple[str, Tree]]:
    yield f"{path}.headGroupSpec", sub(cluster, "headGroupSpec")
    for index, group in enumerate(items(cluster, "workerGroupSpecs")):
        yield f"{path}.workerGroupSpecs[{index}]", group


def _env(group: Tree) -> dict[str, Any]:
    """Variables of the Ray container, which is the first."""
    containers = items(group, "template", "spec", "containers")
    listed = items(containers[0], "env") if containers else ()
    return {str(one.get("name")): one.get("value", "") for one in listed}


def _version(cluster: Tree) -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", str(cluster.get("rayVersion", "")))
    return tuple(int(number) for number in numbers.groups()) if numbers else (0, 0)


def loaded(text: Any) -> Any:
    """What a YAML text holds; None when it cannot be read."""
    try:
        return yaml.load(str(text), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return None
