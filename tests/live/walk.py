"""The whole way once: a chaos run, watched by real servers; what was seen is kept for the tests."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.checkout import ROOT
from tests.live.stubs import Robot
from tocsin.dashboards.coverage import missing
from tocsin.dashboards.render.files import ALERTMANAGER, PROMETHEUS, write
from tocsin.dashboards.render.options import Channel, RenderOptions
from tocsin.ray_jobs.cluster import free_port
from tocsin.ray_jobs.monitor import Monitor

TOCSIN = Path(sys.executable).with_name("tocsin")
_SPEC = Path(__file__).with_name("walk.yaml")
_LIMIT_S = 480.0
"""A minute and a half where two cores are free; a busy machine takes four times as long."""
_RANGES = {"__rate_interval": "30s", "__range": "5m"}
_PANELS_EVERY_S = 15.0
"""Between two looks at all panels: a hundred queries are work that the served model must share."""


@dataclass
class Walk:
    """What was seen on the way.

    Attributes:
        empty: panel queries that had no data at any look.
        first_s: Unix time at which each alert was first seen in Alertmanager, by name.
        metric_s: Unix time at which Prometheus first knew of a failed check.
        said: what the command printed.
    """

    folder: Path
    robot: Robot
    code: int = -1
    said: str = ""
    metric_s: float = 0.0
    first_s: dict[str, float] = field(default_factory=dict)
    alerts: dict[str, dict[str, Any]] = field(default_factory=dict)
    empty: tuple[str, ...] = ()
    live_page: str = ""

    @property
    def run_dir(self) -> Path:
        return (self.folder / "store" / "latest").resolve()

    def verdict(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.run_dir / "verdict.json").read_text())
        return document


@contextmanager
def walked(folder: Path) -> Iterator[Walk]:
    """Relay, Prometheus and Alertmanager first, then the run; all ended at the end."""
    robot = Robot()
    hub, gateway, relay = free_port(), free_port(), free_port()
    alertmanager = free_port()
    options = RenderOptions(
        gateway_url=f"http://127.0.0.1:{gateway}",
        relay_url=f"http://127.0.0.1:{relay}",
        secrets=str(folder),
        channels=frozenset({Channel.WECOM_ROBOT, Channel.WEBHOOK}),
        drills_page=True,
        http_sd=(),
        drill_targets=(f"127.0.0.1:{hub}",),
        alertmanagers=(f"127.0.0.1:{alertmanager}",),
        scrape_s=1,
        evaluation_s=1,
    )
    write(folder, options)
    _private(folder / "tocsin_token", "the token of the walk")
    monitor = Monitor(
        folder / "data",
        prometheus_yml=folder / PROMETHEUS,
        alertmanager_yml=folder / ALERTMANAGER,
        prometheus_port=free_port(),
        alertmanager_port=alertmanager,
    )
    walk = Walk(folder, robot)
    environment = {
        **os.environ,
        "TOCSIN_METRICS_PORT": str(hub),
        "TOCSIN_ALERTMANAGER_URL": monitor.alertmanager_url,
        "TOCSIN_TOKEN": "the token of the walk",
    }
    with monitor, _relay(folder, robot, relay, environment):
        _run(walk, gateway, monitor, environment)
        yield walk
    robot.close()


def _run(walk: Walk, gateway: int, monitor: Monitor, environment: dict[str, str]) -> None:
    log, url = walk.folder / "run.log", monitor.prometheus_url
    words = [str(TOCSIN), "chaos", "run", str(_SPEC), "--port", str(gateway)]
    words += ["--store", str(walk.folder / "store")]
    empty: set[str] | None = None
    next_s = time.monotonic() + _PANELS_EVERY_S
    until_s = time.monotonic() + _LIMIT_S
    with log.open("wb") as file:
        child = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=ROOT
        )
        try:
            while child.poll() is None and time.monotonic() < until_s:
                _look(walk, monitor)
                if time.monotonic() >= next_s:
                    found = set(map(str, missing(url, values=_RANGES, timeout_s=60.0)))
                    empty = found if empty is None else empty & found
                    next_s = time.monotonic() + _PANELS_EVERY_S
                _look_at_page(walk, gateway)
                time.sleep(0.5)
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
            walk.code = child.wait(60.0)
    walk.empty = tuple(sorted(empty or ()))
    walk.said = log.read_text(errors="replace")
    _look(walk, monitor)


def _look(walk: Walk, monitor: Monitor) -> None:
    """What Prometheus and Alertmanager know by now."""
    now_s = time.time()
    if not walk.metric_s:
        query = {"query": "sum(tocsin_check_failures_total) > 0"}
        answer = httpx.get(f"{monitor.prometheus_url}/api/v1/query", params=query).json()
        walk.metric_s = now_s if answer["data"]["result"] else 0.0
    for alert in httpx.get(f"{monitor.alertmanager_url}/api/v2/alerts").json():
        name = alert["labels"]["alertname"]
        walk.first_s.setdefault(name, now_s)
        walk.alerts.setdefault(name, alert)


def _look_at_page(walk: Walk, gateway: int) -> None:
    """The live page once a failure is on it."""
    if not walk.metric_s or "tocsin reproduce " in walk.live_page:
        return
    try:
        walk.live_page = httpx.get(f"http://127.0.0.1:{gateway}/live", timeout=10.0).text
    except httpx.HTTPError:
        return


@contextmanager
def _relay(folder: Path, robot: Robot, port: int, environment: dict[str, str]) -> Iterator[None]:
    """The relay as people run it, with every receiver led to the robot."""
    names = ("wecom-robot", "drill", "deadman")
    config = ["state: relay", f"listen: {{port: {port}}}", "receivers:"]
    for name in names:
        _private(folder / f"{name}.url", f"{robot.url}/{name}")
        config.append(
            f"  {name}: {{kind: wecom_robot, url_file: {name}.url, per_minute: 600, language: zh}}"
        )
    config.append(f"  webhook: {{kind: webhook, url: '{robot.url}/webhook'}}")
    (folder / "relay.yml").write_text("\n".join(config) + "\n")
    words = [str(TOCSIN), "alerts", "relay", "--config", str(folder / "relay.yml")]
    with (folder / "relay.log").open("wb") as log:
        child = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            _wait(f"http://127.0.0.1:{port}/healthz", child, folder / "relay.log")
            yield
        finally:
            child.terminate()
            child.wait(20.0)


def _wait(url: str, child: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(300):
        assert child.poll() is None, log.read_text()
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url} did not answer: {log.read_text()}")


def _private(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def reproductions(text: str) -> list[str]:
    """Commands in a message that run a failure again."""
    return re.findall(r"tocsin reproduce ([0-9A-Za-z:_]+)", text)
