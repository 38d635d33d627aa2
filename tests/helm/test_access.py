"""Who may do what, who reaches whom, and how many pods a drain may take."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.helm.ray_values import AUTOSCALING, CLUSTER, REDIS, head, nested, of, worker
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.render import merged, render
from tocsin.helm.monitoring.examples import EXAMPLES

Values = Mapping[str, Any]
OURS = {"app.kubernetes.io/name": "tocsin", "app.kubernetes.io/instance": "demo"}


def _labels(component: str) -> dict[str, str]:
    return {**OURS, "app.kubernetes.io/component": component}


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", {})
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for one in selector.get("matchExpressions", []):
        assert one["operator"] == "In"
        if labels.get(one["key"]) not in one["values"]:
            return False
    return True


def _is_peer(peer: Mapping[str, Any], labels: Mapping[str, str], namespace: str) -> bool:
    if "ipBlock" in peer:
        return False
    spaces = peer.get("namespaceSelector")
    if spaces is None:
        if namespace != "tocsin-demo":
            return False
    elif not _matches(spaces, {"kubernetes.io/metadata.name": namespace}):
        return False
    return "podSelector" not in peer or _matches(peer["podSelector"], labels)


def reaches(
    values: Values, source: str, target: str, port: int, namespace: str = "tocsin-demo"
) -> bool:
    """Whether a pod of a component (of another's: "stranger") gets through to a port of another."""
    policies = [item.body["spec"] for item in render(values) if item.kind == "NetworkPolicy"]
    selecting = [
        spec
        for spec in policies
        if _matches(spec["podSelector"], _labels(target)) and "Ingress" in spec["policyTypes"]
    ]
    if not selecting:
        return True
    labels = {} if source == "stranger" else _labels(source)
    for rule in (rule for spec in selecting for rule in spec.get("ingress", [])):
        ports = [one["port"] for one in rule.get("ports", [])]
        peers = rule.get("from", [])
        if (not ports or port in ports) and any(_is_peer(one, labels, namespace) for one in peers):
            return True
    return False


@pytest.mark.parametrize(
    ("source", "target", "port", "namespace", "through"),
    [
        ("worker", "head", 6379, "tocsin-demo", True),
        ("head", "worker", 12345, "tocsin-demo", True),
        ("stranger", "worker", 8000, "apps", True),
        ("stranger", "worker", 6379, "apps", False),
        ("stranger", "head", 8265, "apps", False),
        ("stranger", "head", 10001, "tocsin-demo", False),
        ("stranger", "head", 8265, "kuberay-operator", True),
        ("stranger", "head", 10001, "kuberay-operator", False),
        ("stranger", "worker", 8265, "kuberay-operator", False),
        ("stranger", "worker", 9464, "monitoring", True),
        ("stranger", "head", 9464, "apps", False),
        ("chaos", "head", 10001, "tocsin-demo", True),
        ("chaos", "head", 8000, "tocsin-demo", True),
        ("chaos", "worker", 6379, "tocsin-demo", False),
        ("chaos", "head", 10001, "apps", False),
        ("test", "head", 8000, "tocsin-demo", True),
        ("test", "head", 10001, "tocsin-demo", False),
        ("stranger", "chaos", 80, "tocsin-demo", False),
    ],
)
def test_each_flow_is_open_or_shut_as_it_must_be(
    source: str, target: str, port: int, namespace: str, through: bool
) -> None:
    """Ray takes commands from whoever reaches it: only the release and its operator may."""
    assert reaches({}, source, target, port, namespace) is through


def test_callers_can_be_narrowed_to_namespaces() -> None:
    """A list replaces the default; a map would be merged with it."""
    narrowed = nested("networkPolicy.serve.namespaces", ["apps"])
    assert reaches(narrowed, "stranger", "worker", 8000, "apps")
    assert not reaches(narrowed, "stranger", "worker", 8000, "others")
    assert reaches(narrowed, "test", "head", 8000)


def test_alertmanager_reaches_the_switch_that_its_route_calls() -> None:
    """With callers narrowed, POST /degrade stays open to Alertmanager's namespace alone."""
    told = merged(EXAMPLES["told"], nested("networkPolicy.serve.namespaces", ["apps"]))
    assert reaches(told, "stranger", "head", 8000, "monitoring")
    assert not reaches(told, "stranger", "worker", 8000, "monitoring")
    assert not reaches(told, "stranger", "head", 8000, "others")
    degrade = "monitoring.alertmanagerConfig.degrade"
    elsewhere = merged(told, nested(f"{degrade}.fromNamespaces", ["alerts"]))
    assert reaches(elsewhere, "stranger", "head", 8000, "alerts")
    assert not reaches(elsewhere, "stranger", "head", 8000, "monitoring")
    off = merged(told, nested(f"{degrade}.enabled", False))
    assert not reaches(off, "stranger", "head", 8000, "monitoring")


@pytest.mark.parametrize("policy", ["demo-tocsin-ray", "demo-tocsin-chaos"])
def test_the_api_server_is_asked_where_the_values_say_that_it_is(policy: str) -> None:
    """By the autoscaler as by the driver."""
    there = {"ports": [8443], "cidrs": ["203.0.113.1/32"]}
    values = {
        "ray": {"autoscaling": {"enabled": True}},
        "networkPolicy": {"egress": {"restrict": True}},
        "chaos": {"enabled": True, "apiServer": there},
    }
    egress = of(values, "NetworkPolicy", policy).body["spec"]["egress"]
    ports = [{"port": 8443, "protocol": "TCP"}]
    assert {"ports": ports, "to": [{"ipBlock": {"cidr": "203.0.113.1/32"}}]} in egress
    said = {one["port"] for rule in egress for one in rule.get("ports", [])}
    assert not said & {443, 6443}


def test_egress_is_held_to_the_release_name_servers_and_what_is_named() -> None:
    """The API server is open only for a head that asks it."""
    restricted = {"networkPolicy": {"egress": {"restrict": True, "cidrs": ["10.1.0.0/16"]}}}
    egress = of(restricted, "NetworkPolicy", "demo-tocsin-ray").body["spec"]["egress"]
    ports = {one["port"] for rule in egress for one in rule.get("ports", [])}
    assert ports == {53}
    assert {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]} in egress
    asking = of(merged(restricted, AUTOSCALING), "NetworkPolicy", "demo-tocsin-ray").body["spec"]
    ports = {one["port"] for rule in asking["egress"] for one in rule.get("ports", [])}
    assert ports == {53, 443, 6443}
    assert "egress" not in of({}, "NetworkPolicy", "demo-tocsin-ray").body["spec"]


def _named(values: Values, kind: str) -> dict[str, Manifest]:
    return {item.metadata["name"]: item for item in render(values) if item.kind == kind}


def test_nobody_gets_rights_while_nothing_needs_them() -> None:
    """No Role, and no token in a Ray pod that could be taken."""
    assert _named({}, "Role") == {}
    for template in (head({}), worker({})):
        assert template["spec"]["automountServiceAccountToken"] is False


def test_a_head_of_a_ray_cluster_has_its_token_before_a_driver_runs_there() -> None:
    """No form of chaos makes it anew; until one runs in the head the token opens nothing."""
    assert head(CLUSTER)["spec"]["automountServiceAccountToken"] is True
    assert worker(CLUSTER)["spec"]["automountServiceAccountToken"] is False
    assert _named(CLUSTER, "Role") == {}
    restricted = {**CLUSTER, "networkPolicy": {"egress": {"restrict": True}}}
    egress = of(restricted, "NetworkPolicy", "demo-tocsin-ray").body["spec"]["egress"]
    assert {one["port"] for rule in egress for one in rule.get("ports", [])} == {53}


def test_the_head_may_do_what_its_autoscaler_does_and_no_more() -> None:
    """As KubeRay's own role for it: watch pods, patch them and the cluster, delete nothing."""
    role = _named(AUTOSCALING, "Role")["demo-tocsin-head"].body
    pairs = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert pairs == {
        *(("", "pods", verb) for verb in ("get", "list", "watch", "patch")),
        ("", "pods/resize", "patch"),
        *(("ray.io", "rayclusters", verb) for verb in ("get", "patch")),
    }
    assert head(AUTOSCALING)["spec"]["automountServiceAccountToken"] is True
    assert worker(AUTOSCALING)["spec"]["automountServiceAccountToken"] is False
    binding = _named(AUTOSCALING, "RoleBinding")["demo-tocsin-head"].body
    assert [subject["name"] for subject in binding["subjects"]] == ["demo-tocsin-head"]


def test_pods_run_under_accounts_that_are_there() -> None:
    """The operator does not make an account that the head names: the pod would wait for ever."""
    accounts = _named({}, "ServiceAccount")
    for template in (head({}), worker({})):
        assert template["spec"]["serviceAccountName"] in accounts


def test_a_drain_takes_workers_one_by_one_and_the_head_not_at_all() -> None:
    """Numbers, never maxUnavailable or a share: Kubernetes cannot work those out for a Ray pod."""
    budgets = _named(nested("worker.replicas", 3), "PodDisruptionBudget")
    specs = {name: item.body["spec"] for name, item in budgets.items()}
    assert {name: spec["minAvailable"] for name, spec in specs.items()} == {
        "demo-tocsin-head": 1,
        "demo-tocsin-worker-checked": 2,
    }
    assert all("maxUnavailable" not in spec for spec in specs.values())
    selector = specs["demo-tocsin-worker-checked"]["selector"]["matchLabels"]
    assert selector["ray.io/group"] == "checked"


def test_a_head_with_its_state_in_redis_may_be_moved() -> None:
    """Another head takes over there."""
    assert "demo-tocsin-head" not in _named(REDIS, "PodDisruptionBudget")


def test_a_single_worker_is_not_guarded_against_every_drain() -> None:
    """A budget that allows nothing would stop every drain of its node for good."""
    alone = {"worker": {"replicas": 1}, "serve": {"replicas": 1}}
    assert "demo-tocsin-worker-checked" not in _named(alone, "PodDisruptionBudget")


def test_with_autoscaling_the_fewest_pods_count() -> None:
    """After the group has shrunk, a budget for the pods of before would allow no drain."""
    grown = merged(AUTOSCALING, {"worker": {"replicas": 6, "minReplicas": 3}})
    budget = _named(grown, "PodDisruptionBudget")["demo-tocsin-worker-checked"]
    assert budget.body["spec"]["minAvailable"] == 2
