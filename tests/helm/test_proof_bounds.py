"""What must stay within bounds is pushed out of them once and named; what is stable is moved."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helm.gate_charts import Body, Edit, at, edited
from tocsin.dashboards.contract import alerts
from tocsin.helm.gate.manifest import Manifest, manifest
from tocsin.helm.gate.proofs.blast_radius import (
    blast_findings,
    blast_radius,
    cluster_pairs,
    defaults,
)
from tocsin.helm.gate.proofs.presence import presence
from tocsin.helm.gate.proofs.refusals import refusals
from tocsin.helm.gate.proofs.routes import receivers, routes
from tocsin.helm.gate.proofs.stability import bump, hashes, package_digest, tuned
from tocsin.helm.gate.render import CHART, Case, render
from tocsin.helm.monitoring.examples import EXAMPLES

ARMED: Body = {
    "worker": {"chaosTarget": True},
    "chaos": {"enabled": True, "dryRun": False},
}
CASE = Case(ARMED)
SERVICE = ("spec", "rayClusterConfig")
WORKER = (*SERVICE, "workerGroupSpecs", 0, "template")
DRIVER = ("spec", "jobTemplate", "spec", "template", "spec")


@pytest.fixture(scope="module")
def armed() -> Sequence[Manifest]:
    """A release that may be attacked."""
    return render(ARMED)


def says(old: str, new: str) -> Edit:
    """Another word in the policy."""

    def edit(body: Body) -> None:
        assert old in body["data"]["policy.yaml"]
        body["data"]["policy.yaml"] = body["data"]["policy.yaml"].replace(old, new)

    return edit


def rule(**change: Any) -> Edit:
    """A rule of the driver's role, changed or added."""
    return lambda body: body["rules"].append(
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], **change}
    )


def host(key: str, value: Any) -> Edit:
    """A field of the worker pods."""
    return lambda body: at(body, *WORKER, "spec").update({key: value})


POLICY = ("ConfigMap", "demo-tocsin-chaos")
ROLE = ("Role", "demo-tocsin-chaos")
OUT_OF_BOUNDS: dict[str, tuple[str, str, Edit, str]] = {
    # what reaches too far: (kind, name, edit, rule)
    "a cluster role": ("Role", "", lambda body: body.update(kind="ClusterRole"), "blast.scope"),
    "another namespace": (
        "ServiceAccount",
        "",
        lambda body: body["metadata"].update(namespace="kube-system"),
        "blast.scope",
    ),
    "somebody else's account": (
        "RoleBinding",
        "",
        lambda body: body["subjects"][0].update(namespace="kube-system"),
        "blast.scope",
    ),
    "a hook": (
        "CronJob",
        "",
        lambda body: body["metadata"].update(annotations={"helm.sh/hook": "post-install"}),
        "blast.hook",
    ),
    "secrets": (*ROLE, rule(resources=["secrets"]), "blast.rights"),
    "a wildcard": (*ROLE, rule(verbs=["*"]), "blast.rights"),
    "a shell in a pod": (*ROLE, rule(resources=["pods/exec"], verbs=["create"]), "blast.rights"),
    "more than a driver does": (*ROLE, rule(verbs=["patch"]), "blast.driver"),
    "every namespace": (*ROLE, rule(resources=["namespaces"]), "blast.driver"),
    "the node's processes": ("RayService", "", host("hostPID", True), "blast.host"),
    "the node's files": (
        "RayService",
        "",
        host("volumes", [{"name": "root", "hostPath": {"path": "/"}}]),
        "blast.host",
    ),
    "a privileged container": (
        "RayService",
        "",
        lambda body: at(body, *WORKER, "spec", "containers", 0)["securityContext"].update(
            privileged=True
        ),
        "blast.host",
    ),
    "a policy that says less": (*POLICY, says("dry_run: false", "dry_run: true"), "blast.armed"),
    "more faults at once": (
        *POLICY,
        says("max_concurrent_faults: 2", "max_concurrent_faults: 5"),
        "blast.armed",
    ),
    "a longer run": (*POLICY, says("max_duration_s: 600", "max_duration_s: 601"), "blast.armed"),
    "a run that starts by itself": (
        "CronJob",
        "",
        lambda body: body["spec"].update(suspend=False),
        "blast.armed",
    ),
    "a right to delete": (*ROLE, rule(verbs=["delete"]), "blast.armed"),
    "a target that is no worker": (
        "RayService",
        "",
        lambda body: at(body, *SERVICE, "headGroupSpec", "template", "metadata", "labels").update(
            {"tocsin.dev/chaos-target": "true"}
        ),
        "blast.target",
    ),
    "a worker that lost its mark": (
        "RayService",
        "",
        lambda body: at(body, *WORKER, "metadata", "labels").pop("tocsin.dev/chaos-target"),
        "blast.target",
    ),
}


def test_nothing_reaches_further_than_it_may(armed: Sequence[Manifest]) -> None:
    """Armed as the chart allows it; the breaks below are each found against this."""
    assert [str(one) for one in blast_findings(armed, CASE, defaults(CHART))] == []


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_what_reaches_further_is_named(armed: Sequence[Manifest], name: str) -> None:
    """One edit in one object turns its rule red."""
    kind, which, edit, expected = OUT_OF_BOUNDS[name]
    found = blast_findings(edited(armed, kind, edit, which), CASE, defaults(CHART))
    assert expected in {one.rule for one in found}


def test_what_is_off_leaves_nothing_of_chaos(armed: Sequence[Manifest]) -> None:
    """The same objects are wrong where nobody asked for them."""
    found = blast_findings(armed, Case(), defaults(CHART))
    assert {"blast.armed", "blast.target"} <= {one.rule for one in found}


def test_protected_namespaces_refuse_and_defaults_hold_no_rights_in_the_cluster() -> None:
    """Asked of helm itself, six times."""
    proof = blast_radius({"defaults": (Case(), render({}))}, CHART)
    assert proof.findings == ()
    assert proof.figures["cluster_scoped_at_defaults"] == 0


def test_rights_in_the_whole_cluster_are_counted() -> None:
    """Resource × verb."""
    role = {
        "kind": "ClusterRole",
        "rules": [{"resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}],
    }
    assert cluster_pairs([manifest(role)]) == 6


def test_a_new_version_of_the_chart_rolls_no_pod() -> None:
    """Service, cluster and driver."""
    cases = {"service": CASE, "cluster": Case({"topology": "cluster"})}
    found, seen = bump(CHART, cases)
    assert found == []
    assert seen >= 6


def test_a_version_in_a_pod_template_would_be_seen(tmp_path: Path) -> None:
    """The commonest way in which a chart bump doubles the GPUs for a while."""
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy)
    names = copy / "templates" / "_names.tpl"
    text = names.read_text()
    mark = "app.kubernetes.io/name: tocsin\n"
    assert mark in text
    names.write_text(text.replace(mark, f"{mark}chart: {{{{ .root.Chart.Version | quote }}}}\n", 1))
    found, _ = bump(copy, {"service": Case()})
    assert {"stable.bump"} == {one.rule for one in found}


@pytest.mark.release
def test_chaos_in_every_form_moves_no_pod() -> None:
    """In both topologies; a driver in the head needs nothing of the pod that was not there."""
    found, tried = tuned(CHART, {"service": CASE})
    assert [str(one) for one in found] == []
    assert tried > 80


@pytest.mark.release
def test_a_form_of_chaos_that_makes_the_head_anew_is_seen(tmp_path: Path) -> None:
    """As when the head's token hangs on the kind."""
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy)
    pods = copy / "templates" / "ray" / "_pods.tpl"
    text = pods.read_text()
    asked = '(eq .Values.topology "cluster")'
    assert asked in text
    pods.write_text(text.replace(asked, '(has .Values.chaos.kind (list "rayjob" "raycronjob"))', 1))
    found, _ = tuned(copy, {"service": Case()})
    assert {"values chaos.kind rayjob", "values chaos.kind raycronjob"} <= {o.where for o in found}


def test_what_the_operator_ignores_rolls_nothing_and_the_rest_does(
    armed: Sequence[Manifest],
) -> None:
    """Replicas are the autoscaler's; an image is a new cluster."""
    before = hashes(armed)

    def scale(body: Body) -> None:
        at(body, *SERVICE, "workerGroupSpecs", 0).update(replicas=7, maxReplicas=9)

    def ship(body: Body) -> None:
        at(body, *WORKER, "spec", "containers", 0).update(image="other:1")

    assert hashes(edited(armed, "RayService", scale)) == before
    assert hashes(edited(armed, "RayService", ship)) != before


def test_a_package_is_the_same_file_twice() -> None:
    """With SOURCE_DATE_EPOCH; with another one it is another file."""
    assert package_digest(CHART) == package_digest(CHART)
    assert package_digest(CHART) != package_digest(CHART, epoch_s=1_600_000_000)


def test_every_alert_reaches_its_receiver() -> None:
    """In earnest and as a drill, under OnNamespace."""
    proof = routes(render(EXAMPLES["told"]), by_amtool=False)
    assert proof.findings == ()
    assert proof.says == f"{len(alerts())} of {len(alerts())}"


@pytest.mark.parametrize("label", ["namespace", "release", "priority"])
def test_an_alert_without_a_label_that_routes_ask_is_lost(label: str) -> None:
    """What happens to alerts whose rule aggregates the namespace away."""

    def edit(body: Body) -> None:
        for group in body["spec"]["groups"]:
            for one in group["rules"]:
                one.get("labels", {}).pop(label, None)

    found = routes(edited(render(EXAMPLES["told"]), "PrometheusRule", edit), by_amtool=False)
    assert found.figures["proven"] == 0


def test_a_route_tree_is_walked_as_alertmanager_walks_it() -> None:
    """First match wins, `continue` goes on, no match is the root's."""
    inner = [{"receiver": "c", "matchers": ['z!=""']}]
    config = {
        "route": {
            "receiver": "root",
            "routes": [
                {"receiver": "a", "matchers": ['x="1"'], "continue": True},
                {"receiver": "b", "matchers": ['y=~"1|2"'], "routes": inner},
                {"receiver": "d"},
            ],
        }
    }
    assert receivers(config, {"x": "1"}) == ["a", "d"]
    assert receivers(config, {"x": "1", "y": "2"}) == ["a", "b"]
    assert receivers(config, {"y": "1", "z": "3"}) == ["c"]
    assert receivers(config, {"y": "12"}) == ["d"]


@pytest.mark.release
def test_every_guard_of_the_templates_refuses_its_case() -> None:
    """A guard that no case trips is named: nobody can take one away unnoticed."""
    proof = refusals(CHART)
    assert [str(one) for one in proof.findings] == []


@pytest.mark.release
def test_a_guard_that_is_gone_is_missed(tmp_path: Path) -> None:
    """The same proof without one line of the templates."""
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy)
    path = copy / "templates" / "ray" / "_rules.tpl"
    lines = path.read_text().split("\n")
    at_line = next(n for n, line in enumerate(lines) if "fail" in line and "at least 75Mi" in line)
    path.write_text("\n".join(lines[:at_line] + lines[at_line + 1 :]))
    assert {one.where for one in refusals(copy).findings} == {"a small object store"}


@pytest.mark.release
def test_a_guard_that_no_case_can_trip_is_named() -> None:
    """Or the figure would say `63 of 66` and hold, and nobody would know which three."""
    proof = refusals(CHART)
    left = proof.figures["guards"], proof.figures["tripped"]
    assert len(proof.remarks) == int(left[0]) - int(left[1]) == 3
    for word in ("has no label", "does not know", "Kubernetes is"):
        assert any(word in remark for remark in proof.remarks)


def test_tests_policies_and_digests_are_there() -> None:
    """At default values."""
    assert [str(one) for one in presence(CHART).findings] == []
