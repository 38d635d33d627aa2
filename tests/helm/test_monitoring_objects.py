"""What scrapes, what is drawn, the relay, and what the chart refuses or says about them."""

import base64
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dashboards.promql import seconds
from tests.helm.monitoring_rules import by_alert
from tocsin.core.errors import SpecError
from tocsin.core.metrics import CATALOGUE
from tocsin.dashboards.contract import alerts
from tocsin.dashboards.panel import substitute
from tocsin.dashboards.panels import DASHBOARDS
from tocsin.dashboards.relay.config import load_config
from tocsin.dashboards.render.prometheus import JOB, SAMPLE_LIMIT
from tocsin.helm.gate.render import CHART, Case, render, render_many
from tocsin.helm.gate.render import merged as over
from tocsin.helm.monitoring.boards import expressions
from tocsin.helm.monitoring.examples import EVERYTHING, EXAMPLES, WATCHED
from tocsin.helm.monitoring.scope import selectors
from tocsin.ray_jobs.places import METRICS_PORT

SECRET_BYTES_MAX = 1024 * 1024
"""Kubernetes refuses a Secret that is larger; Helm keeps a release in one."""
ANNOUNCE_ENV = "TOCSIN_CHAOS_ANNOUNCE_S"
KINDS = ("PodMonitor", "PrometheusRule", "AlertmanagerConfig")
POD = {
    "__meta_kubernetes_namespace": "tocsin-demo",
    "__meta_kubernetes_pod_name": "demo-worker-x7",
    "__meta_kubernetes_pod_container_name": "ray-worker",
    "__meta_kubernetes_pod_label_app_kubernetes_io_instance": "demo",
    "__meta_kubernetes_pod_label_app_kubernetes_io_component": "worker",
    "__meta_kubernetes_pod_label_ray_io_cluster": "demo-tocsin-9k2",
    "__address__": "10.0.0.7:9464",
}


def _one(kind: str, values: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    (found,) = (one.body for one in render(values, **how) if one.kind == kind)
    return found


def _boards(values: Mapping[str, Any] = WATCHED, **how: Any) -> Iterator[tuple[str, Any, Any]]:
    """File name, dashboard and ConfigMap of each."""
    for one in render(values, **how):
        if "-dashboards-" in one.name:
            ((name, text),) = one.body["data"].items()
            yield name, json.loads(text), one.body


def _target(monitor: Mapping[str, Any], pod: Mapping[str, str] = POD) -> dict[str, str]:
    """The labels of a target: the operator's own relabelings first, then the monitor's."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    labels = {
        **pod,
        "namespace": pod["__meta_kubernetes_namespace"],
        "pod": pod["__meta_kubernetes_pod_name"],
        "container": pod["__meta_kubernetes_pod_container_name"],
        "job": f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}",
        "endpoint": endpoint["port"],
    }
    for rule in endpoint["relabelings"]:
        assert set(rule) <= {"sourceLabels", "targetLabel", "replacement"}
        found = ";".join(labels.get(name, "") for name in rule.get("sourceLabels", ()))
        labels[rule["targetLabel"]] = rule.get("replacement", found)
    return {name: text for name, text in labels.items() if text and not name.startswith("__")}


def test_nothing_of_it_is_there_by_default() -> None:
    """The chart installs where no operator is."""
    for one in render({}):
        assert one.kind not in KINDS
        assert "monitoring.coreos.com" not in one.api_version
        assert "-dashboards-" not in one.name
        assert not one.name.endswith("-relay")


def test_a_target_has_the_labels_that_the_rules_ask_for() -> None:
    """Job, namespace and release hold the rules; the instance is the pod, not its address."""
    assert _target(_one("PodMonitor", WATCHED)) == {
        "job": JOB,
        "namespace": "tocsin-demo",
        "release": "demo",
        "component": "worker",
        "ray_io_cluster": "demo-tocsin-9k2",
        "instance": "demo-worker-x7",
        "pod": "demo-worker-x7",
        "container": "ray-worker",
        "endpoint": "metrics",
    }


def test_no_metric_has_a_label_that_a_target_has() -> None:
    """Else Prometheus would rename ours to exported_…, and no rule or panel would find it."""
    labels = set(_target(_one("PodMonitor", WATCHED)))
    for metric in CATALOGUE:
        assert not labels & set(metric.labels), metric.name


def test_a_pod_that_takes_the_place_of_another_is_a_series_of_its_own() -> None:
    """With the same address: a counter that begins anew is then no reset of the old one."""
    monitor = _one("PodMonitor", WATCHED)
    after = _target(monitor, {**POD, "__meta_kubernetes_pod_name": "demo-worker-k3"})
    assert after != _target(monitor)
    assert after["instance"] == "demo-worker-k3"


def test_arming_changes_neither_targets_nor_series() -> None:
    """A relabeled target is a new series, and to rules about growth a new series is news."""
    armed = over(
        WATCHED,
        {"worker": {"chaosTarget": True}, "chaos": {"enabled": True, "dryRun": False}},
    )
    assert _one("PodMonitor", armed) == _one("PodMonitor", WATCHED)


def test_an_experiment_waits_until_the_rules_know_of_it() -> None:
    """Two scrapes; the same whatever monitoring is on, because another pod would be another run."""
    runs = {"chaos": {"enabled": True}}
    drivers = [_one("CronJob", values)["spec"] for values in (runs, over(WATCHED, runs))]
    assert drivers[0] == drivers[1]
    (driver,) = drivers[0]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    waits = {one["name"]: one.get("value", "") for one in driver["env"]}
    (endpoint,) = _one("PodMonitor", WATCHED)["spec"]["podMetricsEndpoints"]
    assert float(waits[ANNOUNCE_ENV]) >= 2 * seconds(endpoint["interval"])


def test_a_direct_push_has_the_labels_of_the_rules() -> None:
    """Alertmanager takes both for one, and the routes know it."""
    values = over(WATCHED, {"alertmanager": {"url": "http://alertmanager.monitoring:9093"}})
    head = _one("RayService", values)["spec"]["rayClusterConfig"]["headGroupSpec"]
    (container,) = head["template"]["spec"]["containers"]
    told = {one["name"]: one.get("value", "") for one in container["env"]}
    labels = dict(pair.split("=") for pair in told["TOCSIN_ALERT_LABELS"].split(","))
    rules = by_alert(_one("PrometheusRule", values)["spec"]["groups"])
    declared = alerts()["operator_failing"].labels
    assert rules["TocsinOperatorFailing"]["labels"] == {**declared, **labels}


def test_finished_pods_are_not_scraped_and_no_one_elses_are() -> None:
    """A driver that is done would be a target that cannot be read: an alert about nothing."""
    spec = _one("PodMonitor", WATCHED)["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["filterRunning"] is True
    assert endpoint["port"] == "metrics"
    assert spec["namespaceSelector"] == {"matchNames": ["tocsin-demo"]}
    assert spec["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "tocsin",
        "app.kubernetes.io/instance": "demo",
    }
    (component,) = spec["selector"]["matchExpressions"]
    assert component["values"] == ["head", "worker", "chaos", "relay"]
    assert spec["sampleLimit"] == SAMPLE_LIMIT


def test_selecting_labels_are_on_what_an_operator_selects() -> None:
    """A kube-prometheus-stack that nobody changed asks for its own release's label."""
    for kind in KINDS:
        labels = _one(kind, EVERYTHING)["metadata"]["labels"]
        assert labels["release"] == "kps"
        assert labels["app.kubernetes.io/instance"] == "demo"
        assert sum(text == "one" for text in labels.values()) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"podMonitor": {"enabled": True, "timeoutSeconds": 20}}, "at most intervalSeconds"),
        (
            {
                "podMonitor": {"enabled": True, "intervalSeconds": 16},
                "prometheusRule": {"enabled": True},
            },
            "at most 15 with",
        ),
        ({"labels": {"app.kubernetes.io/name": "kps"}}, "which the chart sets itself"),
        ({"dashboards": {"label": "helm.sh/chart"}}, r"monitoring\.dashboards\.label: found"),
        ({"podMonitor": {"metricRelabelings": [{"regex": "a"}]}}, "replace without targetLabel"),
        ({"podMonitor": {"metricRelabelings": [{"action": "keep"}]}}, "keep without sourceLabels"),
        *(
            ({"podMonitor": {"metricRelabelings": [one]}}, f"takes the label {label} away")
            for one, label in (
                ({"action": "labeldrop", "regex": "pod|namespace"}, "namespace"),
                ({"action": "labeldrop"}, "__name__"),
                ({"action": "labelkeep", "regex": "__name__|job|namespace|instance"}, "release"),
                ({"targetLabel": "job", "replacement": "x"}, "job"),
            )
        ),
        *(
            ({"podMonitor": {"metricRelabelings": [{"action": "labeldrop", "regex": regex}]}}, said)
            for regex, said in (("(", "regular expression"), ("a\\", "regular expression"))
        ),
        ({"relay": {"enabled": True, "url": "http://r"}}, "expected one of them"),
        ({"relay": {"enabled": True}}, "found no configSecret"),
        ({"relay": {"enabled": True, "configSecret": "r"}}, r"found no tokenSecret\.name"),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], says: str) -> None:
    """At render time, in one line that says what to do."""
    with pytest.raises(SpecError, match=says):
        render({"monitoring": change})


@pytest.mark.parametrize(
    "one",
    [
        {"action": "labeldrop", "regex": "pod|container"},
        {"action": "labelkeep", "regex": ".+"},
        {"action": "drop", "sourceLabels": ["__name__"], "regex": "(go|python)_.*"},
        {"sourceLabels": ["pod"], "targetLabel": "pod_name"},
    ],
)
def test_a_relabeling_that_leaves_the_release_known_is_taken(one: dict[str, Any]) -> None:
    """Dropping what nobody asks for is why the value is there."""
    assert render({"monitoring": {"podMonitor": {"enabled": True, "metricRelabelings": [one]}}})


@pytest.mark.parametrize(
    "links",
    [
        {"gatewayUrl": "model.example"},
        {"docsUrl": "https://docs.example/{{ .Values }}"},
        {"grafanaUrl": 'https://g.example/" + '},
    ],
)
def test_an_address_that_would_break_an_alerts_text_is_refused(links: dict[str, str]) -> None:
    """It stands in a template of Prometheus, and in YAML."""
    with pytest.raises(SpecError):
        render({"monitoring": {"links": links}})


def test_every_question_of_every_dashboard_is_about_this_release() -> None:
    """Panels, choices at the top and annotations alike."""
    held = {("=", "namespace", "tocsin-demo"), ("=", "release", "demo")}
    seen = 0
    for _, board, _ in _boards():
        fixed = {
            one["name"]: one["query"]
            for one in board["templating"]["list"]
            if one["type"] == "constant"
        }
        assert (fixed["namespace"], fixed["release"]) == ("tocsin-demo", "demo")
        for expr in expressions(board):
            asked = re.sub(r"^label_values\((.+), \w+\)$", r"\1", substitute(expr, fixed))
            for name, matchers in selectors(asked):
                assert held <= set(matchers), f"{name} in {expr}"
                seen += 1
    assert seen > len(DASHBOARDS) * 10


def test_two_releases_in_one_grafana_have_dashboards_of_their_own() -> None:
    """Neither uid nor file name nor tag is shared: the sidecar writes all into one folder."""
    cases = [Case(WATCHED), Case(WATCHED, namespace="other"), Case(WATCHED, release="demo-2")]
    uids, files, tags = [], [], []
    for made in render_many(cases):
        for one in made.objects:
            if "-dashboards-" in one.name:
                ((name, text),) = one.body["data"].items()
                board = json.loads(text)
                uids.append(board["uid"])
                files.append(name)
                tags.append(tuple(board["tags"]))
                (link,) = board["links"]
                assert link["tags"] == board["tags"]
                assert len(board["uid"]) <= 40
                assert name == f"{board['uid']}.json"
    assert len(uids) == 3 * len(DASHBOARDS)
    assert len(set(uids)) == len(set(files)) == len(uids)
    assert len(set(tags)) == 3


def test_dashboards_are_where_the_sidecar_looks() -> None:
    """Label, its value and the folder's annotation are the user's to choose."""
    for _, _, one in _boards():
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "Tocsin"}
    for _, board, one in _boards(EVERYTHING):
        assert one["metadata"]["labels"]["dashboards.example/show"] == "yes"
        assert one["metadata"]["annotations"]["dashboards.example/folder"] == "Models"
        assert "https://docs.example/tocsin" in json.dumps(board)


def test_an_annotation_of_the_same_name_takes_the_folders_place() -> None:
    """Each key is there once: what people write by themselves wins."""
    said = {"folder": "Tocsin", "annotations": {"grafana_folder": "Mine", "a": "b"}}
    boards = list(_boards(over(WATCHED, {"monitoring": {"dashboards": said}})))
    assert boards
    for _, _, one in boards:
        assert one["metadata"]["annotations"] == {"grafana_folder": "Mine", "a": "b"}


def test_legends_are_grafanas_not_helms() -> None:
    """Braces survive."""
    text = json.dumps([board for _, board, _ in _boards()])
    assert "{{operator}}" in text
    assert "__" not in re.sub(r"\$__\w+|__value\.\w+|__all", "", text)


def test_a_release_with_everything_on_fits_its_secret_twice() -> None:
    """Helm keeps chart, values and manifest, compressed, in one Secret for each revision."""
    values = over(EVERYTHING, {"chaos": {"enabled": True}})
    files = [path for path in sorted(CHART.rglob("*")) if path.is_file()]
    kept = {
        "name": "demo",
        "chart": {
            str(path.relative_to(CHART)): base64.b64encode(path.read_bytes()).decode()
            for path in files
        },
        "config": values,
        "manifest": "---\n".join(one.text for one in render(values)),
    }
    size = len(base64.b64encode(gzip.compress(json.dumps(kept).encode(), 9)))
    print(f"release Secret with everything on: {size} of {SECRET_BYTES_MAX} bytes")
    assert size < SECRET_BYTES_MAX / 2
    for _, _, one in _boards():
        assert len(json.dumps(one).encode()) < SECRET_BYTES_MAX / 8


RELAY_FILE = """\
listen: {host: 0.0.0.0, port: 9465}
state: /var/lib/tocsin/relay
token_file: token
receivers:
  page: {kind: slack, url_file: slack-url}
"""


def test_the_relay_runs_restricted_and_reads_its_file_from_the_secret(tmp_path: Path) -> None:
    """Command, port, folder for its state and file all fit what the program does."""
    deployment = _one("Deployment", EVERYTHING)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["tocsin", "alerts", "relay"]
    assert container["args"] == ["--config", "/etc/tocsin/relay/config.yaml"]
    port, metrics = container["ports"]
    assert (metrics["name"], metrics["containerPort"]) == ("metrics", METRICS_PORT)
    (tmp_path / "relay.yaml").write_text(RELAY_FILE)
    config = load_config(tmp_path / "relay.yaml")
    assert port["containerPort"] == config.listen.port == 9465
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/etc/tocsin/relay"]["readOnly"] is True
    assert str(config.state).startswith("/var/lib/tocsin/")
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["automountServiceAccountToken"] is False
    (secret,) = (one["secret"] for one in pod["volumes"] if "secret" in one)
    assert secret["defaultMode"] == 0o440  # more, and the program does not take its secrets
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_only_alertmanagers_namespaces_reach_the_relay() -> None:
    """Whoever reaches it could speak to people in our name, if the token leaks."""
    (policy,) = (
        one.body
        for one in render(EVERYTHING)
        if one.kind == "NetworkPolicy" and one.name.endswith("-relay")
    )
    calls, scrapes = policy["spec"]["ingress"]
    assert [port["port"] for port in calls["ports"]] == ["relay"]
    assert [port["port"] for port in scrapes["ports"]] == ["metrics"]
    names = [
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for peer in calls["from"]
    ]
    assert names == ["monitoring", "alerting"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_name_that_yaml_would_misread_stays_a_name(name: str) -> None:
    """Namespaces and releases may be called `123` or `on`."""
    for one in render(EXAMPLES[name], release="on", namespace="123", is_upgrade=False):
        if one.kind in KINDS or one.name.endswith("-relay"):
            labels = one.body["metadata"]["labels"]
            assert labels["app.kubernetes.io/instance"] == "on"
            assert one.body["metadata"]["namespace"] == "123"


def _notes(**changes: Any) -> str:
    (made,) = render_many([Case(over(WATCHED, changes))])
    return made.notes


def test_the_notes_say_what_a_person_must_know() -> None:
    """The label that is missing, and what arming does to alerts."""
    assert "monitoring.labels.release=" not in _notes()
    bare = {"monitoring": {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}}
    (made,) = render_many([Case(bare)])
    assert "monitoring.labels.release=" in made.notes
    armed = {"worker": {"chaosTarget": True}, "chaos": {"enabled": True, "dryRun": False}}
    assert "outside of runs alerts are in earnest" in _notes(**armed)
    marked = {**armed, "monitoring": {"prometheusRule": {"drills": "armed"}}}
    assert "EVERY alert of this release counts as a drill's" in _notes(**marked)
    (made,) = render_many([Case({})])
    assert "Monitoring:" not in made.notes


def test_rule_files_are_yaml_before_the_places_are_filled_in() -> None:
    """An editor, a linter and a reviewer can read them as they are."""
    for path in sorted((CHART / "files").rglob("*.yaml")):
        assert yaml.safe_load(path.read_text(encoding="utf-8")), path
