"""The generated routes on a real Alertmanager: who hears what, how soon, and who is kept quiet."""

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

from tocsin.dashboards.contract import Alert, alerts, filled
from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.render.files import ALERTMANAGER, PROMETHEUS, write
from tocsin.dashboards.render.options import Channel, RenderOptions, WecomApp
from tocsin.dashboards.render.routes import example
from tocsin.dashboards.render.rules import annotations
from tocsin.ray_jobs.monitor import Monitor

pytestmark = pytest.mark.live

HOST = "127.0.0.1"
WAIT_S = 20.0


@dataclass(slots=True)
class Ears:
    """Stands in for every service behind Alertmanager, and remembers what it was told."""

    port: int
    heard: list[tuple[float, str, str, dict[str, str]]] = field(default_factory=list)

    def at(self, path: str, word: str) -> list[tuple[float, str, str, dict[str, str]]]:
        """What came to a path and speaks of something."""
        return [one for one in self.heard if one[1].startswith(path) and word in one[2]]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def ears() -> Iterator[Ears]:
    made = Ears(_free_port())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            made.heard.append((time.monotonic(), self.path, body, dict(self.headers.items())))
            self.do_GET()

        def do_GET(self) -> None:
            said = json.dumps({"errcode": 0, "errmsg": "ok", "access_token": "T", "status": "ok"})
            self.send_response(202 if self.path.startswith("/pagerduty") else 200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(said.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((HOST, made.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def alertmanager(ears: Ears, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("alertmanager")
    secrets = folder / "secrets"
    secrets.mkdir()
    (secrets / "tocsin_token").write_text("the-token")
    (secrets / "pagerduty_key").write_text("the-key")
    base = f"http://{HOST}:{ears.port}"
    port, other = _free_port(), _free_port()
    options = RenderOptions(
        gateway_url=base,
        relay_url=base,
        secrets=str(secrets),
        channels=frozenset(Channel),
        wecom_app=WecomApp("corp", "7", "s3cret-words", api_url=f"{base}/wecom-app/"),
        slack_url=f"{base}/slack",
        pagerduty_url=f"{base}/pagerduty",
        http_sd=(),
        alertmanagers=(f"{HOST}:{port}",),
    )
    write(folder, options)
    monitor = Monitor(
        folder,
        prometheus_yml=folder / PROMETHEUS,
        alertmanager_yml=folder / ALERTMANAGER,
        prometheus_port=other,
        alertmanager_port=port,
    )
    with monitor:
        yield monitor.alertmanager_url


def _post(url: str, *chosen: tuple[Alert, dict[str, str]]) -> float:
    """Alerts as Prometheus sends them; when it was."""
    body = [
        {
            "labels": {**example(unit), **labels},
            "annotations": {
                name: filled(text, {**unit.fires.labels, **labels}, unit.fires.value)
                for name, text in annotations(unit, RenderOptions()).items()
            },
        }
        for unit, labels in chosen
    ]
    sent_s = time.monotonic()
    httpx.post(f"{url}/api/v2/alerts", json=body, trust_env=False).raise_for_status()
    return sent_s


def _until(true: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < until_s, f"{what} did not come within {WAIT_S:.0f} s"
        time.sleep(0.02)


def test_a_page_reaches_every_channel_at_once_and_degrades(alertmanager: str, ears: Ears) -> None:
    """WeCom app, robot, PagerDuty, Slack and the hook, each with the command to run."""
    unit = alerts()["operator_failing"]
    sent_s = _post(alertmanager, (unit, {"operator": "rope"}))
    paths = ("/wecom-app/message/send", "/alerts/wecom-robot", "/pagerduty", "/slack", "/degrade")
    for path in paths:
        _until(lambda path=path: ears.at(path, "TocsinOperatorFailing"), path)  # type: ignore[misc]
    for path in paths:
        when_s, _, body, headers = ears.at(path, "TocsinOperatorFailing")[0]
        assert when_s - sent_s < 5.0
        assert "tocsin reproduce latest:rope" in body
        if path == "/degrade":
            assert headers["Authorization"] == "Bearer the-token"
    (_, _, body, _) = ears.at("/pagerduty", "TocsinOperatorFailing")[0]
    assert json.loads(body)["routing_key"] == "the-key"
    assert "一分钟内失败" in ears.at("/wecom-app/message/send", "TocsinOperatorFailing")[0][2]


def test_a_page_silences_the_ticket_about_the_same_operator(alertmanager: str) -> None:
    """And neither another operator's, nor a drill's page one in earnest."""
    page, ticket = alerts()["operator_failing"], alerts()["memory_failure"]
    _post(
        alertmanager,
        (page, {"operator": "swiglu"}),
        (ticket, {"operator": "swiglu"}),
        (ticket, {"operator": "logits"}),
        (page, {"operator": "sampler", DRILL: "true"}),
        (ticket, {"operator": "sampler"}),
    )

    def muted() -> dict[str, bool]:
        answer = httpx.get(f"{alertmanager}/api/v2/alerts", trust_env=False).json()
        return {
            one["labels"]["operator"]: bool(one["status"]["inhibitedBy"])
            for one in answer
            if one["labels"]["alertname"] == ticket.name
        }

    _until(lambda: muted().get("swiglu"), "the inhibition")
    assert muted() == {"swiglu": True, "logits": False, "sampler": False}


def test_a_drill_is_heard_by_the_drills_receiver_alone(alertmanager: str, ears: Ears) -> None:
    """Nobody is paged for what was broken on purpose, and the hook is not called either."""
    unit = alerts()["cross_request_data"]
    _post(alertmanager, (unit, {"operator": "kv_update", DRILL: "true"}))
    _until(lambda: ears.at("/alerts/drill", "kv_update"), "the drill's message")
    time.sleep(1.0)  # a page would have been out at once: its group waits 0 s
    for path in ("/wecom-app/message/send", "/alerts/wecom-robot", "/pagerduty", "/slack"):
        assert ears.at(path, "kv_update") == []
    assert ears.at("/degrade", "kv_update") == []


def test_the_watchdog_reaches_the_deadman(alertmanager: str, ears: Ears) -> None:
    """Its absence there is the alarm."""
    _post(alertmanager, (alerts()["watchdog"], {}))
    _until(lambda: ears.at("/alerts/deadman", "TocsinWatchdog"), "the watchdog")


def test_secrets_are_nowhere_in_what_alertmanager_shows(alertmanager: str) -> None:
    """Its status page is read by many."""
    shown = httpx.get(f"{alertmanager}/api/v2/status", trust_env=False).text
    for secret in ("the-token", "the-key", "s3cret-words"):
        assert secret not in shown
