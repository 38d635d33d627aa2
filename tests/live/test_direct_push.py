"""The direct push on a real Alertmanager, and the relay as the process that people run."""

import asyncio
import datetime
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.dashboards.relay.stubs import Stub, configuration, receivers
from tests.ray_jobs.served import wait_until
from tocsin.core.clock import ManualClock
from tocsin.core.terms import Operator
from tocsin.dashboards.push import p0_alert
from tocsin.dashboards.render.alertmanager import alertmanager_file
from tocsin.dashboards.render.options import Channel, RenderOptions
from tocsin.ray_jobs.cluster import free_port
from tocsin.ray_jobs.monitor import binary
from tocsin.ray_jobs.pager import Pager, Paging

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

TOCSIN = Path(sys.executable).with_name("tocsin")


@dataclass
class Way:
    """Alertmanager with the generated routes, the relay behind it, five stubs behind that."""

    alertmanager: str
    relay: str
    stub: Stub
    folder: Path
    relay_process: "subprocess.Popen[bytes]"

    def pages(self, operator: str, path: str = "/wecom") -> list[dict[str, Any]]:
        """What arrived about an operator, with the time of its arrival."""
        found = []
        for one in self.stub.got.get(path, []):
            if operator in json.dumps(one["body"], ensure_ascii=False):
                found.append(one)
        return found


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    folder = tmp_path_factory.mktemp("push")
    port, relay_port = free_port(), free_port()
    with receivers() as stub:
        config = configuration(folder, stub, listen={"host": "127.0.0.1", "port": relay_port})
        config["receivers"]["wecom-robot"]["per_minute"] = 200  # the rate has tests of its own
        hook = config["receivers"]["webhook"]
        config["receivers"] |= {"drill": hook, "deadman": hook}
        (folder / "relay.yaml").write_text(yaml.safe_dump(config))
        options = RenderOptions(
            relay_url=f"http://127.0.0.1:{relay_port}",
            gateway_url="http://127.0.0.1:9",  # no gateway here: /degrade has a test of its own
            secrets=str(folder),
            channels=frozenset({Channel.WECOM_ROBOT, Channel.DINGTALK, Channel.WEBHOOK}),
        )
        routes = alertmanager_file(options)
        page = next(one for one in routes["receivers"] if one["name"] == "p0-page")
        page["webhook_configs"].append({"url": f"{stub.url}/raw", "send_resolved": True})
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(routes))
        (folder / "tocsin_token").write_text("x")
        words = [
            # A node of its own: what others left on this machine is nobody's reproduction here.
            [
                str(TOCSIN),
                "alerts",
                "relay",
                f"--config={folder / 'relay.yaml'}",
                f"--node={folder / 'node'}",
            ],
            [
                binary("prometheus-alertmanager"),
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
        ]
        with (folder / "log").open("wb") as log:
            children = [subprocess.Popen(one, stdout=log, stderr=log) for one in words]
            way = Way(
                f"http://127.0.0.1:{port}",
                f"http://127.0.0.1:{relay_port}",
                stub,
                folder,
                children[0],
            )
            try:
                wait_until(lambda: answers(f"{way.alertmanager}/-/ready"), "Alertmanager")
                wait_until(lambda: answers(f"{way.relay}/healthz"), "the relay")
                yield way
            finally:
                for child in children:
                    child.terminate()
                    child.wait(15.0)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


async def test_a_sign_at_the_board_reaches_webhook_and_robot_and_how_soon_is_told(
    way: Way, record_property: Callable[[str, object], None]
) -> None:
    """From the failure's arrival at the board; every operator once, so that each is a page."""
    pager = Pager(Paging((way.alertmanager,)))
    took: dict[str, float] = {}
    robot: dict[str, float] = {}
    for operator in map(str, Operator):
        began_s = time.monotonic()
        finding = {"check": "state.page_owner", "operator": operator}
        data = {"failure_id": f"F-{operator}", "model": "tiny", "findings": [finding]}
        pager.hear({"kind": "check_failed", "data": data})
        mark = f"F-{operator}"
        async with asyncio.timeout(20.0):
            while not way.pages(mark, "/raw"):
                await asyncio.sleep(0.001)
            took[operator] = way.pages(mark, "/raw")[0]["t_s"] - began_s
            while not way.pages(mark):
                await asyncio.sleep(0.001)
            robot[operator] = way.pages(mark)[0]["t_s"] - began_s
    await pager.close()
    ms = sorted(value * 1e3 for value in took.values())
    print(f"\npush to webhook: n={len(ms)} median {statistics.median(ms):.1f} ms, max {ms[-1]:.1f}")
    to_robot = sorted(value * 1e3 for value in robot.values())
    print(f"push to robot: median {statistics.median(to_robot):.1f} ms, max {to_robot[-1]:.1f}")
    record_property("push_to_webhook_ms_median", statistics.median(ms))
    record_property("push_to_webhook_ms_max", ms[-1])
    assert len(took) == len(robot) == len(Operator)


async def test_the_rule_s_copy_and_the_push_are_one_alert_and_one_page(way: Way) -> None:
    """Same labels: Alertmanager deduplicates; the rule's end is the end, told once."""
    clock = ManualClock(time.time_ns())
    pager = Pager(Paging((way.alertmanager,)), clock=clock)
    pager.window_crossed("onepage", "rope")
    pushed = p0_alert(
        "operator_failing", model="onepage", operator="rope", value=11, starts_s=time.time()
    )
    wait_for = asyncio.to_thread
    await wait_for(wait_until, lambda: bool(way.pages("onepage")), "the page")
    now = datetime.datetime.now(datetime.UTC)
    by_rule = {**pushed, "endsAt": (now + datetime.timedelta(minutes=4)).isoformat()}
    post(way, by_rule)
    clock.sleep(6.0)
    pager.window_crossed("onepage", "rope")
    listed = httpx.get(f"{way.alertmanager}/api/v2/alerts", trust_env=False).json()
    assert len([one for one in listed if one["labels"]["model"] == "onepage"]) == 1
    await asyncio.sleep(2.0)  # a second page would have come by now: group_wait is 0
    assert len(way.pages("onepage")) == 1
    post(way, {**pushed, "endsAt": datetime.datetime.now(datetime.UTC).isoformat()})
    await wait_for(wait_until, lambda: len(way.pages("onepage")) == 2, "the end", 60.0)
    await pager.close()
    first, last = (page["body"]["markdown"]["content"] for page in way.pages("onepage"))
    assert "P0 告警" in first
    assert "已恢复" in last


def test_a_ticket_reaches_the_robot_of_tickets(way: Way) -> None:
    """Signed, in Chinese, after the group's ten seconds; nobody is paged."""
    labels = {
        "alertname": "TocsinBlind",
        "priority": "P1",
        "severity": "warning",
        "model": "ticket",
    }
    post(way, {"labels": labels, "annotations": {"summary_zh": "已关闭检查"}})
    wait_until(lambda: bool(way.pages("ticket", "/dingtalk")), "the ticket")
    (message,) = way.pages("ticket", "/dingtalk")
    assert message["body"]["markdown"]["title"].startswith("[P1 告警] TocsinBlind")
    assert not way.pages("ticket")


def test_a_relay_that_is_told_to_stop_ends_well_and_keeps_what_waits(way: Way) -> None:
    """The last test of this module: the robot refuses, SIGTERM comes, the letter stays."""
    for _ in range(50):
        way.stub.will_answer("/slack", 503, "down")
    body = {
        "version": "4",
        "status": "firing",
        "alerts": [{"status": "firing", "labels": {}, "startsAt": "2026-11-29T10:00:00Z"}],
    }
    answer = httpx.post(f"{way.relay}/alerts/slack", json=body, trust_env=False)
    assert answer.status_code == 202
    wait_until(lambda: bool(way.stub.got.get("/slack")), "the first try")
    way.relay_process.send_signal(signal.SIGTERM)
    assert way.relay_process.wait(20.0) == 0
    kept = [path.stem for path in (way.folder / "state" / "spool").iterdir()]
    assert kept == [answer.json()["id"]]


def post(way: Way, alert: dict[str, Any]) -> None:
    url = f"{way.alertmanager}/api/v2/alerts"
    httpx.post(url, json=[alert], trust_env=False).raise_for_status()
