"""Each contract between the chart and a program is broken once, and the break is named."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.helm.gate_charts import Body, Edit, at, edited
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.proofs.commands import objection, ray_flags
from tocsin.helm.gate.proofs.contracts import contract_findings
from tocsin.helm.gate.proofs.environment import is_read
from tocsin.helm.gate.proofs.metric_names import problems
from tocsin.helm.gate.render import Case, render
from tocsin.helm.monitoring.examples import EXAMPLES

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns of its own future

VALUES: Body = {**EXAMPLES["told"], "chaos": {"enabled": True}}
CASE = Case(VALUES)
HEAD = ("spec", "rayClusterConfig", "headGroupSpec")
POD = (*HEAD, "template", "spec")
DRIVER = ("spec", "jobTemplate", "spec", "template", "spec", "containers", 0)


@pytest.fixture(scope="module")
def good() -> Sequence[Manifest]:
    """A service that is watched, with a chaos driver."""
    return render(VALUES)


def put(*path: Any) -> Edit:
    """Set what lies at a path; the last item is the value."""
    *keys, last, value = path

    def edit(body: Body) -> None:
        at(body, *keys)[last] = value

    return edit


def append(*path: Any) -> Edit:
    """Add to the list at a path; the last item is the entry."""
    *keys, value = path
    return lambda body: at(body, *keys).append(value)


def replace(*path: Any) -> Edit:
    """Replace words in a text at a path; the last two items are old and new."""
    *keys, last, old, new = path

    def edit(body: Body) -> None:
        holder = at(body, *keys)
        assert old in holder[last]
        holder[last] = holder[last].replace(old, new)

    return edit


SERVE = ("spec", "serveConfigV2")
BREAKS: dict[str, tuple[str, str, Edit, str]] = {
    # what is broken: (kind, name, edit, rule)
    "a flag": ("CronJob", "", append(*DRIVER, "args", "--sed=3"), "contract.command"),
    "a program": ("CronJob", "", put(*DRIVER, "command", ["bash", "-c", "x"]), "contract.command"),
    "an experiment": (
        "CronJob",
        "",
        lambda body: at(body, *DRIVER).update(command=["tocsin"], args=["chaos", "run", "smokey"]),
        "contract.command",
    ),
    "a reference": ("CronJob", "", append(*DRIVER, "args", "$(NOBODY)"), "contract.command"),
    "a flag of ray": (
        "RayService",
        "",
        put(*HEAD, "rayStartParams", "num-cpu", "0"),
        "contract.command",
    ),
    "a number for ray": (
        "RayService",
        "",
        put(*HEAD, "rayStartParams", "num-cpus", "many"),
        "contract.command",
    ),
    "a value that is no text": (
        "RayService",
        "",
        put(*HEAD, "rayStartParams", "num-cpus", 0),
        "contract.command",
    ),
    "an argument of the app": (
        "RayService",
        "",
        replace(*SERVE, "page_size", "pagesize"),
        "contract.config",
    ),
    "a field of Serve": (
        "RayService",
        "",
        replace(*SERVE, "import_path", "importpath"),
        "contract.config",
    ),
    "a setting of the checker": (
        "ConfigMap",
        "demo-tocsin-checker",
        replace("data", "checker.yaml", "cooldown_s", "cooldown"),
        "contract.config",
    ),
    "a field of the policy": (
        "ConfigMap",
        "demo-tocsin-chaos",
        replace("data", "policy.yaml", "dry_run", "dryRun"),
        "contract.config",
    ),
    "the namespace of the policy": (
        "ConfigMap",
        "demo-tocsin-chaos",
        replace("data", "policy.yaml", "tocsin-demo", "elsewhere"),
        "contract.config",
    ),
    "two serve configs": (
        "ConfigMap",
        "demo-tocsin-serve",
        replace("data", "serve.yaml", "slots: 8", "slots: 9"),
        "contract.config",
    ),
    "a variable": (
        "RayService",
        "",
        append(*POD, "containers", 0, "env", {"name": "TOCSIN_STAET", "value": "x"}),
        "contract.environment",
    ),
    "a container port": (
        "RayService",
        "",
        lambda body: at(body, *POD, "containers", 0, "ports", 0).update(containerPort=7000),
        "contract.port",
    ),
    "a page of a probe": (
        "RayService",
        "",
        lambda body: at(body, *POD, "containers", 0, "livenessProbe", "httpGet").update(path="/x"),
        "contract.port",
    ),
    "a host": (
        "CronJob",
        "",
        append(*DRIVER, "args", "http://demo-tocsin-haed-svc:8000"),
        "contract.name",
    ),
    "a port of a host": (
        "CronJob",
        "",
        append(*DRIVER, "args", "http://demo-tocsin-head-svc:8001"),
        "contract.name",
    ),
    "a ConfigMap": (
        "RayService",
        "",
        lambda body: [
            volume["configMap"].update(name="nobody")
            for volume in at(body, *POD, "volumes")
            if "configMap" in volume
        ],
        "contract.name",
    ),
    "an account": ("RayService", "", put(*POD, "serviceAccountName", "nobody"), "contract.name"),
    "a mount": (
        "RayService",
        "",
        append(*POD, "containers", 0, "volumeMounts", {"name": "nothing", "mountPath": "/x"}),
        "contract.name",
    ),
    "a role": ("RoleBinding", "", put("roleRef", "name", "nobody"), "contract.name"),
    "a metric": (
        "PrometheusRule",
        "",
        lambda body: at(body, "spec", "groups", 0, "rules", 0).update(expr="rate(tocsin_reqs[5m])"),
        "contract.metric",
    ),
    "a selector of a policy": (
        "NetworkPolicy",
        "",
        put("spec", "podSelector", "matchLabels", "app.kubernetes.io/instance", "other"),
        "contract.selector",
    ),
    "a selector of a monitor": (
        "PodMonitor",
        "",
        put("spec", "selector", "matchLabels", {"app.kubernetes.io/instance": "other"}),
        "contract.selector",
    ),
    "the port of a monitor": (
        "PodMonitor",
        "",
        lambda body: at(body, "spec", "podMetricsEndpoints", 0).update(port="metric"),
        "contract.selector",
    ),
    "a label of a pod": (
        "RayService",
        "",
        put(*HEAD, "template", "metadata", "labels", "app.kubernetes.io/instance", "other"),
        "contract.selector",
    ),
    "a path of the image": (
        "RayService",
        "",
        append(*POD, "containers", 0, "env", {"name": "TOCSIN_CACHE", "value": "/opt/tocsin/cash"}),
        "contract.path",
    ),
    "a folder that the image has elsewhere": (
        "RayService",
        "",
        lambda body: [
            entry.update(value="/var/lib/tocsin/cachex")
            for entry in at(body, *POD, "containers", 0, "env")
            if entry["name"] == "TOCSIN_CACHE"
        ],
        "contract.path",
    ),
    "a mount where nobody looks": (
        "CronJob",
        "",
        lambda body: at(body, *DRIVER, "volumeMounts")[-1].update(
            mountPath="/var/lib/tocsin/stored"
        ),
        "contract.path",
    ),
    "alerts of others that end a run": (
        "ConfigMap",
        "demo-tocsin-chaos",
        replace("data", "policy.yaml", "enabled: true", "enabled: true\nstop_on_alert: http://a:1"),
        "contract.config",
    ),
    "another service that is attacked": (
        "ConfigMap",
        "demo-tocsin-chaos",
        replace("data", "policy.yaml", "demo-tocsin-head-svc", "demo-tocsin-serve-svc"),
        "contract.config",
    ),
    "proxies on the head alone": (
        "ConfigMap",
        "demo-tocsin-serve",
        replace("data", "serve.yaml", "EveryNode", "HeadOnly"),
        "contract.config",
    ),
    "labels of a pushed alert": (
        "RayService",
        "",
        append(*POD, "containers", 0, "env", {"name": "TOCSIN_ALERT_LABELS", "value": "release=x"}),
        "contract.name",
    ),
    "the name of another release": (
        "ServiceAccount",
        "",
        put("metadata", "name", "tocsin-head"),
        "contract.name",
    ),
    "a dashboard's file that two releases share": (
        "ConfigMap",
        "demo-tocsin-checker",
        put("metadata", "labels", "app.kubernetes.io/component", "monitoring"),
        "contract.name",
    ),
    "Ray's own pods": (
        "NetworkPolicy",
        "demo-tocsin-ray",
        lambda body: at(body, "spec", "ingress").pop(0),
        "contract.flow",
    ),
    "who scrapes the driver": (
        "NetworkPolicy",
        "demo-tocsin-chaos",
        put("spec", "ingress", []),
        "contract.flow",
    ),
    "the application, asked by the driver": (
        "NetworkPolicy",
        "demo-tocsin-chaos",
        lambda body: at(body, "spec", "egress").pop(1),
        "contract.flow",
    ),
    "a port that nobody opens": (
        "NetworkPolicy",
        "demo-tocsin-chaos",
        append("spec", "egress", 1, "ports", {"port": 8266}),
        "contract.flow",
    ),
    "a strange port": (
        "NetworkPolicy",
        "demo-tocsin-chaos",
        append("spec", "egress", {"ports": [{"port": 444}]}),
        "contract.flow",
    ),
    "the API server": (
        "NetworkPolicy",
        "demo-tocsin-chaos",
        lambda body: at(body, "spec", "egress").pop(2),
        "contract.flow",
    ),
    "names over one protocol": (
        "NetworkPolicy",
        "demo-tocsin-chaos",
        lambda body: at(body, "spec", "egress", 0, "ports").pop(1),
        "contract.flow",
    ),
}


def test_what_the_chart_renders_is_what_the_programs_read(good: Sequence[Manifest]) -> None:
    """Nothing is found in the chart as it is: each finding below is the break's own."""
    assert [str(one) for one in contract_findings(good, CASE)] == []


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_contract_is_named(good: Sequence[Manifest], name: str) -> None:
    """One edit in one rendered object turns one rule red."""
    kind, which, edit, rule = BREAKS[name]
    found = contract_findings(edited(good, kind, edit, which), CASE)
    assert rule in {one.rule for one in found}, [str(one) for one in found]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("tocsin", "chaos", "run", "smoke", "--seed", "3"), ""),
        (("/opt/tocsin/venv/bin/tocsin", "chaos", "plan"), ""),
        (("tocsin", "chaos", "run", "smoke", "--seed", "x"), "integer"),
        (("tocsin", "chaos", "runs"), "No such command"),
        (("tocsin", "serve", "--port", "99999"), "65535"),
        (("tocsin", "serve", "--help"), "prints help"),
        (("tocsin",), "no command"),
        (("ray", "start", "--head"), ""),
        (("ray", "strat"), "no command of ray"),
        (("python", "-m", "tocsin.ray_jobs.oracle"), ""),
        (("python", "-m", "tocsin.ray_jobs.oracel"), "no module"),
        (("python", "-c", "print("), "does not compile"),
        (("sh", "-c", "true"), "shell"),
    ],
)
def test_a_command_line_is_judged_by_its_program(line: tuple[str, ...], said: str) -> None:
    """Nothing is run: only parsed."""
    assert (said in objection(line)) if said else objection(line) == ""


def test_flags_of_ray_start_are_those_that_the_operator_writes() -> None:
    """A bare switch for true, nothing for false, text for the rest."""
    params = {"num-cpus": "0", "block": "true", "no-monitor": "false", "include-dashboard": "false"}
    assert ray_flags(params) == ["--block", "--include-dashboard=false", "--num-cpus=0"]


def test_variables_of_the_program_ray_and_libraries_are_known() -> None:
    """And those with a slip are not."""
    known = ("TOCSIN_STATE", "RAY_USAGE_STATS_ENABLED", "HF_HUB_OFFLINE", "HOME")
    assert all(map(is_read, known))
    assert not any(map(is_read, ("TOCSIN_STATES", "RAY_USAGE_STAT_ENABLED", "HF_HUB_OFLINE")))


def test_a_query_is_held_against_the_catalogue() -> None:
    """Names, labels, and what does not parse."""
    assert problems('sum by (model) (rate(tocsin_checks_total{result="alarm"}[1m]))') == ()
    assert problems("tocsin_check_total") == ("the metric tocsin_check_total",)
    assert problems('tocsin_checks_total{reslut="x"}') == (
        "tocsin_checks_total by the label reslut",
    )
    assert "does not parse" in problems("rate(x[1m]) >")[0]
