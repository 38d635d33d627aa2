"""What the chart renders is what `tocsin chaos run --kube-context` looks for and can run."""

import copy
from typing import Any

import pytest
import typer

from tests.helm.chaos_values import ARMED, ON, Values, one, over, with_chaos
from tocsin.core.errors import ChaosForbidden
from tocsin.core.terms import Profile
from tocsin.helm.gate.findings import findings
from tocsin.helm.gate.manifest import manifest
from tocsin.helm.gate.render import render
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.remote.kube_job import job_manifest
from tocsin.ray_jobs.remote.kube_release import find_release
from tocsin.ray_jobs.remote.order import make_order

NAMESPACE = "tocsin-demo"


class Cluster:
    """Stands in for kubectl: answers from what the chart rendered, by label as it would."""

    context, namespace = "here", NAMESPACE

    def __init__(self, values: Values, labels: dict[str, str]) -> None:
        """A release of these values in a namespace with these labels."""
        self._objects = [copy.deepcopy(item.body) for item in render(values)]
        self._labels = labels
        for body in self._objects:
            body["metadata"]["uid"] = f"uid-{body['metadata']['name']}"

    def get(self, what: str, *words: str) -> dict[str, Any]:
        """`kubectl get what … -o json`."""
        if what == "namespace":
            return {"metadata": {"name": words[0], "labels": self._labels}}
        kind = {"cronjobs.batch": "CronJob", "configmaps": "ConfigMap"}[what]
        wanted = dict(pair.split("=") for pair in words[words.index("-l") + 1].split(","))
        found = [
            body
            for body in self._objects
            if body["kind"] == kind and wanted.items() <= body["metadata"]["labels"].items()
        ]
        return {"items": found}


def release(values: Values, labels: dict[str, str] | None = None, dry_run: bool = False) -> Any:
    """What the caller finds."""
    cluster: Any = Cluster(values, {"tocsin.dev/chaos": "allowed"} if labels is None else labels)
    return find_release(cluster, "demo", dry_run=dry_run)


def test_the_release_is_found_and_its_job_is_the_callers_run_under_the_releases_guards() -> None:
    """The experiment and its seed are the caller's; target, store and account are the chart's."""
    values = over(ARMED, {"chaos": {"experiment": {"name": "poison", "seed": 3}}})
    found = release(values)
    assert (found.name, found.namespace) == ("demo", NAMESPACE)
    order = make_order("smoke", seed=9, profile=Profile.FULL)
    job = job_manifest(found.cron_job, order)
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "demo-tocsin-chaos"
    assert pod["terminationGracePeriodSeconds"] >= 120
    container = pod["containers"][0]
    words = [*container["command"], *container["args"]]
    command: Any = typer.main.get_command(app)
    run = command.commands["chaos"].commands["run"]
    params = run.make_context("run", words[3:]).params
    assert words[:3] == ["tocsin", "chaos", "run"]
    assert params["spec"] == "env:TOCSIN_SPEC"
    assert (params["seed"], params["profile"]) == (9, Profile.FULL)
    assert params["on"] == "http://demo-tocsin-head-svc:8000"
    assert params["print_archive"] is True
    names = [variable["name"] for variable in container["env"]]
    assert len(names) == len(set(names))
    assert {"TOCSIN_SPEC", "TOCSIN_CHAOS_POLICY", "RAY_ADDRESS"} <= set(names)


def test_the_callers_job_passes_the_gate_as_the_charts_own_objects_do() -> None:
    """Restricted pods, a memory limit, labels: nothing is lost between CronJob and Job."""
    objects = render(ARMED)
    job = job_manifest(release(ARMED).cron_job, make_order("smoke", seed=None, profile=None))
    job["metadata"]["labels"] = one(ON, "CronJob")["metadata"]["labels"]  # a run is not the chart's
    made = manifest(job, "templates/chaos/cronjob.yaml")
    assert findings([*objects, made], release="demo", namespace=NAMESPACE) == []


@pytest.mark.parametrize(
    ("values", "labels", "said"),
    [
        ({}, None, "chaos.enabled is false"),
        (ON, None, "chaos.dryRun is true"),
        (ARMED, {}, "does not carry the label tocsin.dev/chaos=allowed"),
        (
            over(ARMED, {"chaos": {"namespaceLabel": "team/drills=yes"}}),
            None,
            "does not carry the label team/drills=yes",
        ),
    ],
)
def test_a_caller_hears_early_what_the_driver_would_refuse(
    values: Values, labels: dict[str, str] | None, said: str
) -> None:
    """From the objects alone, before a Job is made."""
    with pytest.raises(ChaosForbidden, match=said):
        release(values, labels)


def test_a_plan_is_always_to_be_had() -> None:
    """Of a release whose runs are dry, in a namespace that allows none."""
    found = release(with_chaos(schedule="@daily"), {}, dry_run=True)
    assert found.cron_job["metadata"]["name"] == "demo-tocsin-chaos"
