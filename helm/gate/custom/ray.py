"""RayCluster, RayService, RayJob and RayCronJob: the fields that the chart may write.

Written from the API reference of KubeRay 1.7 (ray.io/v1). Fields behind alpha gates of the operator
are left out on purpose, so that a chart that writes one is told.
"""

from tocsin.helm.gate.custom.declare import (
    COUNT,
    FLAG,
    LABELS,
    POD_TEMPLATE,
    POSITIVE,
    TEXT,
    WORD,
    Schema,
    closed,
    listed,
    one_of,
    resource,
)

VERSION = "ray.io/v1"
_SECRET_KEY = closed({"name!": WORD, "key!": WORD, "optional": FLAG})
_REDIS_CREDENTIAL = closed(
    {"value": TEXT, "valueFrom": closed({"secretKeyRef!": _SECRET_KEY})}, least=1
)
_PERCENT: Schema = {"type": "integer", "minimum": 0, "maximum": 100}

GCS_FAULT_TOLERANCE = closed(
    {
        "backend": one_of("redis"),
        "redisAddress!": WORD,
        "redisUsername": _REDIS_CREDENTIAL,
        "redisPassword": _REDIS_CREDENTIAL,
        "externalStorageNamespace": WORD,
    }
)
AUTOSCALER = closed(
    {
        "version": one_of("v1", "v2"),
        "idleTimeoutSeconds": COUNT,
        "upscalingMode": one_of("Default", "Aggressive", "Conservative"),
        "image": WORD,
        "imagePullPolicy": one_of("Always", "IfNotPresent", "Never"),
        # As of a container: the rules of containers see them through the pod.
        "env": listed({"type": "object"}),
        "resources": {"type": "object"},
        "securityContext": {"type": "object"},
        "volumeMounts": listed({"type": "object"}),
    }
)
HEAD_GROUP = closed(
    {
        "rayStartParams": LABELS,
        "labels": LABELS,
        "resources": LABELS,
        "serviceType": one_of("ClusterIP", "NodePort", "LoadBalancer"),
        "template!": POD_TEMPLATE,
    }
)
WORKER_GROUP = closed(
    {
        "groupName!": WORD,
        "replicas": COUNT,
        "minReplicas!": COUNT,
        "maxReplicas!": COUNT,
        "numOfHosts": POSITIVE,
        "idleTimeoutSeconds": COUNT,
        "suspend": FLAG,
        "rayStartParams": LABELS,
        "labels": LABELS,
        "resources": LABELS,
        "template!": POD_TEMPLATE,
    }
)
AUTH = closed({"mode!": one_of("disabled", "token"), "secretName": WORD})
_CLUSTER_FIELDS: dict[str, Schema] = {
    "rayVersion": WORD,
    "enableInTreeAutoscaling": FLAG,
    "autoscalerOptions": AUTOSCALER,
    "gcsFaultToleranceOptions": GCS_FAULT_TOLERANCE,
    "authOptions": AUTH,
    "headServiceAnnotations": LABELS,
    "headGroupSpec!": HEAD_GROUP,
    "workerGroupSpecs": listed(WORKER_GROUP, by="groupName"),
}
CLUSTER = closed(_CLUSTER_FIELDS)
STANDING_CLUSTER = closed(
    {
        **_CLUSTER_FIELDS,
        "suspend": FLAG,
        "managedBy": one_of("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"),
        "upgradeStrategy": closed({"type!": one_of("Recreate", "None")}),
    }
)
SERVICE = closed(
    {
        "serveConfigV2!": WORD,
        "rayClusterConfig!": CLUSTER,
        "upgradeStrategy": closed(
            {
                "type!": one_of("NewCluster", "NewClusterWithIncrementalUpgrade", "None"),
                "clusterUpgradeOptions": closed(
                    {
                        "gatewayClassName!": WORD,
                        "intervalSeconds!": POSITIVE,
                        "stepSizePercent!": _PERCENT,
                        "maxSurgePercent": _PERCENT,
                    }
                ),
            }
        ),
        "excludeHeadPodFromServeSvc": FLAG,
        "rayClusterDeletionDelaySeconds": COUNT,
        "serviceUnhealthySecondThreshold": COUNT,
        "deploymentUnhealthySecondThreshold": COUNT,
        "suspend": FLAG,
        "managedBy": one_of("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"),
    }
)
_POLICY = one_of("DeleteCluster", "DeleteWorkers", "DeleteSelf", "DeleteNone")
_CONDITION = closed(
    {
        "jobStatus": one_of("SUCCEEDED", "FAILED"),
        "jobDeploymentStatus": one_of("Failed"),
        "ttlSeconds": COUNT,
    },
    rules={"has(self.jobStatus) != has(self.jobDeploymentStatus)": "one status, of either sort"},
)
DELETION = closed(
    {
        "deletionRules": listed(closed({"policy!": _POLICY, "condition!": _CONDITION}), least=1),
        "onSuccess": closed({"policy!": _POLICY}),
        "onFailure": closed({"policy!": _POLICY}),
    },
    rules={
        "!has(self.deletionRules) || !(has(self.onSuccess) || has(self.onFailure))": (
            "deletionRules, or the older two, not both"
        ),
        "has(self.deletionRules) || (has(self.onSuccess) && has(self.onFailure))": (
            "deletionRules, or onSuccess and onFailure"
        ),
    },
)
JOB = closed(
    {
        "entrypoint!": WORD,
        "clusterSelector": LABELS,
        "rayClusterSpec": CLUSTER,
        # The API takes any word here; only the operator refuses the wrong ones.
        "submissionMode!": one_of("K8sJobMode", "HTTPMode", "SidecarMode"),
        "submitterPodTemplate": POD_TEMPLATE,
        "submitterConfig": closed({"backoffLimit!": COUNT}),
        "jobId": WORD,
        "metadata": LABELS,
        "runtimeEnvYAML": TEXT,
        "entrypointNumCpus": {"type": "number", "minimum": 0},
        "entrypointNumGpus": {"type": "number", "minimum": 0},
        "entrypointResources": WORD,
        "activeDeadlineSeconds": POSITIVE,
        "preRunningDeadlineSeconds": POSITIVE,
        "backoffLimit": COUNT,
        "shutdownAfterJobFinishes": FLAG,
        "ttlSecondsAfterFinished": COUNT,
        "deletionStrategy": DELETION,
        "suspend": FLAG,
        "managedBy": one_of("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"),
    }
)
CRON_JOB = closed({"schedule!": WORD, "timeZone": WORD, "suspend": FLAG, "jobTemplate!": JOB})

RESOURCES: dict[tuple[str, str], Schema] = {
    (VERSION, "RayCluster"): resource(VERSION, "RayCluster", STANDING_CLUSTER),
    (VERSION, "RayService"): resource(VERSION, "RayService", SERVICE),
    (VERSION, "RayJob"): resource(VERSION, "RayJob", JOB),
    (VERSION, "RayCronJob"): resource(VERSION, "RayCronJob", CRON_JOB),
}
