"""Custom resources: schema, conditions and the operator's own rules, each with a mutant."""

import pytest

from tests.helm.good import GONE, Edits, found

SERVICE = "service.spec"
CONFIG = "service.spec.rayClusterConfig"
STANDING = "cluster.spec"
GROUP = f"{STANDING}.workerGroupSpecs.0"
HEAD_ENV = f"{STANDING}.headGroupSpec.template.spec.containers.0.env.4"
SCALED_ENV = f"{CONFIG}.headGroupSpec.template.spec.containers.0.env.4"
UPGRADE = f"{SERVICE}.upgradeStrategy.clusterUpgradeOptions"
JOB = "ray_job.spec"
OWN = "own_job.spec"
DELETE = f"{OWN}.deletionStrategy.deletionRules"
FIRST = f"{DELETE}.0"
RULE = "rules.spec.groups.0.rules"
ROUTES = "routes.spec"
ENDPOINT = "monitor.spec.podMetricsEndpoints.0"

SCHEMA: list[tuple[str, Edits, Edits]] = [
    ("custom.schema", {"service.apiVersion": "ray.io/v1alpha1"}, {}),
    ("custom.schema", {"extra": {"apiVersion": "ray.io/v1", "kind": "RayHistory"}}, {}),
    ("custom.schema", {f"{SERVICE}.excludeHeadPodFromServeService": True}, {}),
    ("custom.schema", {f"{SERVICE}.serveConfigV2": GONE}, {}),
    ("custom.schema", {f"{SERVICE}.suspend": "true"}, {f"{SERVICE}.suspend": True}),
    ("custom.schema", {f"{SERVICE}.upgradeStrategy.type": "Rolling"}, {}),
    (
        "custom.schema",
        {f"{SERVICE}.managedBy": "me"},
        {f"{SERVICE}.managedBy": "ray.io/kuberay-operator"},
    ),
    (
        "custom.schema",
        {f"{SERVICE}.rayClusterDeletionDelaySeconds": -1},
        {f"{SERVICE}.rayClusterDeletionDelaySeconds": 0},
    ),
    (
        "custom.schema",
        {f"{CONFIG}.autoscalerOptions.upscalingMode": "Fast"},
        {f"{CONFIG}.autoscalerOptions.upscalingMode": "Default"},
    ),
    ("custom.schema", {f"{CONFIG}.headGroupSpec.rayStartParams.num-cpus": 0}, {}),
    ("custom.schema", {f"{CONFIG}.gcsFaultToleranceOptions.redisAddres": "a:1"}, {}),
    ("custom.schema", {f"{GROUP}.groupName": GONE}, {}),
    ("custom.schema", {f"{GROUP}.replicas": "2"}, {f"{GROUP}.replicas": 1}),
    ("custom.schema", {f"{JOB}.submissionMode": "Bogus"}, {f"{JOB}.submissionMode": "HTTPMode"}),
    ("custom.schema", {f"{OWN}.deletionStrategy.deletionRules": []}, {}),
    ("custom.schema", {"ray_cron_job.spec.concurrencyPolicy": "Forbid"}, {}),
    ("custom.schema", {f"{ENDPOINT}.interval": "15 s"}, {f"{ENDPOINT}.interval": "1m15s"}),
    ("custom.schema", {f"{ENDPOINT}.relabelings.0.targetLabel": "a-b"}, {}),
    ("custom.schema", {"monitor.spec.podMetricsEndpoint": []}, {}),
    ("custom.schema", {f"{RULE}.1.for": "60"}, {f"{RULE}.1.for": "0"}),
    ("custom.schema", {f"{RULE}.1.labels.severity": 0}, {}),
    ("custom.schema", {f"{RULE}.1.expr": GONE}, {}),
    ("custom.schema", {f"{ROUTES}.route.groupWait": "0 s"}, {f"{ROUTES}.route.groupWait": "0s"}),
    ("custom.schema", {f"{ROUTES}.route.routes.0.matchers.0.matchType": "=="}, {}),
    ("custom.schema", {f"{ROUTES}.route.groupBy": ["a", "a"]}, {f"{ROUTES}.route.groupBy": ["a"]}),
    ("custom.schema", {f"{ROUTES}.route.routes.0.match": {"severity": "P0"}}, {}),
    ("custom.schema", {f"{ROUTES}.receivers.0.pagerdutyConfigs.0.routingKey.name": ""}, {}),
    (
        "custom.conditions",
        {f"{ROUTES}.receivers.1.webhookConfigs.0.url": "https://a.example"},
        {f"{ROUTES}.receivers.1.webhookConfigs.0": {"url": "https://a.example"}},
    ),
    ("custom.conditions", {f"{ROUTES}.receivers.1.name": "page"}, {}),
    (
        "custom.conditions",
        {"rules.spec.groups.1": {"name": "tocsin", "rules": [{"record": "a", "expr": "b"}]}},
        {"rules.spec.groups.1": {"name": "more", "rules": [{"record": "a", "expr": "b"}]}},
    ),
    ("custom.conditions", {f"{RULE}.0.alert": "Both"}, {}),
    ("custom.conditions", {f"{RULE}.0.for": "1m"}, {f"{RULE}.0.labels": {"a": "b"}}),
    ("custom.conditions", {f"{RULE}.0.record": GONE}, {}),
    ("custom.conditions", {f"{ENDPOINT}.relabelings.0.targetLabel": GONE}, {}),
    ("custom.conditions", {f"{DELETE}.0.condition.jobDeploymentStatus": "Failed"}, {}),
    ("custom.conditions", {f"{DELETE}.0.condition.jobStatus": GONE}, {}),
    (
        "custom.conditions",
        {f"{OWN}.deletionStrategy.onSuccess": {"policy": "DeleteSelf"}},
        {
            f"{OWN}.deletionStrategy": {
                "onSuccess": {"policy": "DeleteSelf"},
                "onFailure": {"policy": "DeleteNone"},
            }
        },
    ),
    ("custom.conditions", {f"{OWN}.deletionStrategy": {"onSuccess": {"policy": "DeleteSelf"}}}, {}),
    (
        "custom.conditions",
        {
            f"{STANDING}.workerGroupSpecs.1": {
                "groupName": "checked",
                "minReplicas": 0,
                "maxReplicas": 1,
                "template": {},
            }
        },
        {},
    ),
    (
        "admission.expressions",
        {"admission.spec.validations.0.expression": "has(a.b"},
        {"admission.spec.validations.0.expression": "has(object.spec)"},
    ),
    (
        "builtin.schema",
        {f"{CONFIG}.autoscalerOptions.env": [{"nam": "A"}]},
        {f"{CONFIG}.autoscalerOptions.env": [{"name": "A", "value": "b"}]},
    ),
    ("builtin.schema", {f"{CONFIG}.autoscalerOptions.resources.limit": {}}, {}),
]

OPERATOR: list[tuple[str, Edits, Edits]] = [
    ("ray.name", {"service.metadata.name": "d" * 48}, {"service.metadata.name": "d" * 47}),
    ("ray.name", {"own_job.metadata.name": "d" * 48}, {"own_job.metadata.name": "d" * 47}),
    (
        "ray.name",
        {"ray_cron_job.metadata.name": "d" * 37},
        {"ray_cron_job.metadata.name": "d" * 36},
    ),
    ("ray.name", {"cluster.metadata.name": "d" * 54}, {}),
    ("ray.name", {"service.metadata.name": "d.e"}, {"service.metadata.name": "d-e"}),
    (
        "ray.name",
        {"service.metadata.annotations": {"ray.io/initializing-timeout": "0s"}},
        {"service.metadata.annotations": {"ray.io/initializing-timeout": "30m"}},
    ),
    ("ray.groups", {f"{GROUP}.minReplicas": 3}, {f"{GROUP}.minReplicas": 2}),
    ("ray.groups", {f"{GROUP}.maxReplicas": 1}, {f"{GROUP}.maxReplicas": 2}),
    ("ray.groups", {f"{GROUP}.maxReplicas": GONE}, {}),
    ("ray.groups", {f"{GROUP}.minReplicas": -1}, {}),
    ("ray.groups", {f"{GROUP}.groupName": "Checked"}, {}),
    ("ray.groups", {f"{STANDING}.workerGroupSpecs": []}, {}),
    ("ray.groups", {f"{STANDING}.headGroupSpec.resources": {"cpu": "1"}}, {}),
    (
        "ray.groups",
        {f"{GROUP}.resources": {"cpu": "1"}, f"{GROUP}.rayStartParams.num-cpus": "1"},
        {f"{GROUP}.resources": {"cpu": "1"}},
    ),
    ("ray.groups", {f"{STANDING}.headGroupSpec.rayStartParams": {}}, {}),
    (
        "ray.groups",
        {f"{GROUP}.rayStartParams.object-store-memory": "536870913"},
        {f"{GROUP}.rayStartParams.object-store-memory": "536870912"},
    ),
    (
        "ray.groups",
        {f"{GROUP}.rayStartParams.num-gpus": "2"},
        {f"{GROUP}.rayStartParams.num-gpus": "1"},
    ),
    ("ray.service", {f"{SERVICE}.excludeHeadPodFromServeSvc": GONE}, {}),
    ("ray.groups", {f"{GROUP}.rayStartParams.labels": "a=b"}, {f"{GROUP}.labels": {"a": "b"}}),
    ("ray.groups", {f"{GROUP}.labels": {"a b": "c"}}, {}),
    ("ray.groups", {f"{GROUP}.rayStartParams.redis-password": "x"}, {}),
    ("ray.groups", {f"{GROUP}.template.spec.containers": []}, {}),
    (
        "ray.autoscaling",
        {HEAD_ENV: {"name": "RAY_enable_autoscaler_v2", "value": "1"}},
        {HEAD_ENV: {"name": "RAY_enable_autoscaler_v2", "value": "0"}},
    ),
    ("ray.autoscaling", {SCALED_ENV: {"name": "RAY_enable_autoscaler_v2", "value": "1"}}, {}),
    ("ray.autoscaling", {f"{STANDING}.autoscalerOptions": {"version": "v2"}}, {}),
    (
        "ray.autoscaling",
        {f"{GROUP}.idleTimeoutSeconds": 60},
        {f"{CONFIG}.workerGroupSpecs.0.idleTimeoutSeconds": 60},
    ),
    (
        "ray.autoscaling",
        {f"{CONFIG}.workerGroupSpecs.0.template.spec.restartPolicy": "Always"},
        {f"{CONFIG}.workerGroupSpecs.0.template.spec.restartPolicy": "Never"},
    ),
    ("ray.autoscaling", {f"{CONFIG}.headGroupSpec.template.spec.restartPolicy": "OnFailure"}, {}),
    ("ray.autoscaling", {f"{CONFIG}.rayVersion": "2.9.0"}, {f"{CONFIG}.rayVersion": "2.10.0"}),
    ("ray.autoscaling", {f"{CONFIG}.workerGroupSpecs.0.suspend": True}, {f"{GROUP}.suspend": True}),
    (
        "ray.autoscaling",
        {
            f"{CONFIG}.autoscalerOptions.env": [
                {"name": "KUBERAY_GEN_AUTOSCALER_START_CMD", "value": "a"}
            ]
        },
        {},
    ),
    (
        "ray.fault_tolerance",
        {HEAD_ENV: {"name": "RAY_REDIS_ADDRESS", "value": "a:1"}},
        {HEAD_ENV: {"name": "RAY_REDIS", "value": "a:1"}},
    ),
    ("ray.fault_tolerance", {SCALED_ENV: {"name": "RAY_REDIS_ADDRESS", "value": "a:1"}}, {}),
    ("ray.fault_tolerance", {HEAD_ENV: {"name": "REDIS_USERNAME", "value": "a"}}, {}),
    (
        "ray.fault_tolerance",
        {
            SCALED_ENV: {
                "name": "REDIS_PASSWORD",
                "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}},
            }
        },
        {
            HEAD_ENV: {
                "name": "REDIS_PASSWORD",
                "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}},
            }
        },
    ),
    ("ray.fault_tolerance", {"service.metadata.annotations": {"ray.io/ft-enabled": "true"}}, {}),
    (
        "ray.fault_tolerance",
        {f"{CONFIG}.gcsFaultToleranceOptions.backend": "rocksdb"},
        {f"{CONFIG}.gcsFaultToleranceOptions.backend": "redis"},
    ),
    ("ray.fault_tolerance", {f"{CONFIG}.gcsFaultToleranceOptions.storage": {"size": "1Gi"}}, {}),
    ("ray.autoscaling", {f"{CONFIG}.autoscalerOptions.version": GONE}, {}),
    ("ray.gates", {f"{CONFIG}.networkPolicy": {"mode": "DenyAll"}}, {}),
    ("ray.gates", {f"{CONFIG}.tlsOptions": {}}, {}),
    (
        "ray.gates",
        {f"{OWN}.rayClusterSpec.rayVersion": "2.51.1"},
        {f"{OWN}.rayClusterSpec.rayVersion": "2.52.0"},
    ),
    ("ray.service", {f"{CONFIG}.upgradeStrategy": {"type": "Recreate"}}, {}),
    ("ray.service", {f"{CONFIG}.headGroupSpec.headService": {"metadata": {"name": "a"}}}, {}),
    ("ray.service", {f"{UPGRADE}.stepSizePercent": 51}, {f"{UPGRADE}.stepSizePercent": 50}),
    ("ray.service", {f"{UPGRADE}.intervalSeconds": 0}, {f"{UPGRADE}.intervalSeconds": 1}),
    ("ray.service", {f"{UPGRADE}.gatewayClassName": ""}, {}),
    (
        "ray.service",
        {f"{SERVICE}.upgradeStrategy.clusterUpgradeOptions": GONE},
        {f"{SERVICE}.upgradeStrategy": {"type": "NewCluster"}},
    ),
    (
        "ray.service",
        {f"{CONFIG}.enableInTreeAutoscaling": False},
        {
            f"{CONFIG}.enableInTreeAutoscaling": False,
            f"{CONFIG}.autoscalerOptions": GONE,
            f"{SERVICE}.upgradeStrategy": {"type": "None"},
        },
    ),
    ("ray.service", {f"{SERVICE}.serveConfigV2": "applications: ["}, {}),
    ("ray.service", {f"{SERVICE}.serveConfigV2": "applications: []"}, {}),
    ("ray_jobs.spec", {f"{JOB}.clusterSelector": GONE}, {}),
    ("ray_jobs.spec", {f"{JOB}.clusterSelector": {"cluster": "demo-standing"}}, {}),
    ("ray_jobs.spec", {f"{JOB}.backoffLimit": 3}, {f"{OWN}.backoffLimit": 3}),
    (
        "ray_jobs.spec",
        {f"{JOB}.submissionMode": "SidecarMode"},
        {f"{OWN}.submissionMode": "SidecarMode"},
    ),
    ("ray_jobs.spec", {f"{JOB}.suspend": True}, {f"{JOB}.suspend": False}),
    (
        "ray_jobs.spec",
        {f"{OWN}.suspend": True},
        {
            f"{OWN}.suspend": True,
            f"{OWN}.shutdownAfterJobFinishes": True,
            f"{OWN}.deletionStrategy": GONE,
        },
    ),
    (
        "ray_jobs.spec",
        {f"{OWN}.ttlSecondsAfterFinished": 60},
        {
            f"{OWN}.ttlSecondsAfterFinished": 60,
            f"{OWN}.shutdownAfterJobFinishes": True,
            f"{OWN}.deletionStrategy": GONE,
        },
    ),
    ("ray_jobs.spec", {f"{OWN}.activeDeadlineSeconds": 0}, {f"{OWN}.activeDeadlineSeconds": 1}),
    (
        "ray_jobs.spec",
        {f"{OWN}.preRunningDeadlineSeconds": 0},
        {f"{OWN}.preRunningDeadlineSeconds": 1},
    ),
    ("ray_jobs.spec", {f"{OWN}.backoffLimit": -1}, {}),
    ("ray_jobs.spec", {f"{OWN}.submissionMode": "InteractiveMode", f"{OWN}.backoffLimit": 1}, {}),
    (
        "ray_jobs.spec",
        {f"{OWN}.submissionMode": "SidecarMode", f"{OWN}.submitterConfig": {"backoffLimit": 1}},
        {f"{JOB}.submitterConfig": {"backoffLimit": 1}},
    ),
    (
        "ray_jobs.spec",
        {f"{JOB}.submitterPodTemplate": GONE},
        {f"{JOB}.submitterPodTemplate": GONE, f"{JOB}.submissionMode": "HTTPMode"},
    ),
    ("ray_jobs.spec", {f"{JOB}.runtimeEnvYAML": "a: ["}, {f"{JOB}.runtimeEnvYAML": "{}"}),
    ("ray_jobs.spec", {f"{OWN}.shutdownAfterJobFinishes": True}, {}),
    (
        "ray_jobs.spec",
        {f"{FIRST}.condition.ttlSeconds": 601},
        {f"{FIRST}.condition.ttlSeconds": 600},
    ),
    ("ray_jobs.spec", {f"{DELETE}.1.policy": "DeleteWorkers"}, {}),
    (
        "ray_jobs.spec",
        {
            f"{JOB}.deletionStrategy": {
                "deletionRules": [{"policy": "DeleteCluster", "condition": {"jobStatus": "FAILED"}}]
            }
        },
        {
            f"{JOB}.deletionStrategy": {
                "deletionRules": [{"policy": "DeleteSelf", "condition": {"jobStatus": "FAILED"}}]
            }
        },
    ),
    ("ray_jobs.schedule", {"ray_cron_job.spec.schedule": "CRON_TZ=UTC 0 3 * * *"}, {}),
    (
        "ray_jobs.schedule",
        {"ray_cron_job.spec.schedule": "0 3 32 * *"},
        {"ray_cron_job.spec.schedule": "0 3 31 * *"},
    ),
    ("ray_jobs.schedule", {"ray_cron_job.spec.timeZone": ""}, {"ray_cron_job.spec.timeZone": GONE}),
    ("ray_jobs.spec", {"ray_cron_job.spec.jobTemplate.backoffLimit": 1}, {}),
]
ROWS = SCHEMA + OPERATOR


@pytest.mark.parametrize(
    ("rule", "bad", "near"), ROWS, ids=[f"{row[0]}-{number}" for number, row in enumerate(ROWS)]
)
def test_a_fault_in_a_custom_resource_is_caught_and_its_nearest_miss_passes(
    rule: str, bad: Edits, near: Edits
) -> None:
    """The edit that breaks the rule is found under the rule's name; the other one is not."""
    assert rule in {finding.rule for finding in found(bad)}
    assert [str(finding) for finding in found(near)] == []
