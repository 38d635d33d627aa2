"""Each rule of objects and of a whole release catches its fault and spares the nearest miss."""

import pytest

from tests.helm.good import GONE, HEAD, Edits, found, manifests
from tocsin.helm.gate.findings import findings
from tocsin.helm.gate.manifest import documents, read
from tocsin.helm.gate.rules.access import cluster_wide_pairs

LABEL = "metadata.labels.[app.kubernetes.io/instance]"
CLUSTER_ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "rules": [{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list"]}],
}
ROLE_RULE = "role.rules.0"
ALERT = "rules.spec.groups.0.rules.1"
CONDITION = "admission.spec.validations.0.expression"
PODS = "oldObject.metadata.labels"
TARGET = "tocsin.dev/chaos-target"
HOOKS = "test.metadata.annotations"
PART = "metadata.labels.[app.kubernetes.io/component]"
SLACK = {"apiURL": {"name": "people", "key": "slack"}}
SLACK_TOLD = {**SLACK, "sendResolved": True}
ENDPOINT = "monitor.spec.podMetricsEndpoints.0"
INGRESS = "policy.spec.ingress.0"

ALLOW_ALL = {"namespaceSelector": {}}
RESOURCES = "admission.spec.matchConstraints.resourceRules"

ROWS: list[tuple[str, Edits, Edits]] = [
    ("house.one_image", {"test.spec.containers.0.image": "tocsin:0.1.1"}, {}),
    ("workloads.pod", {"test.spec.restartPolicy": GONE}, {}),
    ("workloads.job", {"job.spec.activeDeadlineSeconds": GONE}, {}),
    ("workloads.cron_job", {"cron_job.spec.jobTemplate.metadata": GONE}, {}),
    ("references.selectors", {"monitor.spec.selector.matchExpressions": GONE}, {}),
    (
        "metadata.numbers",
        {"job.spec.activeDeadlineSeconds": 1 << 31},
        {"job.spec.activeDeadlineSeconds": (1 << 31) - 1},
    ),
    ("metadata.chart", {"job.metadata.labels.[helm.sh/chart]": "tocsin-0.2.0"}, {}),
    (
        "metadata.labels",
        {"job.metadata.labels.[app.kubernetes.io/component]": "chaoz"},
        {"job.metadata.labels.[app.kubernetes.io/component]": "chaos"},
    ),
    ("metadata.labels", {"job.metadata.labels.[app.kubernetes.io/managed-by]": "me"}, {}),
    ("network.policy", {f"{INGRESS}.from": GONE}, {}),
    (
        "network.policy",
        {"policy.spec.egress.0": {}},
        {"policy.spec.egress.0": {"ports": [{"port": 443}]}},
    ),
    (
        "network.width",
        {"policy.spec.podSelector.matchExpressions": GONE},
        {
            "policy.spec.podSelector.matchExpressions": GONE,
            "policy.spec.ingress": GONE,
            "policy.spec.egress": GONE,
        },
    ),
    (
        "network.width",
        {"policy.spec.ingress.1.from.0": ALLOW_ALL},
        {f"{INGRESS}.from.0": ALLOW_ALL},
    ),
    ("network.width", {"policy.spec.ingress.1.ports": GONE}, {}),
    (
        "network.width",
        {"policy.spec.ingress.1.from.0.namespaceSelector.matchLabels": {"name": "monitoring"}},
        {},
    ),
    (
        "network.width",
        {f"{INGRESS}.from.0.podSelector.matchLabels.[app.kubernetes.io/component]": GONE},
        {},
    ),
    (
        "workloads.deployment",
        {"deployment.spec.selector.matchLabels.[app.kubernetes.io/component]": "head"},
        {},
    ),
    ("workloads.deployment", {"deployment.spec.selector.matchLabels": {"a": "b"}}, {}),
    (
        "workloads.deployment",
        {"deployment.spec.strategy.type": "Rolling"},
        {"deployment.spec.strategy.type": "RollingUpdate"},
    ),
    (
        "workloads.deployment",
        {"deployment.spec.template.spec.restartPolicy": "Never"},
        {"deployment.spec.template.spec.restartPolicy": "Always"},
    ),
    ("workloads.deployment", {"deployment.spec.replicas": -1}, {"deployment.spec.replicas": 2}),
    (
        "workloads.service",
        {"pod_service.spec.ports.0.protocol": "HTTP"},
        {"pod_service.spec.ports.0.protocol": "TCP"},
    ),
    ("workloads.data", {"config.data": GONE}, {}),
    (
        "workloads.cron_job",
        {"cron_job.spec.timeZone": "Etc/UTCC"},
        {"cron_job.spec.timeZone": "Europe/Zurich"},
    ),
    (
        "admission.labels",
        {CONDITION: f"'tocsin.dev/target' in {PODS} && {PODS}['tocsin.dev/target'] == 'true'"},
        {CONDITION: f"'{TARGET}' in {PODS} && {PODS}['{TARGET}'] == 'true'"},
    ),
    ("admission.labels", {CONDITION: f"{PODS}['{TARGET}'] == 'true'"}, {}),
    ("admission.policy", {"admission.spec.failurePolicy": "Ignore"}, {}),
    ("admission.policy", {"admission.spec.validations": []}, {}),
    ("admission.policy", {"admission.spec.matchConditions": GONE}, {}),
    ("admission.policy", {"admission.spec.validations.0.message": GONE}, {}),
    (
        "admission.policy",
        {"admission.spec.validations.0.reason": "Because"},
        {"admission.spec.validations.0.reason": "Invalid"},
    ),
    ("admission.policy", {"admission.spec.matchConstraints": GONE}, {}),
    (
        "admission.policy",
        {f"{RESOURCES}.0.operations": ["DELET"]},
        {f"{RESOURCES}.0.operations": ["DELETE", "UPDATE"]},
    ),
    ("admission.policy", {f"{RESOURCES}.0.resources": ["*"]}, {}),
    ("admission.policy", {f"{RESOURCES}.0.scope": "*"}, {f"{RESOURCES}.0.scope": "Namespaced"}),
    ("admission.bound", {"admission_binding.spec.policyName": "tocsin-chaos"}, {}),
    ("admission.bound", {"admission_binding.spec.validationActions": ["Warn"]}, {}),
    (
        "admission.bound",
        {"admission_binding": GONE},
        {"admission_binding": GONE, "admission": GONE},
    ),
    (
        "admission.own",
        {CONDITION: "request.namespace == 'elsewhere'"},
        {
            CONDITION: "request.namespace == 'tocsin-demo'",
            "admission.spec.validations.0.message": "demo deletes pods of tocsin-demo only",
        },
    ),
    (
        "admission.own",
        {CONDITION: "request.namespace == 'tocsin-demo'"},
        {},
    ),
    (
        "admission.own",
        {
            "admission.spec.matchConditions.0.expression": "request.userInfo.username == "
            "'system:serviceaccount:elsewhere:demo-chaos'"
        },
        {},
    ),
    ("admission.policy", {"admission.spec.validations.0.reason": GONE}, {}),
    ("places.tests", {f"{HOOKS}.[helm.sh/hook-delete-policy]": "hook-succeeded"}, {}),
    ("places.tests", {f"{HOOKS}.[helm.sh/hook-delete-policy]": GONE}, {}),
    (
        "places.stuck",
        {f"budget.{PART}": "worker", "budget.spec.unhealthyPodEvictionPolicy": GONE},
        {f"budget.{PART}": "worker"},
    ),
    (
        "places.resolved",
        {"routes.spec.receivers.0": {"name": "page", "slackConfigs": [SLACK]}},
        {"routes.spec.receivers.0": {"name": "page", "slackConfigs": [SLACK_TOLD]}},
    ),
    ("places.scraped", {f"{ENDPOINT}.filterRunning": False}, {f"{ENDPOINT}.filterRunning": True}),
    ("places.scraped", {f"{ENDPOINT}.honorLabels": True}, {f"{ENDPOINT}.honorLabels": False}),
    (
        "places.keys",
        {"job.metadata.annotations": {"tocsin.dev/rnu": "first"}},
        {"job.metadata.annotations": {"tocsin.dev/run": "first", "example.com/rnu": "x"}},
    ),
    (
        "places.keys",
        {
            "monitor.spec.selector.matchExpressions.1": {
                "key": "app.kubernetes.io/part",
                "operator": "Exists",
            }
        },
        {
            "monitor.spec.selector.matchExpressions.1": {
                "key": "app.kubernetes.io/name",
                "operator": "Exists",
            }
        },
    ),
    (
        "places.alerts",
        {
            "rules.spec.groups.0.rules.1.labels": {
                "severity": "P0",
                "release": "other",
                "namespace": "tocsin-demo",
            }
        },
        {
            "rules.spec.groups.0.rules.1.labels": {
                "severity": "P0",
                "release": "demo",
                "namespace": "tocsin-demo",
            }
        },
    ),
    (
        "places.resolved",
        {"routes.spec.receivers.0.pagerdutyConfigs.0.sendResolved": False},
        {"routes.spec.receivers.0.pagerdutyConfigs.0.sendResolved": True},
    ),
    ("access.binding_name", {"binding.metadata.name": "demo-head-2"}, {}),
    (
        "house.protocol",
        {"policy.spec.ingress.0.ports.0.protocol": "UDP"},
        {"policy.spec.egress.0.ports.0.protocol": "UDP"},
    ),
    ("access.named", {"lease": GONE}, {}),
    ("access.named", {"role.rules.1.resourceNames": ["default"]}, {}),
    (
        "access.needs",
        {"role.rules.0.verbs": ["get", "delete"]},
        {"role.rules.0.verbs": ["get", "list", "watch"]},
    ),
    (
        "access.needs",
        {"cron_job.spec.jobTemplate.spec.template.spec.automountServiceAccountToken": False},
        {},
    ),
    (
        "references.budgets",
        {
            "extra": {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "spec": {
                    "minAvailable": 1,
                    "selector": {
                        "matchLabels": {
                            "app.kubernetes.io/name": "tocsin",
                            "app.kubernetes.io/instance": "demo",
                        }
                    },
                },
            }
        },
        {},
    ),
    (
        "references.service_ports",
        {"pod_service.spec.ports.0.targetPort": "web"},
        {"pod_service.spec.ports.0.targetPort": "metrics"},
    ),
    ("references.monitor_ports", {"monitor.spec.namespaceSelector.matchNames": ["default"]}, {}),
    ("metadata.nulls", {"config.metadata.annotations": None}, {"config.metadata.annotations": {}}),
    ("metadata.nulls", {f"{HEAD}.spec.containers.0.env.0.value": None}, {}),
    ("metadata.name", {"service.metadata.name": "1demo"}, {"service.metadata.name": "d1emo"}),
    ("metadata.name", {"config.metadata.name": "Demo"}, {}),
    ("metadata.name", {"role.metadata.name": "a/b"}, {}),
    ("metadata.name", {"cron_job.metadata.name": "c" * 53}, {"cron_job.metadata.name": "c" * 52}),
    ("metadata.name", {"job.metadata.name": "c" * 64}, {"job.metadata.name": "c" * 63}),
    ("metadata.name", {"pod_service.kind": ""}, {}),
    ("metadata.labels", {"job.metadata.labels.[helm.sh/chart]": GONE}, {}),
    ("metadata.labels", {"job.metadata.labels.[helm.sh/chart]": "a b"}, {}),
    ("metadata.labels", {"job.metadata.labels.[app.kubernetes.io/name]": "ray"}, {}),
    (
        "metadata.labels",
        {"job.metadata.annotations": {"a": 1}},
        {"job.metadata.annotations": {"example.com/a": "1"}},
    ),
    ("metadata.labels", {"config.metadata.annotations": {"a": "x" * (1 << 18)}}, {}),
    (
        "metadata.hooks",
        {"job.metadata.annotations": {"helm.sh/hook": "post-install"}},
        {"job.metadata.annotations": {"helm.sh/hook": "test"}},
    ),
    ("metadata.hooks", {"cron_job.metadata.annotations": {"helm.sh/hook": "test"}}, {}),
    ("metadata.hooks", {"config.metadata.annotations": {"helm.sh/resource-policy": "keep"}}, {}),
    ("metadata.hooks", {"service.metadata.finalizers": ["tocsin.dev/heal"]}, {}),
    ("metadata.scope", {"binding.kind": "ClusterRoleBinding"}, {}),
    ("metadata.scope", {"admission.metadata.namespace": "tocsin-demo"}, {}),
    ("metadata.scope", {"extra": {"apiVersion": "v1", "kind": "List"}}, {}),
    ("metadata.namespace", {"role.metadata.namespace": "kube-system"}, {}),
    ("metadata.namespace", {"role.metadata.namespace": GONE}, {}),
    ("metadata.once", {"ray_job.metadata.name": "demo-own"}, {"job.metadata.name": "demo-own"}),
    ("metadata.instance", {f"job.{LABEL}": "other"}, {}),
    ("metadata.instance", {f"{HEAD}.{LABEL}": "other"}, {}),
    ("builtin.schema", {"job.spec.backofLimit": 1}, {"job.spec.parallelism": 1}),
    ("builtin.schema", {"config.data": {"policy.yaml": 1}}, {}),
    ("builtin.schema", {"job.apiVersion": "batch/v2"}, {}),
    ("builtin.schema", {f"{HEAD}.spec.containers.0.volumeMount": []}, {}),
    # Kubernetes 1.28 has no such field, 1.33 has.
    ("builtin.schema", {f"{HEAD}.spec.resources": {"limits": {"cpu": "1"}}}, {}),
    (
        "workloads.job",
        {"job.spec.template.spec.restartPolicy": "Always"},
        {"job.spec.template.spec.restartPolicy": "OnFailure", "job.spec.podFailurePolicy": GONE},
    ),
    ("workloads.job", {"job.spec.template.spec.restartPolicy": GONE}, {}),
    ("workloads.job", {"cron_job.spec.jobTemplate.spec.template.spec.restartPolicy": "Always"}, {}),
    ("workloads.job", {"job.spec.selector": {"matchLabels": {"a": "b"}}}, {}),
    ("workloads.job", {"job.spec.backoffLimit": -1}, {"job.spec.backoffLimit": 6}),
    ("workloads.job", {"job.spec.activeDeadlineSeconds": 0}, {"job.spec.activeDeadlineSeconds": 1}),
    (
        "workloads.job",
        {"job.spec.completionMode": "indexed"},
        {"job.spec.completionMode": "NonIndexed"},
    ),
    (
        "workloads.job",
        {"job.spec.podReplacementPolicy": "Always"},
        {"job.spec.podReplacementPolicy": "Failed"},
    ),
    (
        "workloads.job",
        {"job.spec.podFailurePolicy.rules.0.action": "Fail"},
        {"job.spec.podFailurePolicy.rules.0.action": "Count"},
    ),
    (
        "workloads.job",
        {"job.spec.podFailurePolicy.rules.0.onExitCodes": {"operator": "In", "values": [0, 4]}},
        {},
    ),
    (
        "workloads.job",
        {
            "job.spec.podFailurePolicy.rules.0": {
                "action": "FailJob",
                "onExitCodes": {"containerName": "driver", "operator": "In", "values": [4]},
            }
        },
        {},
    ),
    ("workloads.job", {"job.spec.template.spec.restartPolicy": "OnFailure"}, {}),
    (
        "workloads.cron_job",
        {"cron_job.spec.schedule": "0 25 * * *"},
        {"cron_job.spec.schedule": "0 23 * * *"},
    ),
    (
        "workloads.cron_job",
        {"cron_job.spec.schedule": "TZ=UTC 0 3 * * *"},
        {"cron_job.spec.schedule": "@daily"},
    ),
    (
        "workloads.cron_job",
        {"cron_job.spec.schedule": "0 3 * *"},
        {"cron_job.spec.schedule": "0 3 1,15 */2 sun-wed"},
    ),
    ("workloads.cron_job", {"cron_job.spec.timeZone": ""}, {}),
    (
        "workloads.cron_job",
        {"cron_job.spec.concurrencyPolicy": "Allow"},
        {"cron_job.spec.concurrencyPolicy": "Replace"},
    ),
    (
        "workloads.cron_job",
        {"cron_job.spec.failedJobsHistoryLimit": -1},
        {"cron_job.spec.failedJobsHistoryLimit": 0},
    ),
    (
        "workloads.service",
        {"pod_service.spec.type": "Cluster"},
        {"pod_service.spec.type": "NodePort"},
    ),
    ("workloads.service", {"pod_service.spec.ports": []}, {}),
    ("workloads.service", {"pod_service.spec.ports.1.name": "serve"}, {}),
    ("workloads.service", {"pod_service.spec.ports.0.port": 0}, {}),
    (
        "workloads.service",
        {"pod_service.spec.ports.0.targetPort": "a_b"},
        {"pod_service.spec.ports.0.targetPort": 8000},
    ),
    ("workloads.data", {"config.data.[a/b]": "x"}, {"config.data.[a_b]": "x"}),
    (
        "workloads.data",
        {"config.data.more": "x" * (1 << 20)},
        {"config.data.more": "x" * (1 << 19)},
    ),
    ("workloads.data", {"config.kind": "Secret"}, {}),
    ("network.policy", {"policy.spec.policyTypes": GONE}, {}),
    (
        "network.policy",
        {"policy.spec.policyTypes": ["Ingress"]},
        {"policy.spec.policyTypes": ["Ingress"], "policy.spec.egress": GONE},
    ),
    ("network.policy", {"policy.spec.policyTypes": ["ingress", "Egress"]}, {}),
    ("network.policy", {"policy.spec.podSelector": GONE}, {}),
    ("network.policy", {f"{INGRESS}.from": []}, {}),
    (
        "network.policy",
        {f"{INGRESS}.from.1.ipBlock.cidr": "10.0.0.1/8"},
        {f"{INGRESS}.from.1.ipBlock.cidr": "10.0.0.0/7"},
    ),
    ("network.policy", {f"{INGRESS}.from.1.ipBlock.except.0": "11.0.0.0/16"}, {}),
    ("network.policy", {f"{INGRESS}.from.1.podSelector": {}}, {}),
    ("network.policy", {f"{INGRESS}.ports.0.protocol": "HTTP"}, {}),
    ("network.policy", {"policy.spec.egress.0.ports.1.endPort": 7999}, {}),
    ("network.policy", {"policy.spec.podSelector.matchExpressions.0.operator": "in"}, {}),
    ("network.policy", {"policy.spec.egress.0.ports.0.port": 70000}, {}),
    (
        "workloads.disruption_budget",
        {"budget.spec.minAvailable": 1},
        {"budget.spec.minAvailable": "50%", "budget.spec.maxUnavailable": GONE},
    ),
    (
        "workloads.disruption_budget",
        {"budget.spec.maxUnavailable": "150%"},
        {"budget.spec.maxUnavailable": "100%"},
    ),
    ("workloads.disruption_budget", {"budget.spec.selector": GONE}, {}),
    ("workloads.disruption_budget", {"budget.spec.unhealthyPodEvictionPolicy": "Always"}, {}),
    ("access.cluster_wide", {"extra": CLUSTER_ROLE}, {}),
    ("access.cluster_wide", {"binding.roleRef.kind": "ClusterRole"}, {}),
    ("access.rights", {f"{ROLE_RULE}.verbs": ["*"]}, {f"{ROLE_RULE}.verbs": ["get", "list"]}),
    ("access.rights", {f"{ROLE_RULE}.resources": ["*"]}, {}),
    ("access.rights", {f"{ROLE_RULE}.resources": ["secrets"]}, {}),
    ("access.rights", {f"{ROLE_RULE}.apiGroups": ["*"]}, {}),
    ("access.rights", {f"{ROLE_RULE}.verbs": ["deletecollection"]}, {}),
    ("access.rights", {f"{ROLE_RULE}.resources": ["pods/exec"]}, {}),
    ("access.rights", {"role.rules.1.resourceNames": GONE}, {}),
    (
        "access.rights",
        {f"{ROLE_RULE}.resourceNames": ["a"]},
        {
            "role.rules.3": {
                "apiGroups": [""],
                "resources": ["pods"],
                "resourceNames": ["a"],
                "verbs": ["delete"],
            }
        },
    ),
    ("access.rights", {"role.rules": []}, {}),
    ("access.binding", {"binding.subjects.0.kind": "Group"}, {}),
    ("access.binding", {"binding.subjects.0.name": "default"}, {}),
    ("access.binding", {"binding.subjects": []}, {}),
    ("access.binding", {"binding.roleRef.apiGroup": "rbac"}, {}),
    ("access.bound", {"binding.roleRef.name": "demo-chaoss"}, {}),
    ("access.bound", {"binding.subjects.0.namespace": "default"}, {}),
    ("access.bound", {"binding.subjects.0.name": "somebody"}, {}),
    ("access.account", {"head_account.automountServiceAccountToken": GONE}, {}),
    ("access.needs", {"head_binding.subjects.0.name": "demo-chaos"}, {}),
    (
        "references.config_maps",
        {f"{HEAD}.spec.volumes.1.configMap.name": "demo-chaoz"},
        {f"{HEAD}.spec.volumes.1.configMap": {"name": "theirs", "optional": True}},
    ),
    ("references.config_maps", {"job.spec.template.spec.volumes.0.configMap.items.0.key": "a"}, {}),
    (
        "references.config_maps",
        {f"{HEAD}.spec.containers.0.env.3.valueFrom.configMapKeyRef.key": "a"},
        {},
    ),
    (
        "references.sub_paths",
        {f"{HEAD}.spec.containers.0.volumeMounts.1.subPath": "policy.yml"},
        {f"{HEAD}.spec.containers.0.volumeMounts.1.subPath": "policy.yaml"},
    ),
    ("references.accounts", {"test.spec.serviceAccountName": "demo-tests"}, {}),
    ("references.accounts", {"test": GONE}, {"test": GONE, "test_account": GONE}),
    ("references.unused_config_maps", {"config.metadata.name": "demo-other"}, {}),
    (
        "references.selectors",
        {"budget.spec.selector.matchLabels.[ray.io/group]": "b"},
        {"budget.spec.selector.matchLabels.[ray.io/group]": "checked"},
    ),
    (
        "references.selectors",
        {"policy.spec.podSelector.matchLabels.[app.kubernetes.io/instance]": GONE},
        {},
    ),
    ("references.selectors", {"monitor.spec.selector.matchExpressions.0.values.0": "heads"}, {}),
    (
        "references.selectors",
        {"pod_service.spec.selector.[app.kubernetes.io/component]": "work"},
        {},
    ),
    (
        "references.peers",
        {f"{INGRESS}.from.0.podSelector.matchLabels.[app.kubernetes.io/component]": "chaoz"},
        {f"{INGRESS}.from.0.podSelector.matchLabels.[app.kubernetes.io/component]": "relay"},
    ),
    ("references.peers", {f"{INGRESS}.from.0.podSelector": {}}, {}),
    (
        "references.policy_ports",
        {f"{INGRESS}.ports.0.port": 8001},
        {f"{INGRESS}.ports.0.port": "serve"},
    ),
    ("references.monitor_ports", {"monitor.spec.podMetricsEndpoints.0.port": "serve"}, {}),
    ("references.cluster", {"ray_job.spec.clusterSelector.[ray.io/cluster]": "demo-tocsin"}, {}),
    ("references.routes", {"routes.spec.route.routes.0.receiver": "pager"}, {}),
    (
        "references.routes",
        {"routes.spec.receivers.2": {"name": "nobody"}},
        {
            "routes.spec.receivers.2": {"name": "deadman"},
            "routes.spec.route.routes.1": {
                "receiver": "deadman",
                "matchers": [{"name": "alertname", "matchType": "=", "value": "Alive"}],
            },
        },
    ),
    ("access.needs", {"head_role.rules.1.verbs": ["get"]}, {}),
    ("access.needs", {f"{HEAD}.spec.automountServiceAccountToken": False}, {}),
]


@pytest.mark.parametrize(
    ("rule", "bad", "near"), ROWS, ids=[f"{row[0]}-{number}" for number, row in enumerate(ROWS)]
)
def test_a_fault_in_an_object_is_caught_and_its_nearest_miss_passes(
    rule: str, bad: Edits, near: Edits
) -> None:
    """The edit that breaks the rule is found under the rule's name; the other one is not."""
    assert rule in {finding.rule for finding in found(bad)}
    assert [str(finding) for finding in found(near)] == []


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("a: 1\na: 2", "twice"),
        ("a: no", "quote it"),
        ("a: 0644", "quote it"),
        ("a: 12:30:45", "quote it"),
        ("a: =", "quote it"),
        ("a: 1_000", "quote it"),
        ("a: 1e3", "quote it"),
        ("a: 2026-11-29", "quote it"),
        ("a: [", "expected"),
        ("a: 'no'", ""),
        ("a: notable", ""),
        ("a: 0", ""),
        ("a: 0.5", ""),
        ("a: true", ""),
        ('a: "0644"', ""),
        ("a: 10.0.0.0/8", ""),
        ("a: '='", ""),
    ],
)
def test_text_with_two_readings_is_told_from_text_with_one(line: str, word: str) -> None:
    """Words that YAML readers take for different things are noted, quoted ones are not."""
    one = read("templates/x.yaml", line)
    assert one is not None
    noted = [finding for finding in findings([one]) if finding.rule == "metadata.text"]
    assert bool(noted) == bool(word)
    assert all(word in finding.found for finding in noted)


def test_a_document_of_comments_is_no_object() -> None:
    """A template that renders to nothing leaves a comment behind, which is nobody's object."""
    assert read("templates/x.yaml", "# nothing here") is None
    assert read("templates/x.yaml", "- a\n- b").faults  # type: ignore[union-attr]
    parts = list(documents("---\n# Source: tocsin/templates/a.yaml\na: 1\n---\nb: 2\n"))
    assert parts == [("templates/a.yaml", "a: 1"), ("", "b: 2")]


def test_rights_of_the_whole_cluster_are_counted() -> None:
    """Two resources and two verbs are four pairs; a release without such a role has none."""
    assert cluster_wide_pairs(tuple(manifests({"extra": CLUSTER_ROLE}))) == 4
    assert cluster_wide_pairs(tuple(manifests())) == 0
