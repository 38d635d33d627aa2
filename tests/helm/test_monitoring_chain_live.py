"""From a pod's page to a person: rendered monitor, rules and routes on real servers."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
import yaml

from tocsin.helm.gate.render import render
from tocsin.helm.monitoring.merge import merged
from tocsin.ray_jobs.monitor import Monitor

pytestmark = pytest.mark.live

HOST = "127.0.0.1"
WAIT_S = 30.0
AGAIN_S = 75.0
"""Prometheus sends what fires before it has found an Alertmanager again only after a minute."""
VALUES = {
    "monitoring": {
        "podMonitor": {"enabled": True, "intervalSeconds": 1, "timeoutSeconds": 1},
        "prometheusRule": {"enabled": True},
        "alertmanagerConfig": {
            "enabled": True,
            "degrade": {"enabled": False},
            "receivers": {
                kind: {"webhookSecret": {"name": kind, "key": "url"}}
                for kind in ("page", "ticket", "archive", "drill", "deadman")
            },
        },
    }
}


@dataclass(slots=True)
class World:
    """Every pod's page under its own path, and what each receiver was told.

    Attributes:
        told: receiver and labels of each alert, as they came.
    """

    pages: dict[str, dict[str, float]] = field(default_factory=dict)
    prometheus_url: str = ""
    told: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def set(self, pod: str, **values: float) -> None:
        """What a pod's page says from now on."""
        self.pages[pod] = self.pages.get(pod, {}) | values

    def knows(self, query: str) -> bool:
        """Whether Prometheus finds anything by now."""
        answer = httpx.get(
            f"{self.prometheus_url}/api/v1/query", params={"query": query}, trust_env=False
        )
        return bool(answer.json()["data"]["result"])

    def heard(self, kind: str, **labels: str) -> list[dict[str, str]]:
        """Alerts with these labels that a receiver was told of."""
        return [told for path, told in self.told if path == kind and labels.items() <= told.items()]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def _page(values: dict[str, float]) -> str:
    """The exposition of what the tests set."""
    lines = [
        f'tocsin_operator_failures_window{{model="m",operator="{name}",scope="fleet"}} {value}'
        for name, value in values.items()
        if name != "running"
    ]
    if "running" in values:
        lines.append(f"tocsin_chaos_running {values['running']}")
    return "\n".join([*lines, ""])


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[World, int]]:
    made = World()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pod = self.path.strip("/").partition("/")[0]
            self._say(_page(made.pages[pod]) if pod in made.pages else "", pod in made.pages)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            kind = self.path.strip("/")
            made.told += [(kind, one["labels"]) for one in body["alerts"]]
            self._say("", True)

        def _say(self, text: str, found: bool) -> None:
            self.send_response(200 if found else 404)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made, server.server_address[1]
    server.shutdown()
    server.server_close()


def _scrape(monitor: dict[str, Any], port: int, pods: dict[str, str]) -> dict[str, Any]:
    """The scrape configuration that the operator makes of a PodMonitor, with pods that stand still.

    Its own relabelings come first, as in its `pkg/prometheus/promcfg.go`.
    """
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    namespace, name = monitor["metadata"]["namespace"], monitor["metadata"]["name"]
    own = [
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        {"target_label": "job", "replacement": f"{namespace}/{name}"},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
    ]
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    theirs = [
        {names.get(key, key): value for key, value in rule.items()}
        for rule in endpoint["relabelings"]
    ]
    targets = [
        {
            "targets": [f"{HOST}:{port}"],
            "labels": {
                "__metrics_path__": f"/{pod}{endpoint['path']}",
                "__meta_kubernetes_namespace": namespace,
                "__meta_kubernetes_pod_name": pod,
                "__meta_kubernetes_pod_container_name": component,
                "__meta_kubernetes_pod_label_app_kubernetes_io_instance": monitor["metadata"][
                    "labels"
                ]["app.kubernetes.io/instance"],
                "__meta_kubernetes_pod_label_app_kubernetes_io_component": component,
            },
        }
        for pod, component in pods.items()
    ]
    return {
        "job_name": f"podMonitor/{namespace}/{name}/0",
        "honor_labels": endpoint["honorLabels"],
        "scrape_interval": endpoint["interval"],
        "scrape_timeout": endpoint["scrapeTimeout"],
        "sample_limit": monitor["spec"]["sampleLimit"],
        "static_configs": targets,
        "relabel_configs": [*own, *theirs],
    }


@pytest.fixture(scope="module")
def servers(world: tuple[World, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two releases of one name in two namespaces, each with all objects."""
    made, port = world
    folder = tmp_path_factory.mktemp("servers")
    scrapes, configs, files = [], [], []
    for namespace in ("here", "there"):
        bodies = {
            one.kind: one.body
            for one in render(VALUES, namespace=namespace)
            if one.api_version.startswith("monitoring.coreos.com/")
        }
        pods = {f"{namespace}-head": "head", f"{namespace}-driver": "chaos"}
        scrapes.append(_scrape(bodies["PodMonitor"], port, pods))
        configs.append(bodies["AlertmanagerConfig"])
        file = folder / f"{namespace}.rules.yml"
        file.write_text(yaml.safe_dump(bodies["PrometheusRule"]["spec"], allow_unicode=True))
        files.append(str(file))
        for pod in pods:
            made.set(pod)
    alertmanager_port = _free_port()
    alertmanager = merged(configs, secrets=lambda name, key: f"http://{HOST}:{port}/{name}")
    prometheus = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": files,
        "scrape_configs": scrapes,
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [f"{HOST}:{alertmanager_port}"]}]}]
        },
    }
    paths = {"prometheus": prometheus, "alertmanager": alertmanager}
    for name, document in paths.items():
        (folder / f"{name}.yml").write_text(yaml.safe_dump(document, allow_unicode=True))
    with Monitor(
        folder,
        prometheus_yml=folder / "prometheus.yml",
        alertmanager_yml=folder / "alertmanager.yml",
        prometheus_port=_free_port(),
        alertmanager_port=alertmanager_port,
    ) as monitor:
        made.prometheus_url = monitor.prometheus_url
        yield made


def _until(true: Callable[[], object], what: str, wait_s: float = WAIT_S) -> None:
    until_s = time.monotonic() + wait_s
    while not true():
        assert time.monotonic() < until_s, f"{what} did not come within {wait_s:.0f} s"
        time.sleep(0.05)


def test_a_failing_operator_pages_the_people_of_its_own_release(servers: World) -> None:
    """With namespace and release on it, through the operator's default strategy."""
    servers.set("here-head", rope=11)
    _until(lambda: servers.heard("page", operator="rope"), "the page")
    for told in servers.heard("page"):
        assert (told["namespace"], told["release"]) == ("here", "demo")
        assert "chaos" not in told
    assert servers.heard("drill", operator="rope") == []


def test_what_an_experiment_breaks_is_heard_by_the_drills_receiver_alone(servers: World) -> None:
    """And an experiment there does not make a drill of what fails here."""
    servers.set("there-driver", running=1)
    # What TOCSIN_CHAOS_ANNOUNCE_S leaves time for: no evaluation sees the failure alone.
    _until(
        lambda: servers.knows('tocsin_chaos_running{namespace="there"} == 1'), "the first scrape"
    )
    servers.set("there-head", swiglu=11)
    servers.set("here-head", sampler=11)
    _until(lambda: servers.heard("drill", operator="swiglu", namespace="there"), "the drill")
    _until(lambda: servers.heard("page", operator="sampler", namespace="here"), "the page")
    time.sleep(1.0)  # a page would have been out at once: its group waits 0 s
    assert servers.heard("page", operator="swiglu") == []
    assert servers.heard("drill", operator="sampler") == []


def test_the_watchdog_of_each_release_reaches_its_deadman(servers: World) -> None:
    """Its absence there is the alarm."""
    for namespace in ("here", "there"):
        _until(
            lambda namespace=namespace: servers.heard(  # type: ignore[misc]
                "deadman", alertname="TocsinWatchdog", namespace=namespace
            ),
            f"the watchdog of {namespace}",
            AGAIN_S,
        )
