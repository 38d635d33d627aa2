"""Each guard of the chaos templates refuses its case, in words, and lets the nearest one pass."""

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.helm.chaos_values import (
    ARMED,
    CLUSTER,
    EMPTY_EXPERIMENT,
    ON,
    experiment,
    over,
    with_chaos,
)
from tocsin.chaos.contract import faults
from tocsin.chaos.spec_file import builtin_experiments, experiment_text, load_experiment
from tocsin.core.errors import SpecError
from tocsin.helm.gate import tools
from tocsin.helm.gate.proofs.many import texts
from tocsin.helm.gate.render import CHART, Case, render, render_many
from tocsin.helm.gate.syntax import is_schedule
from tocsin.helm.values.chaos import PROTECTED

ALL_FAULTS = {"chaos": {"allowedFaults": list(faults())}}
MANAGER = {"alertmanager": {"url": "http://alertmanager.monitoring:9093"}}
RAY_JOB = over(CLUSTER, with_chaos(kind="rayjob", runOnce="a"))
RAY_CRON_JOB = over(
    CLUSTER, with_chaos(kind="raycronjob", schedule="0 3 * * 1", rayCronJobGate=True)
)


def text(**safety: str) -> dict[str, Any]:
    """An experiment of one's own with one fault."""
    document = {
        "apiVersion": "chaos/v1",
        "kind": "Experiment",
        "name": "own",
        "seed": 1,
        "faults": [{"id": "a", "kind": "act.bitflip", "when": {"at": [1]}}],
        "safety": safety,
    }
    return experiment(json.dumps(document))


GUARDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # what is guarded: (refused, the nearest that is not, what is said)
    "fault of a built-in experiment": (
        with_chaos(experiment={"name": "first-light"}),
        over(with_chaos(experiment={"name": "first-light"}), ALL_FAULTS),
        "names the fault actor.freeze, allowed are act.bitflip",
    ),
    "fault of one's own experiment": (
        over(ON, text(), {"chaos": {"allowedFaults": ["kv.bitflip"]}}),
        over(ON, text(), {"chaos": {"allowedFaults": ["act.bitflip"]}}),
        "names the fault act.bitflip, allowed are kv.bitflip",
    ),
    "duration of a built-in experiment": (
        with_chaos(maxDurationSeconds=239),
        with_chaos(maxDurationSeconds=240),
        "safety.max_duration is 240 s, chaos.maxDurationSeconds allows 239 s",
    ),
    "duration of one's own experiment": (
        over(ON, text(max_duration="10.1m")),
        over(ON, text(max_duration="10m")),
        "safety.max_duration is 606 s, chaos.maxDurationSeconds allows 600 s",
    ),
    "duration that an experiment does not say": (
        over(with_chaos(maxDurationSeconds=299), text()),
        over(with_chaos(maxDurationSeconds=300), text()),
        "safety.max_duration is 300 s",
    ),
    "duration without a unit": (
        over(ON, text(max_duration="240")),
        over(ON, text(max_duration="240s")),
        "safety.max_duration is 240, expected a duration with its unit",
    ),
    "text that is no YAML": (
        over(ON, experiment("a: [")),
        over(ON, experiment(EMPTY_EXPERIMENT)),
        "chaos.experiment.text: is not YAML",
    ),
    "text that is no experiment": (
        over(ON, experiment("{apiVersion: v1, kind: Pod}")),
        over(ON, experiment(EMPTY_EXPERIMENT)),
        "apiVersion is v1 and kind is Pod, expected chaos/v1 and Experiment",
    ),
    "armed without a target": (
        over(ARMED, {"worker": {"chaosTarget": False}}),
        over(
            ARMED,
            {"worker": {"chaosTarget": False}, "workerGroups": {"checked": {"chaosTarget": True}}},
        ),
        "worker group checked has chaosTarget false",
    ),
    "armed with one group that is no target": (
        over(ARMED, {"workerGroups": {"spare": {"chaosTarget": False}}}),
        over(ARMED, {"workerGroups": {"spare": {}}}),
        "worker group spare has chaosTarget false",
    ),
    "credentials for no store": (
        with_chaos(publish={"secretName": "s3"}),
        with_chaos(publish={"secretName": "s3", "url": "s3://runs"}),
        "chaos.publish.secretName: s3, and chaos.publish.url is empty",
    ),
    "driver that asks for more than its limit": (
        with_chaos(driver={"resources": {"cpu": "4", "cpuLimit": "1"}}),
        with_chaos(driver={"resources": {"cpu": "4", "cpuLimit": "4"}}),
        "chaos.driver.resources.cpu: 4, expected at most cpuLimit (1)",
    ),
    "stop on alert without an Alertmanager": (
        with_chaos(stopOnAlert={"enabled": True}),
        over(with_chaos(stopOnAlert={"enabled": True}), MANAGER),
        "alertmanager.url is empty",
    ),
    "rayjob on a RayService": (
        over(RAY_JOB, {"topology": "service"}),
        RAY_JOB,
        "topology is service, expected cluster",
    ),
    "raycronjob on a RayService": (
        over(RAY_CRON_JOB, {"topology": "service"}),
        RAY_CRON_JOB,
        "topology is service, expected cluster",
    ),
    "raycronjob without the operator's gate": (
        over(RAY_CRON_JOB, {"chaos": {"rayCronJobGate": False}}),
        RAY_CRON_JOB,
        "raycronjob is an alpha kind of KubeRay",
    ),
    "raycronjob without a schedule": (
        over(RAY_CRON_JOB, {"chaos": {"schedule": ""}}),
        RAY_CRON_JOB,
        "chaos.schedule: empty",
    ),
    "credentials that a driver in the head does not get": (
        over(RAY_JOB, {"chaos": {"publish": {"url": "s3://a/b", "secretName": "s"}}}),
        over(RAY_JOB, {"chaos": {"publish": {"url": "s3://a/b"}}}),
        "chaos.publish.secretName and chaos.report.claimName have no effect",
    ),
    "volume that a driver in the head does not get": (
        over(RAY_JOB, {"chaos": {"report": {"claimName": "c"}}}),
        over(with_chaos(kind="job", runOnce="a"), {"chaos": {"report": {"claimName": "c"}}}),
        "chaos.publish.secretName and chaos.report.claimName have no effect",
    ),
    "schedule of what has none": (
        with_chaos(kind="job", schedule="@daily"),
        with_chaos(kind="cronjob", schedule="@daily"),
        "chaos.kind is job, which has no schedule",
    ),
    "word of what runs by its schedule": (
        with_chaos(kind="cronjob", runOnce="a"),
        with_chaos(kind="job", runOnce="a"),
        "chaos.kind is cronjob, which runs by its schedule",
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_refuses_its_case_in_words(guard: str) -> None:
    """The refusal says what was found and what to do."""
    refused, _, said = GUARDS[guard]
    with pytest.raises(SpecError) as refusal:
        render(refused)
    assert said in str(refusal.value)


def test_one_step_aside_of_each_guard_the_chart_renders() -> None:
    """And a value that waits for its day refuses nobody's install while chaos is off."""
    off = {"chaos": {"enabled": False}}
    cases = [Case(accepted) for _, accepted, _ in GUARDS.values()]
    cases += [Case(over(refused, off)) for refused, _, _ in GUARDS.values()]
    assert len(render_many(cases)) == 2 * len(GUARDS)


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease", "prod"])
def test_a_protected_namespace_is_never_attacked(namespace: str) -> None:
    """The three of Kubernetes always, others when they are named."""
    names = ["kube-system", "kube-public", "kube-node-lease", "prod"]
    values = with_chaos(protectedNamespaces=names)
    with pytest.raises(SpecError, match=f"namespace {namespace} is one of"):
        render(values, namespace=namespace)
    render({}, namespace=namespace)
    render(values, namespace="production")


@pytest.mark.parametrize("left_out", PROTECTED)
def test_a_namespace_of_kubernetes_cannot_be_left_out(left_out: str) -> None:
    """Also while chaos is off, and by its name, which no schema could say."""
    names = [name for name in PROTECTED if name != left_out]
    with pytest.raises(SpecError, match=f"protectedNamespaces: {left_out} is missing"):
        render({"chaos": {"protectedNamespaces": names}})


# Schedule → the part that the refusal names; empty: it is taken.
SCHEDULES = {
    "99 3 * * *": '"99" is no minute',
    "*/0 3 * * *": '"*/0" is no minute',
    "0,, 3 * * *": '"" is no minute',
    "0 5-3 * * *": '"5-3" is no hour',
    "0 24 * * *": '"24" is no hour',
    "0 0 0 * *": '"0" is no day of the month',
    "0 0 * MON *": '"MON" is no month',
    "0 0 * * 7": '"7" is no day of the week',
    "0 0 * * fri-mon": '"fri-mon" is no day of the week',
    "0 0 31 2 *": "never comes",
    "0 0 30,31 FEB *": "never comes",
    "0 0 31 4-6/2 */1": "never comes",
    "08 08 * * *": "",
    "*/15 0-23/2 1,15 * 1-5": "",
    "0 0 29 2 *": "",
    "0 0 31 2 MON": "",
    "0 0 31 4-6 *": "",
    "0 0 31 2/2 *": "",
    "0 0 * jan,DEC SUN": "",
    "@daily": "",
}


def test_a_schedule_is_refused_where_kubernetes_would_or_where_it_never_comes() -> None:
    """Part by part, in words; the gate's own reader agrees on what Kubernetes takes."""
    cases = [Case(with_chaos(schedule=schedule)) for schedule in SCHEDULES]
    for (schedule, said), outcome in zip(SCHEDULES.items(), texts(cases), strict=True):
        assert isinstance(outcome, SpecError) is bool(said), schedule
        assert said in str(outcome) or not said, schedule
        assert is_schedule(schedule) is (said in ("", "never comes")), schedule


# Text of an experiment → what the refusal says; each ended in lines of Go, or passed.
ILL_SHAPED = {
    "faults: hello": "faults is no list",
    "faults: {a: b}": "faults is no list",
    "faults: [hello]": "faults[0] is no mapping",
    "faults: [{id: a, when: {at: [1]}}]": "faults[0].kind is missing",
    "faults: [{id: a, kind: act.bitflip, when: {at: 1}}]": "faults[0].when.at is no list",
    "faults:": "faults is no list",
    "safety: hello": "safety is no mapping",
    "safety: [a]": "safety is no mapping",
    "safety: {max_durations: 5m}": "safety.max_durations is not known, expected one of abort",
    "safty: {}": "safty is not known",
}


@pytest.mark.parametrize("line", ILL_SHAPED)
def test_an_experiment_of_another_shape_is_refused_in_words(line: str) -> None:
    """One line that leads to the program that asks for more."""
    whole = f"apiVersion: chaos/v1\nkind: Experiment\nname: own\nseed: 1\n{line}\n"
    with pytest.raises(SpecError) as refusal:
        render(over(ON, experiment(whole)))
    assert f"chaos.experiment.text: {ILL_SHAPED[line]}" in str(refusal.value)
    assert "tocsin chaos lint FILE" in str(refusal.value)
    assert "Go value" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]", "is a list or a single value"),
        ("hello", "is a list or a single value"),
        ("# later", "apiVersion is missing and kind is missing"),
    ],
)
def test_a_text_that_is_no_mapping_is_refused_in_words(text: str, said: str) -> None:
    """Neither Go's names for it nor `<nil>`."""
    with pytest.raises(SpecError) as refusal:
        render(over(ON, experiment(text)))
    assert said in str(refusal.value)
    assert not re.search(r"Go value|<nil>", str(refusal.value))


@pytest.mark.parametrize("name", builtin_experiments())
def test_each_built_in_experiment_passes_as_ones_own(name: str) -> None:
    """A shape that is too narrow would refuse what the program runs."""
    _, own = experiment_text(name)
    render(over(ON, ALL_FAULTS, experiment(own), {"chaos": {"maxDurationSeconds": 86400}}))


def test_the_admission_policy_is_refused_where_kubernetes_does_not_know_it() -> None:
    """It is generally available since 1.30."""
    values = with_chaos(admissionPolicy={"enabled": True})
    with pytest.raises(SpecError, match=r"expected 1\.30 or later"):
        render(values, kube_version="1.29.9")
    render(values, kube_version="1.30.0")


OUT_OF_RANGE: dict[str, dict[str, Any]] = {
    "a fault that is not in the catalogue": {"allowedFaults": ["kv.bitflop"]},
    "no fault at all": {"allowedFaults": []},
    "a fault twice": {"allowedFaults": ["kv.bitflip", "kv.bitflip"]},
    "six faults at a time": {"maxConcurrentFaults": 6},
    "no fault at a time": {"maxConcurrentFaults": 0},
    "a run of nine seconds": {"maxDurationSeconds": 9},
    "a run of more than a day": {"maxDurationSeconds": 86401},
    "an experiment that does not exist": {"experiment": {"name": "smokes"}},
    "a kind that does not exist": {"kind": "Job"},
    "a schedule of four fields": {"schedule": "0 3 * *"},
    "a label without a value": {"namespaceLabel": "tocsin.dev/chaos"},
    "a store whose address a shell would take apart": {"publish": {"url": "s3://a/$(id)"}},
    "too little time to take faults back": {"driver": {"terminationGracePeriodSeconds": 30}},
    "nothing instead of a switch": {"enabled": None},
    "a word instead of a switch": {"dryRun": "no"},
    "a misspelt key": {"dryrun": True},
}


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_the_schema_refuses_before_anything_is_rendered(case: str) -> None:
    """Also while chaos is off: a limit that is written wrong is no limit."""
    with pytest.raises(SpecError, match=r"(?i)values don't meet|additional propert|schema"):
        render({"chaos": OUT_OF_RANGE[case]})


@pytest.mark.parametrize("name", builtin_experiments())
def test_what_the_guards_know_of_an_experiment_is_what_it_says(name: str) -> None:
    """Refused with one of its faults left out, and one second under its duration."""
    spec = load_experiment(name)
    kinds = sorted({fault.kind for fault in spec.faults})
    chosen = {"experiment": {"name": name}, "allowedFaults": kinds}
    seconds = int(spec.safety.max_duration_s)
    render(with_chaos(**chosen, maxDurationSeconds=seconds))
    with pytest.raises(SpecError, match="max_duration"):
        render(with_chaos(**chosen, maxDurationSeconds=seconds - 1))
    others = [kind for kind in faults() if kind != kinds[-1]]
    with pytest.raises(SpecError, match=f"names the fault {kinds[-1]}"):
        render(with_chaos(**{**chosen, "allowedFaults": others}))


class _ApiServer(BaseHTTPRequestHandler):
    """As much of an API server as a template's lookup of a namespace asks for."""

    labels: dict[str, str] = {}  # noqa: RUF012 - set by the test on a class of its own

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = answers(self.labels).get(path)
        self.send_response(404 if found is None else 200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(found or {"kind": "Status", "code": 404}).encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


def answers(labels: dict[str, str]) -> dict[str, dict[str, Any]]:
    """By path: discovery of namespaces and of KubeRay's kinds, and one namespace."""
    ray = {"groupVersion": "ray.io/v1", "version": "v1"}
    return {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [{"name": "ray.io", "versions": [ray], "preferredVersion": ray}],
        },
        "/apis/ray.io/v1": {
            "kind": "APIResourceList",
            "groupVersion": "ray.io/v1",
            "resources": [
                {"name": "rayservices", "namespaced": True, "kind": "RayService", "verbs": ["get"]}
            ],
        },
        "/api/v1": {
            "kind": "APIResourceList",
            "groupVersion": "v1",
            "resources": [
                {"name": "namespaces", "namespaced": False, "kind": "Namespace", "verbs": ["get"]}
            ],
        },
        "/api/v1/namespaces/tocsin-demo": {
            "kind": "Namespace",
            "apiVersion": "v1",
            "metadata": {"name": "tocsin-demo", "labels": labels},
        },
    }


@contextmanager
def cluster(labels: dict[str, str], folder: Path) -> Iterator[list[str]]:
    """Arguments with which helm asks a cluster whose namespace carries these labels."""
    handler = type("Handler", (_ApiServer,), {"labels": labels})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = folder / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [
                    {
                        "name": "here",
                        "cluster": {"server": f"http://127.0.0.1:{server.server_port}"},
                    }
                ],
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
                "users": [{"name": "me", "user": {}}],
            }
        )
    )
    try:
        yield ["--kubeconfig", str(config)]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


OWN_LABEL = over(ARMED, {"chaos": {"namespaceLabel": "team/drills=yes"}})


@pytest.mark.parametrize(
    ("labels", "values", "refused"),
    [
        ({}, ARMED, True),
        ({"tocsin.dev/chaos": "forbidden"}, ARMED, True),
        ({"tocsin.dev/chaos": "allowed"}, ARMED, False),
        ({}, ON, False),
        ({}, {}, False),
        ({"team/drills": "yes"}, OWN_LABEL, False),
    ],
)
def test_on_a_cluster_arming_needs_the_namespace_label(
    labels: dict[str, str], values: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    """Helm looks the namespace up on an API server; a dry run and no chaos need no label."""
    given = tmp_path / "values.json"
    given.write_text(json.dumps(values))
    with cluster(labels, tmp_path) as where:
        words = [tools.helm(), "template", "demo", CHART, "--namespace", "tocsin-demo"]
        words += ["--values", given, "--dry-run=server", *where]
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, timeout=60, check=False
        )
    # What is not refused goes on to what this server does not have: the kinds' schemas.
    assert ("execution error" in done.stderr) == refused, done.stderr
    assert (
        "kubectl label namespace tocsin-demo tocsin.dev/chaos=allowed" in done.stderr
    ) == refused
    assert refused or "openapi" in done.stderr
