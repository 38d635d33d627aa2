"""Each rule of pods catches a seeded fault in any pod, and lets the nearest harmless thing pass."""

import pytest

from tests.helm.good import CHAOS, GONE, HEAD, WORKER, Edits, found

H = f"{HEAD}.spec"
W = f"{WORKER}.spec"
C = f"{CHAOS}.spec"
HC = f"{H}.containers.0"
WC = f"{W}.containers.0"
CC = f"{C}.containers.0"
TEST = "test.spec"
SUBMITTER = "ray_job.spec.submitterPodTemplate.spec"
OWN = "own_job.spec.rayClusterSpec.workerGroupSpecs.0.template.spec"
AUTOSCALER = "service.spec.rayClusterConfig.autoscalerOptions"
INIT = {
    "name": "wait",
    "image": "tocsin:0.1.0",
    "imagePullPolicy": "IfNotPresent",
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
}
DEBUG = {**INIT, "name": "debug", "resources": {}}
DEBUG.pop("resources")

# rule, what breaks it, what nearly does
ROWS: list[tuple[str, Edits, Edits]] = [
    ("restricted.host_namespaces", {f"{H}.hostNetwork": True}, {f"{H}.hostNetwork": False}),
    ("restricted.host_namespaces", {f"{C}.hostPID": True}, {f"{C}.hostPID": False}),
    ("restricted.host_namespaces", {f"{SUBMITTER}.hostIPC": True}, {f"{SUBMITTER}.hostIPC": False}),
    (
        "restricted.volumes",
        {f"{W}.volumes.0": {"name": "shm", "hostPath": {"path": "/dev/shm"}}},
        {f"{W}.volumes.0": {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}},
    ),
    (
        "restricted.volumes",
        {f"{OWN}.volumes.0": {"name": "shm", "nfs": {"server": "a", "path": "/"}}},
        {
            f"{OWN}.volumes.0": {"name": "shm", "secret": {"secretName": "a"}},
            f"{OWN}.containers.0.volumeMounts.0": {
                "name": "shm",
                "mountPath": "/etc/a",
                "readOnly": True,
            },
        },
    ),
    (
        "restricted.sysctls",
        {f"{H}.securityContext.sysctls": [{"name": "kernel.msgmax", "value": "1"}]},
        {f"{H}.securityContext.sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]},
    ),
    (
        "restricted.app_armor",
        {f"{WC}.securityContext.appArmorProfile": {"type": "Unconfined"}},
        {},
    ),
    (
        "restricted.app_armor",
        {
            f"{HEAD}.metadata.annotations": {
                "container.apparmor.security.beta.kubernetes.io/ray-head": "unconfined"
            }
        },
        {
            f"{HEAD}.metadata.annotations": {
                "container.apparmor.security.beta.kubernetes.io/ray-head": "runtime/default"
            }
        },
    ),
    (
        "restricted.selinux",
        {f"{H}.securityContext.seLinuxOptions": {"type": "spc_t"}},
        {f"{H}.securityContext.seLinuxOptions": {"type": "container_t", "level": "s0"}},
    ),
    (
        "restricted.selinux",
        {f"{CC}.securityContext.seLinuxOptions": {"role": "sysadm_r"}},
        {f"{CC}.securityContext.seLinuxOptions": {"role": ""}},
    ),
    (
        "restricted.windows_host_process",
        {f"{H}.securityContext.windowsOptions": {"hostProcess": True}},
        {f"{H}.securityContext.windowsOptions": {"hostProcess": False}},
    ),
    ("restricted.pod_user", {f"{W}.securityContext.runAsUser": 0}, {}),
    ("restricted.pod_user", {f"{W}.securityContext.runAsNonRoot": False}, {}),
    (
        "restricted.pod_seccomp",
        {f"{W}.securityContext.seccompProfile": {"type": "Unconfined"}},
        {f"{W}.securityContext.seccompProfile": {"type": "Localhost", "localhostProfile": "a"}},
    ),
    (
        "restricted.privileged",
        {f"{HC}.securityContext.privileged": True},
        {f"{HC}.securityContext.privileged": False},
    ),
    ("restricted.escalation", {f"{WC}.securityContext.allowPrivilegeEscalation": GONE}, {}),
    ("restricted.escalation", {f"{AUTOSCALER}.securityContext": GONE}, {}),
    ("restricted.escalation", {f"{CC}.securityContext.allowPrivilegeEscalation": True}, {}),
    (
        "restricted.capabilities",
        {f"{CC}.securityContext.capabilities.drop": ["NET_RAW"]},
        {f"{CC}.securityContext.capabilities.drop": ["ALL", "NET_RAW"]},
    ),
    (
        "restricted.capabilities",
        {f"{CC}.securityContext.capabilities.add": ["SYS_PTRACE"]},
        {f"{CC}.securityContext.capabilities.add": ["NET_BIND_SERVICE"]},
    ),
    (
        "restricted.non_root",
        {f"{TEST}.securityContext.runAsNonRoot": GONE},
        {
            f"{TEST}.securityContext.runAsNonRoot": GONE,
            f"{TEST}.containers.0.securityContext.runAsNonRoot": True,
        },
    ),
    (
        "restricted.non_root",
        {f"{WC}.securityContext.runAsUser": 0},
        {f"{WC}.securityContext.runAsUser": 10001},
    ),
    (
        "restricted.seccomp",
        {f"{TEST}.securityContext.seccompProfile": GONE},
        {
            f"{TEST}.securityContext.seccompProfile": GONE,
            f"{TEST}.containers.0.securityContext.seccompProfile": {"type": "RuntimeDefault"},
        },
    ),
    (
        "restricted.seccomp",
        {f"{C}.initContainers": [{**INIT, "securityContext": {"seccompProfile": {"type": "U"}}}]},
        {f"{C}.initContainers": [INIT]},
    ),
    (
        "restricted.privileged",
        {f"{TEST}.ephemeralContainers": [{**DEBUG, "securityContext": {"privileged": True}}]},
        {f"{TEST}.initContainers": [INIT]},
    ),
    ("restricted.host_ports", {f"{HC}.ports.0.hostPort": 8000}, {f"{HC}.ports.0.hostPort": 0}),
    (
        "restricted.proc_mount",
        {f"{HC}.securityContext.procMount": "Unmasked"},
        {f"{HC}.securityContext.procMount": "Default"},
    ),
    (
        "restricted.probe_hosts",
        {f"{WC}.readinessProbe.httpGet.host": "169.254.169.254"},
        {f"{WC}.readinessProbe.httpGet.host": ""},
    ),
    (
        "restricted.probe_hosts",
        {f"{WC}.lifecycle.preStop": {"tcpSocket": {"host": "a", "port": 8000}}},
        {f"{WC}.lifecycle.preStop": {"httpGet": {"port": "serve"}}},
    ),
    ("places.temporary", {f"{HC}.volumeMounts.0.mountPath": "/tmpx"}, {}),
    ("house.read_only_root", {f"{WC}.securityContext.readOnlyRootFilesystem": False}, {}),
    ("house.user", {f"{H}.securityContext.fsGroup": GONE}, {}),
    ("house.user", {f"{C}.securityContext.runAsUser": 1000}, {}),
    (
        "house.memory",
        {f"{WC}.resources.requests.memory": "4Gi"},
        {f"{WC}.resources.requests.memory": "8192Mi"},
    ),
    ("house.memory", {f"{CC}.resources.limits": GONE}, {}),
    ("house.memory", {f"{AUTOSCALER}.resources": GONE}, {}),
    ("house.memory", {f"{HC}.resources.requests.cpu": GONE}, {}),
    ("house.probes", {f"{WC}.startupProbe": GONE}, {}),
    ("house.probes", {f"{HC}.livenessProbe": {}}, {}),
    ("house.image", {f"{HC}.image": "tocsin"}, {}),
    ("house.image", {f"{WC}.image": "a.example/tocsin:latest"}, {}),
    ("house.image", {f"{CC}.image": "Tocsin:1.0"}, {}),
    ("house.pull_policy", {f"{CC}.imagePullPolicy": GONE}, {f"{CC}.imagePullPolicy": "Never"}),
    ("house.token", {f"{W}.automountServiceAccountToken": True}, {}),
    ("house.token", {f"{TEST}.automountServiceAccountToken": GONE}, {}),
    ("house.service_account", {f"{W}.serviceAccountName": GONE}, {}),
    ("house.service_account", {f"{W}.serviceAccountName": "default"}, {}),
    ("house.labels", {f"{HEAD}.metadata.labels.[app.kubernetes.io/instance]": GONE}, {}),
    ("house.labels", {f"{HEAD}.metadata.labels.[helm.sh/chart]": "tocsin-0.1.0"}, {}),
    (
        "house.labels",
        {f"{WORKER}.metadata.annotations": {"checksum/config": "1"}},
        {f"{WORKER}.metadata.annotations": {"example.com/checksum": "1"}},
    ),
    (
        "house.secrets",
        {f"{HC}.env.0": {"name": "REDIS_PW_TOKEN", "value": "x"}},
        {f"{HC}.env.0": {"name": "TOKENS_MAX", "value": ""}},
    ),
    ("house.labels", {f"{HEAD}.metadata.labels.[app.kubernetes.io/component]": "worker"}, {}),
    ("house.scratch", {f"{W}.volumes.0.emptyDir.sizeLimit": GONE}, {}),
    ("house.no_shell", {f"{CC}.command": ["/bin/sh", "-c", "tocsin"]}, {f"{CC}.args": ["-c"]}),
    (
        "house.user",
        {f"{CC}.securityContext.runAsGroup": 0},
        {f"{CC}.securityContext.runAsGroup": 10001},
    ),
    (
        "house.mounts",
        {f"{HC}.volumeMounts.1.readOnly": GONE},
        {f"{HC}.volumeMounts.0.readOnly": False},
    ),
    (
        "house.mounts",
        {f"{WC}.volumeMounts.1.readOnly": False},
        {
            f"{WC}.volumeMounts.1": {"name": "model", "mountPath": "/var/lib/tocsin/runs"},
            f"{W}.volumes.1.persistentVolumeClaim.readOnly": GONE,
        },
    ),
    ("house.mounts", {f"{W}.volumes.0.emptyDir.medium": GONE}, {}),
    ("house.user", {f"{C}.securityContext.fsGroupChangePolicy": "Always"}, {}),
    (
        "places.patience",
        {f"{HC}.startupProbe.failureThreshold": 6},
        {f"{HC}.startupProbe.failureThreshold": 7},
    ),
    ("places.patience", {f"{HC}.livenessProbe.failureThreshold": GONE}, {}),
    ("house.claims", {f"{W}.volumes.1.persistentVolumeClaim.readOnly": False}, {}),
    (
        "house.claims",
        {
            f"{WC}.volumeMounts.1.mountPath": "/var/lib/tocsin",
            f"{WC}.volumeMounts.1.readOnly": GONE,
        },
        {
            f"{WC}.volumeMounts.1.mountPath": "/var/lib/tocsin",
            f"{WC}.volumeMounts.1.readOnly": GONE,
            f"{W}.volumes.1.persistentVolumeClaim.readOnly": GONE,
        },
    ),
    ("house.service_links", {f"{W}.enableServiceLinks": GONE}, {}),
    ("house.labels", {f"{WORKER}.metadata.labels.[app.kubernetes.io/name]": "kuberay"}, {}),
    (
        "placement.spread",
        {f"{W}.topologySpreadConstraints.0.topologyKey": "kubernetes.io/host"},
        {f"{W}.topologySpreadConstraints.0.topologyKey": "topology.kubernetes.io/zone"},
    ),
    ("containers.names", {f"{CC}.name": "Chaos"}, {f"{CC}.name": "chaos-1"}),
    ("containers.names", {f"{C}.initContainers": [{**INIT, "name": "chaos"}]}, {}),
    ("containers.names", {f"{W}.containers": []}, {}),
    ("containers.image", {f"{HC}.image": " tocsin:1"}, {}),
    ("containers.image", {f"{HC}.image": GONE}, {}),
    ("containers.image", {f"{HC}.imagePullPolicy": "Sometimes"}, {}),
    ("containers.ports", {f"{HC}.ports.0.containerPort": 70000}, {}),
    ("containers.ports", {f"{HC}.ports.0.name": "serve-http-metrics"}, {}),
    ("containers.ports", {f"{HC}.ports.1.containerPort": 8000}, {}),
    (
        "containers.ports",
        {f"{CC}.ports.0.protocol": "HTTP"},
        {f"{CC}.ports.1": {"containerPort": 9465, "protocol": "TCP", "name": "more"}},
    ),
    (
        "containers.port_names",
        {f"{C}.initContainers": [{**INIT, "ports": [{"name": "metrics", "containerPort": 1}]}]},
        {f"{C}.initContainers": [{**INIT, "ports": [{"name": "other", "containerPort": 1}]}]},
    ),
    ("containers.env", {f"{HC}.env.0.name": "9LIVES"}, {f"{HC}.env.0.name": "LIVES_9"}),
    ("containers.env", {f"{HC}.env.4": {"name": "PROFILE", "value": "off"}}, {}),
    ("containers.env", {f"{HC}.env.1.value": "clear"}, {}),
    ("containers.env", {f"{HC}.env.1.valueFrom.fieldRef": {"fieldPath": "metadata.uid"}}, {}),
    ("containers.env", {f"{HC}.env.1.valueFrom.secretKeyRef.key": ""}, {}),
    ("containers.env", {f"{HC}.env.1.valueFrom.secretKeyRef.name": ""}, {}),
    (
        "containers.env",
        {f"{HC}.env.2.valueFrom.fieldRef.fieldPath": "metadata.nom"},
        {f"{HC}.env.2.valueFrom.fieldRef.fieldPath": "status.podIP"},
    ),
    ("containers.env", {f"{HC}.envFrom": [{"prefix": "A"}]}, {}),
    ("containers.mounts", {f"{HC}.volumeMounts.0.name": "temp"}, {}),
    ("containers.mounts", {f"{HC}.volumeMounts.0.mountPath": "tmp"}, {}),
    ("containers.mounts", {f"{HC}.volumeMounts.1.mountPath": "/tmp"}, {}),
    (
        "containers.mounts",
        {f"{WC}.volumeMounts.1.subPath": "../etc"},
        {f"{WC}.volumeMounts.1.subPath": "a..b/c"},
    ),
    ("containers.probes", {f"{WC}.readinessProbe.httpGet.port": "web"}, {}),
    (
        "containers.probes",
        {f"{WC}.readinessProbe.httpGet.port": 8001},
        {f"{WC}.readinessProbe.httpGet.port": 8000},
    ),
    ("containers.probes", {f"{WC}.readinessProbe.tcpSocket": {"port": 8000}}, {}),
    ("containers.probes", {f"{WC}.readinessProbe.periodSeconds": 0}, {}),
    (
        "containers.probes",
        {f"{WC}.livenessProbe.successThreshold": 2},
        {f"{WC}.readinessProbe.successThreshold": 2},
    ),
    ("containers.probes", {f"{WC}.livenessProbe.httpGet.path": "healthz"}, {}),
    ("containers.probes", {f"{WC}.livenessProbe.httpGet.scheme": "http"}, {}),
    ("containers.probes", {f"{WC}.lifecycle.preStop.exec.command": []}, {}),
    (
        "containers.probes",
        {f"{C}.initContainers": [{**INIT, "readinessProbe": {"exec": {"command": ["a"]}}}]},
        {},
    ),
    ("containers.resources", {f"{HC}.resources.requests.cpu": "1 core"}, {}),
    (
        "containers.resources",
        {f"{HC}.resources.requests.cpu": "3", f"{HC}.resources.limits.cpu": "2500m"},
        {f"{HC}.resources.requests.cpu": "2.5", f"{HC}.resources.limits.cpu": "2500m"},
    ),
    ("containers.resources", {f"{WC}.resources.requests.[nvidia.com/gpu]": 2}, {}),
    (
        "containers.resources",
        {
            f"{WC}.resources.requests.[nvidia.com/gpu]": 0.5,
            f"{WC}.resources.limits.[nvidia.com/gpu]": 0.5,
        },
        {},
    ),
    ("containers.resources", {f"{WC}.resources.limits.gpu": 1}, {}),
    ("placement.volumes", {f"{H}.volumes.1.name": "tmp"}, {}),
    ("placement.volumes", {f"{H}.volumes.0.secret": {"secretName": "a"}}, {}),
    ("placement.volumes", {f"{H}.volumes.2": {"name": "b", "emptyDir": {"sizeLimit": "1"}}}, {}),
    ("placement.volumes", {f"{W}.volumes.0.emptyDir.medium": "memory"}, {}),
    ("placement.volumes", {f"{W}.volumes.0.emptyDir.sizeLimit": "1GB"}, {}),
    ("placement.volumes", {f"{W}.volumes.1.persistentVolumeClaim.claimName": ""}, {}),
    (
        "placement.volumes",
        {f"{C}.volumes.0.configMap.defaultMode": 644},
        {f"{C}.volumes.0.configMap.defaultMode": 0o644},
    ),
    ("placement.volumes", {f"{C}.volumes.0.configMap.items.0.path": "/policy.yaml"}, {}),
    ("placement.policies", {f"{C}.restartPolicy": "never"}, {}),
    ("placement.policies", {f"{W}.dnsPolicy": "Cluster"}, {f"{W}.dnsPolicy": "Default"}),
    (
        "placement.policies",
        {f"{W}.terminationGracePeriodSeconds": -1},
        {f"{W}.terminationGracePeriodSeconds": 0},
    ),
    ("placement.policies", {f"{C}.activeDeadlineSeconds": 0}, {f"{C}.activeDeadlineSeconds": 1}),
    ("placement.names", {f"{W}.priorityClassName": "Serving"}, {}),
    (
        "placement.names",
        {f"{W}.imagePullSecrets": [{"name": ""}]},
        {f"{W}.imagePullSecrets": [{"name": "registry"}]},
    ),
    ("placement.names", {f"{W}.nodeSelector.pool": "a b"}, {f"{W}.nodeSelector.pool": "a.b"}),
    ("placement.names", {f"{WORKER}.metadata.annotations": {"a": 1}}, {}),
    ("placement.user_ids", {f"{W}.securityContext.runAsUser": -1}, {}),
    (
        "placement.user_ids",
        {f"{W}.securityContext.fsGroupChangePolicy": "Never"},
        {f"{W}.securityContext.fsGroupChangePolicy": "OnRootMismatch"},
    ),
    ("placement.tolerations", {f"{W}.tolerations.0.operator": "Exist"}, {}),
    ("placement.tolerations", {f"{W}.tolerations.0.value": "true"}, {}),
    ("placement.tolerations", {f"{W}.tolerations.1.key": GONE}, {}),
    (
        "placement.tolerations",
        {f"{W}.tolerations.0.effect": "NoSched"},
        {f"{W}.tolerations.0.effect": ""},
    ),
    ("placement.tolerations", {f"{W}.tolerations.1.effect": "NoSchedule"}, {}),
    (
        "placement.spread",
        {f"{W}.topologySpreadConstraints.0.maxSkew": 0},
        {f"{W}.topologySpreadConstraints.0.maxSkew": 5},
    ),
    ("placement.spread", {f"{W}.topologySpreadConstraints.0.whenUnsatisfiable": "Never"}, {}),
    (
        "placement.spread",
        {f"{W}.topologySpreadConstraints.0.labelSelector": {"matchLabels": {"ray.io/group": "b"}}},
        {f"{W}.topologySpreadConstraints.0.labelSelector.matchLabels.[ray.io/group]": "checked"},
    ),
    (
        "placement.affinity",
        {
            f"{W}.affinity.nodeAffinity."
            "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.0.matchExpressions.0"
            ".operator": "Exists"
        },
        {
            f"{W}.affinity.nodeAffinity."
            "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.0.matchExpressions.0"
            ".operator": "NotIn"
        },
    ),
    (
        "placement.affinity",
        {
            f"{W}.affinity.nodeAffinity."
            "preferredDuringSchedulingIgnoredDuringExecution.0.weight": 101
        },
        {
            f"{W}.affinity.nodeAffinity."
            "preferredDuringSchedulingIgnoredDuringExecution.0.weight": 100
        },
    ),
    (
        "placement.affinity",
        {
            f"{W}.affinity.nodeAffinity."
            "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms": []
        },
        {},
    ),
]


@pytest.mark.parametrize(
    ("rule", "bad", "near"), ROWS, ids=[f"{row[0]}-{number}" for number, row in enumerate(ROWS)]
)
def test_a_fault_in_a_pod_is_caught_and_its_nearest_miss_passes(
    rule: str, bad: Edits, near: Edits
) -> None:
    """The edit that breaks the rule is found under the rule's name; the other one is not."""
    assert rule in {finding.rule for finding in found(bad)}
    assert [str(finding) for finding in found(near)] == []


@pytest.mark.parametrize(
    "reference",
    ["tocsin:1", "a.example:5000/llm/tocsin:v1", "a.example/t@sha256:" + "0123456789abcdef" * 4],
)
def test_an_image_by_tag_or_digest_is_one_that_stays(reference: str) -> None:
    """A port is no tag, and a digest needs none; only that it is another image is found."""
    rules = {finding.rule for finding in found({f"{HC}.image": reference})}
    assert rules == {"house.one_image"}


def test_the_good_release_is_good() -> None:
    """Without it no row would prove anything."""
    assert [str(finding) for finding in found()] == []
