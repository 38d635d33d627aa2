"""What is there though no value asks for it, or is not though one does, is named; so is a slip."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helm.gate_charts import Body, Edit, at, edited
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.proofs.blast_radius import defaults
from tocsin.helm.gate.proofs.switches import switch_findings, switches
from tocsin.helm.gate.proofs.template_reads import template_reads, unknown_reads
from tocsin.helm.gate.render import CHART, Case, merged, render
from tocsin.helm.monitoring.examples import EXAMPLES

VALUES: Body = {
    **EXAMPLES["told"],
    "chaos": {"enabled": True},
    "worker": {"replicas": 3, "minReplicas": 1, "maxReplicas": 3},
}
CLUSTER = ("spec", "rayClusterConfig")
WORKER = (*CLUSTER, "workerGroupSpecs", 0, "template", "spec")


@pytest.fixture(scope="module")
def made() -> Sequence[Manifest]:
    """A service that is watched, with a chaos driver and more than one worker."""
    return render(VALUES)


def found(objects: Sequence[Manifest], values: Mapping[str, Any]) -> set[str]:
    """Rules that have something against a render for these values."""
    return {one.rule for one in switch_findings(objects, Case(values), defaults(CHART))}


OFF: dict[str, tuple[Body, str]] = {
    # what the values say otherwise: (values, rule)
    "the topology": ({"topology": "cluster"}, "switch.topology"),
    "a pause": ({"ray": {"suspend": True}}, "switch.ray.suspend"),
    "autoscaling": ({"ray": {"autoscaling": {"enabled": True}}}, "switch.ray.autoscaling"),
    "a state outside": (
        {"ray": {"gcsFaultTolerance": {"enabled": True}}},
        "switch.ray.gcsFaultTolerance",
    ),
    "an upgrade": ({"ray": {"upgrade": {"strategy": "None"}}}, "switch.ray.upgrade"),
    "budgets": ({"disruptionBudget": {"enabled": False}}, "switch.disruptionBudget"),
    "how many may leave": (
        {"disruptionBudget": {"workerMaxUnavailable": 2}},
        "switch.disruptionBudget",
    ),
    "a volume": ({"model": {"source": "pvc"}}, "switch.model"),
    "secrets of images": ({"image": {"pullSecrets": ["registry"]}}, "switch.image.pullSecrets"),
    "telemetry": ({"telemetry": {"enabled": False}}, "switch.telemetry"),
    "a watcher": ({"alertmanager": {"url": "http://a:1"}}, "switch.alertmanager.url"),
    "tests": ({"test": {"enabled": False}}, "switch.test.enabled"),
    "chaos": ({"chaos": {"enabled": False}}, "switch.chaos.enabled"),
    "a run": ({"chaos": {"kind": "job", "runOnce": "a"}}, "switch.chaos.kind"),
    "the words on the driver": ({"chaos": {"dryRun": False}}, "switch.chaos.dryRun"),
    "an experiment": ({"chaos": {"experiment": {"text": "a: b"}}}, "switch.chaos.experiment"),
    "an alert that ends it": (
        {"chaos": {"stopOnAlert": {"enabled": True}}},
        "switch.chaos.stopOnAlert",
    ),
    "a policy of the cluster": (
        {"chaos": {"admissionPolicy": {"enabled": True}}},
        "switch.chaos.admissionPolicy",
    ),
    "policies": ({"networkPolicy": {"enabled": False}}, "switch.networkPolicy.enabled"),
    "who tells it to degrade": (
        {"monitoring": {"alertmanagerConfig": {"degrade": {"fromNamespaces": ["alerts"]}}}},
        "switch.monitoring.alertmanagerConfig.degrade.fromNamespaces",
    ),
    "a way out": ({"networkPolicy": {"egress": {"restrict": True}}}, "switch.networkPolicy.egress"),
    "a monitor": (
        {"monitoring": {"podMonitor": {"enabled": False}}},
        "switch.monitoring.podMonitor",
    ),
}


def test_the_chart_does_what_its_values_say(made: Sequence[Manifest]) -> None:
    """Nothing is found in the chart as it is: each finding below is the difference's own."""
    assert found(made, VALUES) == set()
    proof = switches({"one": (Case(VALUES), made)}, CHART)
    assert proof.holds
    assert proof.figures["pairs"] > 50


@pytest.mark.parametrize("name", OFF)
def test_a_value_that_is_not_followed_is_named(made: Sequence[Manifest], name: str) -> None:
    """The same objects, held against values that ask for something else."""
    values, rule = OFF[name]
    assert rule in found(made, merged(VALUES, values))


EDITS: dict[str, tuple[str, Edit, str]] = {
    # what is done though nobody asked: (kind, edit, rule)
    "a readiness that waits for nobody": (
        "RayService",
        lambda body: at(body, *WORKER, "containers", 0)["readinessProbe"].update(
            httpGet={"path": "/api/healthz", "port": 52365}
        ),
        "switch.topology",
    ),
    "a token": (
        "RayService",
        lambda body: at(body, *WORKER).update(automountServiceAccountToken=True),
        "switch.token of worker",
    ),
    "a budget that lets all go": (
        "PodDisruptionBudget",
        lambda body: body["spec"].update(minAvailable=0),
        "switch.disruptionBudget",
    ),
    "a second account": (
        "RoleBinding",
        lambda body: body["subjects"].append(body["subjects"][0]),
        "switch.chaos.kind",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_nobody_asked_for_is_named(made: Sequence[Manifest], name: str) -> None:
    """One edit in one object."""
    kind, edit, rule = EDITS[name]
    assert rule.partition(" ")[0] in found(edited(made, kind, edit), VALUES)


def test_every_read_of_a_template_is_declared() -> None:
    """By the schema, by helm, or by the template that makes a dict."""
    proof = template_reads(CHART)
    assert [str(one) for one in proof.findings] == []
    assert int(proof.figures["reads"]) > 500


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (".Values.ray.suspend", ".Values.ray.susepnd", ".susepnd"),
        (".Values.ray.suspend", ".Values.chaos.suspend", ".Values.chaos.suspend"),
        (".Values.topology", ".Values.topolgoy", ".topolgoy"),
    ],
)
def test_a_read_of_something_that_is_not_there_is_named(
    old: str, new: str, says: str, tmp_path: Path
) -> None:
    """A template says nothing of it: the part is left out in silence."""
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy)
    path = copy / "templates" / "ray" / "cluster.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert says in {one.found for one in unknown_reads(copy)}


def test_comments_and_texts_are_no_reads(tmp_path: Path) -> None:
    """Words between quotes are for people; what a dict is given may be read of it."""
    copy = tmp_path / "chart"
    (copy / "templates").mkdir(parents=True)
    (copy / "values.schema.json").write_text('{"properties": {"size": {"type": "integer"}}}')
    file = copy / "templates" / "a.yaml"
    file.write_text(
        '{{/* .nothing */}}{{ fail "see .nowhere" }}{{ dict "own" .Values.size }}{{ .own }}'
    )
    assert list(unknown_reads(copy)) == []
    file.write_text("a: b\n{{ if .Values.size }}{{ .Values.sizes }}{{ end }}\n")
    assert [one.where for one in unknown_reads(copy)] == ["templates/a.yaml:2"] * 2
