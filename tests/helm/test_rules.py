"""Values that do not fit each other are refused in one line; their nearest neighbours are not."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.helm.ray_values import AUTOSCALING, CLUSTER, GPU, REDIS, nested
from tocsin.core.errors import SpecError
from tocsin.helm.gate.render import Case, merged, render, render_many

Values = Mapping[str, Any]
INCREMENTAL: Values = {
    "ray": {
        "autoscaling": {"enabled": True},
        "upgrade": {
            "strategy": "NewClusterWithIncrementalUpgrade",
            "incremental": {"gatewayClassName": "istio"},
        },
    }
}
EXPRESSION = {"key": "zone", "operator": "In", "values": ["a"]}
PVC: Values = {"model": {"source": "pvc", "claimName": "weights"}}


def _env(*variables: Values) -> Values:
    return {"extraEnv": list(variables)}


def _affinity(**expression: Any) -> Values:
    return nested("worker.nodeAffinity.required", [{**EXPRESSION, **expression}])


# Rule → (what breaks it, what the line names, the nearest values that it lets pass).
RULES: dict[str, tuple[Values, str, Values]] = {
    "a name that KubeRay cuts": (
        {"nameOverride": "a" * 36},
        "name: demo-aaaa",
        {"nameOverride": "a" * 35},
    ),
    "Ray too old for the probes": (
        nested("ray.version", "2.52.1"),
        "ray.version: 2.52.1",
        nested("ray.version", "2.53.0"),
    ),
    "Redis without an address": (
        nested("ray.gcsFaultTolerance.enabled", True),
        "ray.gcsFaultTolerance.redisAddress: empty",
        REDIS,
    ),
    "an address without fault tolerance": (
        nested("ray.gcsFaultTolerance.redisAddress", "redis:6379"),
        "a Redis is named and enabled is false",
        {},
    ),
    "a user without a password": (
        merged(
            REDIS,
            {
                "ray": {
                    "gcsFaultTolerance": {
                        "usernameSecret": {"name": "u"},
                        "passwordSecret": {"name": ""},
                    }
                }
            },
        ),
        "ray.gcsFaultTolerance.passwordSecret.name",
        merged(REDIS, nested("ray.gcsFaultTolerance.usernameSecret.name", "u")),
    ),
    "autoscaling against Helm": (
        merged(CLUSTER, AUTOSCALING),
        "ray.autoscaling.enabled: true with topology cluster",
        AUTOSCALING,
    ),
    "an autoscaler that asks for more than its limit": (
        merged(AUTOSCALING, nested("ray.autoscaling.resources.cpuLimit", "400m")),
        "ray.autoscaling.resources.cpu: 500m, expected at most cpuLimit (400m)",
        merged(AUTOSCALING, nested("ray.autoscaling.resources.cpuLimit", "0.5")),
    ),
    "steps without autoscaling": (
        merged(INCREMENTAL, nested("ray.autoscaling.enabled", False)),
        "ray.upgrade.strategy: NewClusterWithIncrementalUpgrade without autoscaling",
        INCREMENTAL,
    ),
    "steps without a gateway": (
        merged(INCREMENTAL, nested("ray.upgrade.incremental.gatewayClassName", "")),
        "ray.upgrade.incremental.gatewayClassName: empty",
        INCREMENTAL,
    ),
    "steps above the surge": (
        merged(INCREMENTAL, nested("ray.upgrade.incremental.maxSurgePercent", 19)),
        "ray.upgrade.incremental.stepSizePercent: 20",
        merged(INCREMENTAL, nested("ray.upgrade.incremental.maxSurgePercent", 20)),
    ),
    "steps of a RayCluster": (
        merged(CLUSTER, nested("ray.upgrade.strategy", "NewClusterWithIncrementalUpgrade")),
        "ray.upgrade.strategy: NewClusterWithIncrementalUpgrade with topology cluster",
        merged(CLUSTER, nested("ray.upgrade.strategy", "None")),
    ),
    "a volume without a claim": (nested("model.source", "pvc"), "model.claimName: empty", PVC),
    "a claim that nobody mounts": (
        nested("model.claimName", "weights"),
        "model.source: image",
        PVC,
    ),
    "an endpoint without traces": (
        {"telemetry": {"enabled": False, "endpoint": "http://otel:4318"}},
        "telemetry.endpoint: http://otel:4318",
        {"telemetry": {"endpoint": "http://otel:4318"}},
    ),
    "ranges that restrict nothing": (
        nested("networkPolicy.egress.cidrs", ["10.0.0.0/8"]),
        "networkPolicy.egress.cidrs: given while",
        {"networkPolicy": {"egress": {"restrict": True, "cidrs": ["10.0.0.0/8"]}}},
    ),
    "two gateways on one head": (
        nested("serve.gatewayReplicas", 2),
        "serve.gatewayReplicas: 2",
        {"serve": {"gatewayReplicas": 2, "args": {"gateway_placement": "workers"}}},
    ),
    "an object store above shared memory": (
        nested("head.objectStore", "513Mi"),
        "head.objectStore: 513Mi, expected at most sharedMemory (512Mi)",
        nested("head.objectStore", "512Mi"),
    ),
    "an object store that Ray refuses": (
        nested("worker.objectStore", "74Mi"),
        "workerGroups.checked.objectStore: 74Mi",
        nested("worker.objectStore", "75Mi"),
    ),
    "shared memory that is all the memory": (
        nested("worker.sharedMemory", "8Gi"),
        "workerGroups.checked.sharedMemory: 8Gi",
        nested("worker.sharedMemory", "7.9Gi"),
    ),
    "a request above the limit": (
        nested("head.resources.cpuLimit", "900m"),
        "head.resources.cpu: 1, expected at most cpuLimit (900m)",
        nested("head.resources.cpuLimit", "1000m"),
    ),
    "a comparison with nothing": (
        _affinity(values=[]),
        "workerGroups.checked.nodeAffinity.required[0].values: empty",
        _affinity(),
    ),
    "an existence with a value": (
        _affinity(operator="Exists"),
        "expected none for operator Exists",
        _affinity(operator="Exists", values=[]),
    ),
    "greater than a word": (
        _affinity(operator="Gt"),
        "expected one whole number for operator Gt",
        _affinity(operator="Gt", values=["3"]),
    ),
    "a taint's value for any value": (
        nested("head.tolerations", [{"key": "a", "value": "b"}]),
        "head.tolerations[0].value: b",
        nested("head.tolerations", [{"key": "a", "value": "b", "operator": "Equal"}]),
    ),
    "fewer pods than the least": (
        nested("worker.minReplicas", 3),
        "workerGroups.checked.replicas: 2, expected minReplicas (3)",
        nested("worker.minReplicas", 2),
    ),
    "more pods than the most": (
        nested("worker.maxReplicas", 1),
        "workerGroups.checked.replicas: 2, expected minReplicas (1) to maxReplicas (1)",
        nested("worker.maxReplicas", 2),
    ),
    "an idle time that nobody reads": (
        nested("worker.idleTimeoutSeconds", 60),
        "workerGroups.checked.idleTimeoutSeconds: 60",
        merged(AUTOSCALING, nested("worker.idleTimeoutSeconds", 60)),
    ),
    "more replicas than CPUs": (
        nested("serve.replicas", 5),
        "serve.replicas: 5 with 1 CPUs and 0 GPUs each, the worker groups have room for 4",
        nested("serve.replicas", 4),
    ),
    "a replica larger than any pod": (
        nested("serve.numCpus", 2.5),
        "the worker groups have room for 0",
        nested("serve.numCpus", 2),
    ),
    "more shares of GPUs than GPUs": (
        merged(GPU, {"serve": {"numGpus": 0.4, "replicas": 5, "numCpus": 0.1}}),
        "the worker groups have room for 4",
        merged(GPU, {"serve": {"numGpus": 0.4, "replicas": 4, "numCpus": 0.1}}),
    ),
    "one and a half GPUs": (
        merged(GPU, {"worker": {"gpu": {"count": 4}}, "serve": {"numGpus": 1.5}}),
        "serve.numGpus: 1.5",
        merged(GPU, {"worker": {"gpu": {"count": 4}}, "serve": {"numGpus": 2}}),
    ),
    "GPUs that no replica uses": (
        nested("worker.gpu.count", 1),
        "serve.numGpus: 0",
        GPU,
    ),
    "GPUs where there are none": (
        nested("serve.numGpus", 1),
        "the worker groups have room for 0",
        GPU,
    ),
    "watermarks out of order": (
        nested("checker.degrade_free_bytes", 1073741823),
        "checker.essential_free_bytes: 1073741824",
        nested("checker.degrade_free_bytes", 1073741824),
    ),
    "a watermark above all the memory": (
        nested("worker.resources.memory", "2.5Gi"),
        "checker.degrade_free_bytes: 2147483648 times recover_factor",
        nested("worker.resources.memory", "2561Mi"),
    ),
    "a journal larger than its disk": (
        nested("worker.scratch", "1Gi"),
        "checker.journal.disk_bytes_max: 2147483648",
        nested("worker.scratch", "2Gi"),
    ),
    "a request longer than all pages": (
        nested("serve.args.max_length", 3073),
        "serve.args.max_length: 3073, expected at most pages × page_size (3072)",
        nested("serve.args.max_length", 3072),
    ),
    "a variable twice": (
        _env({"name": "A", "value": "1"}, {"name": "A", "value": "2"}),
        "extraEnv[1].name: A, which is there already",
        _env({"name": "A", "value": "1"}, {"name": "B", "value": "2"}),
    ),
    "a variable of the chart's own": (
        _env({"name": "TOCSIN_CHAOS_POLICY", "value": "/dev/null"}),
        "extraEnv[0].name: TOCSIN_CHAOS_POLICY",
        _env({"name": "MY_TOCSIN_CHAOS_POLICY", "value": "1"}),
    ),
    "a variable that sends the guards elsewhere": (
        _env({"name": "TOCSIN_KUBE_API", "value": "http://elsewhere.example"}),
        "extraEnv[0].name: TOCSIN_KUBE_API",
        _env({"name": "KUBE_API", "value": "1"}),
    ),
    "a variable that hides the models": (
        _env({"name": "TOCSIN_MODELS", "value": "/tmp"}),
        "extraEnv[0].name: TOCSIN_MODELS",
        _env({"name": "MODELS", "value": "1"}),
    ),
    "a variable of the API server's place": (
        _env({"name": "KUBERNETES_SERVICE_HOST", "value": "elsewhere.example"}),
        "extraEnv[0].name: KUBERNETES_SERVICE_HOST",
        _env({"name": "KUBERNETES_CLUSTER", "value": "1"}),
    ),
    "a variable by which programs are found": (
        _env({"name": "PATH", "value": "/tmp"}),
        "extraEnv[0].name: PATH",
        _env({"name": "MY_PATH", "value": "/tmp"}),
    ),
    "a variable of the loader": (
        _env({"name": "LD_PRELOAD", "value": "/tmp/a.so"}),
        "extraEnv[0].name: LD_PRELOAD",
        _env({"name": "LDAP_URL", "value": "ldap://a"}),
    ),
    "a variable by which modules are found": (
        _env({"name": "PYTHONPATH", "value": "/tmp"}),
        "extraEnv[0].name: PYTHONPATH",
        _env({"name": "PYTHONWARNINGS", "value": "ignore"}),
    ),
    "a model that no image holds": (
        nested("model.name", "gpt5"),
        "model.name: gpt5 with model.source image, expected a model that is built in: smollm2",
        merged(PVC, nested("model.name", "gpt5")),
    ),
    "a share below what Ray counts": (
        merged(GPU, nested("serve.numGpus", 1e-9)),
        "serve.numGpus: 1e-09, expected 0 or at least 0.0001",
        merged(GPU, nested("serve.numGpus", 0.0001)),
    ),
    "a device that Ray hides": (
        nested("serve.args.device", "cuda"),
        "serve.args.device: cuda with serve.numGpus 0",
        merged(GPU, nested("serve.args.device", "cuda")),
    ),
    "GPUs beside the device": (
        merged(GPU, nested("serve.args.device", "cpu")),
        "serve.args.device: cpu with serve.numGpus 1",
        nested("serve.args.device", "cpu"),
    ),
    "a file that outgrows the journal": (
        nested("checker.journal", {"rotate_bytes": 1025, "disk_bytes_max": 1024}),
        "checker.journal.rotate_bytes: 1025, expected at most disk_bytes_max (1024)",
        nested("checker.journal", {"rotate_bytes": 1024, "disk_bytes_max": 1024}),
    ),
    "a snapshot that outgrows the queue": (
        nested("checker.journal", {"snapshot_bytes_max": 1025, "queue_bytes_max": 1024}),
        "checker.journal.snapshot_bytes_max: 1025, expected at most queue_bytes_max (1024)",
        nested("checker.journal", {"snapshot_bytes_max": 1024, "queue_bytes_max": 1024}),
    ),
    "a variable that KubeRay refuses": (
        _env({"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"}),
        "extraEnv[0].name: RAY_REDIS_ADDRESS",
        _env({"name": "RAY_LOG_TO_STDERR", "value": "1"}),
    ),
    "a variable from two places": (
        _env({"name": "A", "value": "1", "secretKeyRef": {"name": "s"}}),
        "extraEnv[0].name: A has a value and a secretKeyRef",
        _env({"name": "A", "secretKeyRef": {"name": "s"}}),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_values_that_do_not_fit_are_refused_in_one_line(rule: str) -> None:
    """Where, found, expected, what to do: a person corrects it without opening a template."""
    broken, said, _ = RULES[rule]
    with pytest.raises(SpecError) as refused:
        render(broken)
    assert said in str(refused.value)


def test_the_nearest_values_that_fit_are_rendered() -> None:
    """A rule that is too strict would keep people from what works."""
    rendered = render_many([Case(fits) for _, _, fits in RULES.values()])
    assert all(one.objects for one in rendered)


@pytest.mark.parametrize(
    "values",
    [
        {"workerGroups": {}},
        {"workerGroups": {"checked": None}},
    ],
    ids=["emptied", "by null"],
)
def test_the_last_worker_group_cannot_be_taken_away(values: Values) -> None:
    """{} is merged with the default and leaves it; null leaves none, and is refused."""
    if values["workerGroups"]:
        with pytest.raises(SpecError):
            render(values)
    else:
        assert render(values)


@pytest.mark.parametrize("release", ["1st", "a" * 45])
def test_a_release_name_that_no_ray_cluster_can_have_is_refused(release: str) -> None:
    """KubeRay asks for a DNS-1035 label and adds to it; Helm takes more."""
    with pytest.raises(SpecError, match="name: "):
        render({}, release=release)
    assert render({"fullnameOverride": "mine"}, release=release)
