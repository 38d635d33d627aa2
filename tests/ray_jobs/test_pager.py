"""The pager: what pages at once is pushed with the labels of the rule, and holds nobody up."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tocsin.checker.contract import crossing_checks, registry
from tocsin.core.clock import ManualClock
from tocsin.core.terms import CROSSING_CHECKS, Priority
from tocsin.dashboards.contract import alerts
from tocsin.dashboards.push import p0_alert, push_p0
from tocsin.dashboards.render.options import RenderOptions
from tocsin.dashboards.render.rules import rule
from tocsin.ray_jobs.board import Board
from tocsin.ray_jobs.pager import Pager, Paging, paging_of_environment

SILENT = "http://192.0.2.1:9093"  # TEST-NET-1: nobody answers, nobody refuses


class Alertmanager:
    """Takes alerts at its API and remembers them; answers as it is told."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.statuses: list[int] = []
        known = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["content-length"]))
                status = known.statuses.pop(0) if known.statuses else 200
                if status == 200 and self.path == "/api/v2/alerts":
                    known.got.append(json.loads(text))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *words: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def alertmanager() -> Iterator[Alertmanager]:
    made = Alertmanager()
    yield made
    made.close()


def failed(check: str, operator: str = "kv_read", failure_id: str = "F1") -> dict[str, Any]:
    finding = {"check": check, "operator": operator, "layer": "state", "priority": "P0"}
    data = {"failure_id": failure_id, "model": "tiny", "findings": [finding]}
    return {"kind": "check_failed", "data": data}


async def settled(pager: Pager) -> None:
    while pager._tasks:
        await asyncio.gather(*pager._tasks)


def test_the_crossing_checks_are_declared_by_the_checks_themselves() -> None:
    """The words that rules read mirror the declarations, and each of them pages."""
    assert crossing_checks() == CROSSING_CHECKS
    assert all(registry()[one].priority is Priority.P0 for one in CROSSING_CHECKS)


@pytest.mark.parametrize("alert_id", ["operator_failing", "cross_request_data"])
@pytest.mark.parametrize("drill", [False, True])
def test_a_push_has_the_labels_of_the_rule_s_alert_and_no_other(alert_id: str, drill: bool) -> None:
    """Otherwise Alertmanager takes them for two, and people are told twice."""
    unit = alerts()[alert_id]
    pushed = p0_alert(alert_id, model="m", operator="rope", value=11, starts_s=1.7e9, drill=drill)
    by_rule = {"alertname": unit.name, **unit.labels, "model": "m", "operator": "rope"}
    assert pushed["labels"] == by_rule | ({"chaos": "true"} if drill else {})
    assert set(rule(unit, RenderOptions())["annotations"]) == set(pushed["annotations"])
    assert "{{" not in json.dumps(pushed)
    assert "endsAt" not in pushed
    assert pushed["startsAt"].endswith("+00:00")


def test_a_known_failure_is_what_is_reproduced() -> None:
    """Not the operator's latest, which may be another by the time somebody looks."""
    pushed = p0_alert(
        "operator_failing", model="m", operator="rope", value=11, starts_s=0.0, failure_id="F9"
    )
    assert pushed["annotations"]["failure_id"] == "F9"
    assert pushed["annotations"]["repro"] == "tocsin reproduce F9"


@pytest.mark.parametrize("check", CROSSING_CHECKS)
async def test_one_sign_that_requests_met_pages_at_once(
    alertmanager: Alertmanager, check: str
) -> None:
    """At count 1, with the id of that failure."""
    pager = Pager(Paging((alertmanager.url,), "http://gateway:8000"))
    pager.hear(failed(check))
    await settled(pager)
    await pager.close()
    ((alert,),) = alertmanager.got
    assert alert["labels"]["alertname"] == "TocsinCrossRequestData"
    assert alert["labels"]["operator"] == "kv_read"
    assert alert["annotations"]["failure_id"] == "F1"
    assert alert["annotations"]["dashboard_url"].startswith("http://gateway:8000/live")


async def test_other_failures_and_other_events_do_not_page(alertmanager: Alertmanager) -> None:
    """A changed page sum is a P0 and says nothing about neighbours."""
    pager = Pager(Paging((alertmanager.url,)))
    for unit in registry():
        if unit not in CROSSING_CHECKS:
            pager.hear(failed(unit))
    pager.hear({"kind": "breaker", "data": {}})
    pager.hear({"kind": "check_failed", "data": {"findings": []}})
    await settled(pager)
    await pager.close()
    assert alertmanager.got == []


async def test_a_crossed_window_pages_with_the_last_failure_of_its_operator(
    alertmanager: Alertmanager,
) -> None:
    """What the board heard before it."""
    pager = Pager(Paging((alertmanager.url,)))
    pager.hear(failed("numerical.rope_norm", "rope", "F3"))
    pager.hear(failed("numerical.finite", "linear", "F4"))
    pager.window_crossed("tiny", "rope")
    await settled(pager)
    await pager.close()
    ((alert,),) = alertmanager.got
    assert alert["labels"]["alertname"] == "TocsinOperatorFailing"
    assert alert["annotations"]["failure_id"] == "F3"
    assert "11 times" in alert["annotations"]["summary"]


async def test_the_board_lets_its_pager_hear_what_replicas_tell(
    alertmanager: Alertmanager,
) -> None:
    """An event in a heartbeat, and a window that is crossed in the fleet."""
    board = Board()
    board._pager = Pager(Paging((alertmanager.url,)))
    beat = {"pid": os.getpid(), "node": "n", "statuses": [], "step": 1}
    await board.beat("r", {**beat, "events": [failed("state.page_epoch")]})
    await board._crossed("tiny", "rope")
    await settled(board._pager)
    await board._pager.close()
    names = sorted(alert["labels"]["alertname"] for ((alert),) in alertmanager.got)
    assert names == ["TocsinCrossRequestData", "TocsinOperatorFailing"]


async def test_a_failure_without_a_snapshot_is_told_by_the_last_one_that_has_one(
    alertmanager: Alertmanager,
) -> None:
    """The command in a page must work; without any snapshot it is the rule's own."""
    clock = ManualClock(1)
    pager = Pager(Paging((alertmanager.url,)), clock=clock)
    bare = failed("state.page_owner", failure_id="F1")
    bare["data"]["snapshot"] = ""
    full = failed("state.page_owner", failure_id="F2")
    full["data"]["snapshot"] = "snapshots/F2"
    for event in (bare, full, bare):
        pager.hear(event)
        await settled(pager)
        clock.sleep(5.0)
    await pager.close()
    repro = [alert["annotations"]["repro"] for ((alert),) in alertmanager.got]
    assert repro == [
        "tocsin reproduce latest:kv_read",
        "tocsin reproduce F2",
        "tocsin reproduce F2",
    ]


async def test_a_storm_of_signs_is_one_push_in_five_seconds(alertmanager: Alertmanager) -> None:
    """5,000 failures a second must not become 5,000 requests."""
    clock = ManualClock(1)
    pager = Pager(Paging((alertmanager.url,)), clock=clock)
    for number in range(5000):
        pager.hear(failed("state.page_owner", failure_id=f"F{number}"))
    clock.sleep(5.0)
    pager.hear(failed("state.page_owner"))
    await settled(pager)
    await pager.close()
    assert len(alertmanager.got) == 2


async def test_an_alertmanager_that_fails_is_tried_again_and_counted(
    alertmanager: Alertmanager,
) -> None:
    """Three failures, then it takes it."""
    counts: list[tuple[str, str]] = []
    alertmanager.statuses = [500, 503, 502]
    pager = Pager(
        Paging((alertmanager.url,)),
        count=lambda receiver, result: counts.append((receiver, result)),
    )
    pager.hear(failed("state.page_owner"))
    await settled(pager)
    await pager.close()
    assert len(alertmanager.got) == 1
    assert counts == [("alertmanager", "retried")] * 3 + [("alertmanager", "ok")]


async def test_every_alertmanager_of_a_cluster_is_told_whatever_becomes_of_the_others(
    alertmanager: Alertmanager,
) -> None:
    """A silent one costs its time limit, and only there."""
    pushed = p0_alert("operator_failing", model="m", operator="rope", value=11, starts_s=0.0)
    began_s = time.monotonic()
    found = await push_p0([SILENT, "http://[", alertmanager.url], [pushed], timeout_s=0.3)
    assert time.monotonic() - began_s < 5.0
    assert found[alertmanager.url] == ""
    assert found[SILENT]
    assert found["http://["]
    assert len(alertmanager.got) == 1


def test_the_one_who_hears_is_never_held_up() -> None:
    """Outside of any push: hearing 10,000 failures takes no time, with a dead Alertmanager."""
    pushes: list[Any] = []
    pager = Pager(Paging((SILENT,)), start=pushes.append)
    began_s = time.monotonic()
    for number in range(10_000):
        pager.hear(failed("state.page_owner", failure_id=str(number)))
    assert time.monotonic() - began_s < 2.0
    assert len(pushes) == 1
    pushes[0].close()


def test_without_an_address_nothing_is_pushed() -> None:
    """Prometheus alone pages."""
    pager = Pager(Paging())
    pager.hear(failed("state.page_owner"))
    pager.window_crossed("m", "rope")
    assert pager.outcomes == {}


def test_the_environment_names_alertmanagers_and_drills(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several, with commas; nothing set means nobody."""
    monkeypatch.delenv("TOCSIN_ALERTMANAGER_URL", raising=False)
    monkeypatch.delenv("TOCSIN_DRILL", raising=False)
    assert paging_of_environment("g") == Paging((), "g", drill=False)
    monkeypatch.setenv("TOCSIN_ALERTMANAGER_URL", "http://a:9093, http://b:9093,")
    monkeypatch.setenv("TOCSIN_DRILL", "1")
    assert paging_of_environment("g") == Paging(("http://a:9093", "http://b:9093"), "g", drill=True)


async def test_a_push_from_a_cluster_has_the_labels_that_rules_have_there(
    alertmanager: Alertmanager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without namespace and release it would be another alert, which an operator's routes lose."""
    monkeypatch.setenv("TOCSIN_ALERTMANAGER_URL", alertmanager.url)
    monkeypatch.setenv("TOCSIN_ALERT_LABELS", "namespace=models, release=demo,")
    pager = Pager(paging_of_environment())
    pager.window_crossed("m", "rope")
    await settled(pager)
    await pager.close()
    ((alert,),) = alertmanager.got
    assert alert["labels"] == {
        "alertname": "TocsinOperatorFailing",
        **alerts()["operator_failing"].labels,
        "namespace": "models",
        "release": "demo",
        "model": "m",
        "operator": "rope",
    }


async def test_while_an_experiment_strikes_what_serves_a_push_is_a_drills(
    alertmanager: Alertmanager,
) -> None:
    """And in earnest again when its time is over, also if its driver was lost and said no end."""
    clock = ManualClock()
    pager = Pager(Paging((alertmanager.url,)), clock=clock)
    for attacked_s, later_s in ((None, 0.0), (300.0, 10.0), (None, 289.0), (None, 2.0)):
        if attacked_s is not None:
            pager.attacked(attacked_s)
        clock.sleep(later_s)
        pager.window_crossed("m", f"operator-{clock.now_ns()}")
        await settled(pager)
    await pager.close()
    marks = [alert["labels"].get("chaos") for (alert,) in alertmanager.got]
    assert marks == [None, "true", "true", None]
