"""What an Alertmanager holds becomes the alerts that a run is judged by."""

import time
from typing import Any

import httpx
import pytest

from tests.ray_jobs.served import wait_until
from tocsin.core.errors import EnvironmentFault
from tocsin.core.history import Event, EventKind
from tocsin.ray_jobs import alert_reading as module
from tocsin.ray_jobs.alert_reading import AlertReading, alert_reading

STATE = {"model": "m", "operator": "kv_read", "layer": "state", "check": "state.kv_page_sum"}


def _alert(
    name: str = "TocsinStateFailure",
    *,
    to: tuple[str, ...] = ("p1-ticket",),
    state: str = "active",
    began: str = "2026-11-29T22:00:00Z",
    also: str = "",
    **labels: str,
) -> dict[str, Any]:
    labels = {"alertname": name, "priority": "P1", **labels}
    return {
        "fingerprint": repr(sorted(labels.items())) + also,
        "startsAt": began,
        "labels": labels,
        "annotations": {"repro": "tocsin reproduce latest:kv_read"},
        "receivers": [{"name": one} for one in to],
        "status": {"state": state, "inhibitedBy": ["x"] if state == "suppressed" else []},
    }


class Alertmanager:
    """Answers with what it holds."""

    def __init__(self, *alerts: dict[str, Any]) -> None:
        self.alerts = list(alerts)
        self.status = 200
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/api/v2/alerts"
        self.asked = request.url.params.get_list("filter")
        return httpx.Response(self.status, json=self.alerts)

    def reading(self, *labels: tuple[str, str]) -> AlertReading:
        return AlertReading("http://am:9093/", "m", labels, transport=httpx.MockTransport(self))


def _data(events: list[Event], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(one.data[name] for name in names) for one in events]


def test_each_alert_is_told_once_for_each_of_its_receivers() -> None:
    """With what it names; the arm that degrades is no one to be told."""
    page = _alert("TocsinOperatorFailing", to=("degrade", "drill", "p0-page"), priority="P0")
    manager = Alertmanager(_alert(**STATE), page)
    reading = manager.reading()
    events = reading.look()
    assert _data(events, "alert", "route", "priority") == [
        ("TocsinStateFailure", "p1-ticket", "P1"),
        ("TocsinOperatorFailing", "drill", "P0"),
        ("TocsinOperatorFailing", "p0-page", "P0"),
    ]
    assert _data(events[:1], "detector", "repro", "result", "drill") == [
        ("state.kv_page_sum", "tocsin reproduce latest:kv_read", "ok", False)
    ]
    assert reading.look() == []


@pytest.mark.parametrize(
    ("labels", "detector"),
    [
        ({"detector": "service.clock"}, "service.clock"),
        ({"check": "state.page_owner"}, "state.page_owner"),
    ],
)
def test_it_names_the_detector_that_its_labels_name(labels: dict[str, str], detector: str) -> None:
    """A rule of the service's own, and one of a check."""
    assert _data(Alertmanager(_alert(**labels)).reading().look(), "detector") == [(detector,)]


def test_a_rule_whose_labels_name_no_detector_declares_one() -> None:
    """A check that raises is no check that alarms."""
    broken = _alert("TocsinCheckBroken", model="m", operator="rope", layer="state")
    told = Alertmanager(broken).reading().look()
    assert _data(told, "detector") == [("service.check_error",)]


def test_two_that_fire_together_for_one_incident_are_two_of_one_name() -> None:
    """A push that lacks a label of its rule pages twice; the same alert a day later does not."""
    manager = Alertmanager(_alert(**STATE), _alert(**STATE, also="namespace"))
    told = manager.reading().look()
    assert len({one.data["incident"] for one in told}) == 1
    again = Alertmanager(_alert(**STATE))
    reading = again.reading()
    names = _data(reading.look(), "incident")
    again.alerts = []
    (ended,) = reading.look()
    assert ended.kind is EventKind.ALERT_ENDED
    assert _data([ended], "incident") == names
    again.alerts = [_alert(**STATE, began="2026-11-30T22:00:00Z")]
    assert _data(reading.look(), "incident") != names


def test_another_s_alerts_are_nobody_s_proof() -> None:
    """What serves in earnest and other places are not asked for; another model is left out."""
    manager = Alertmanager(_alert(**{**STATE, "model": "another"}))
    assert manager.reading(("namespace", "demo")).look() == []
    assert manager.asked == ['alertname=~"Tocsin.+"', 'chaos="true"', 'namespace="demo"']


def test_a_receiver_keeps_its_own_name_under_the_operator() -> None:
    """It puts namespace and object before it."""
    told = Alertmanager(_alert(to=("demo/bell-tocsin/p1-ticket", "demo/x/degrade"))).reading()
    assert _data(told.look(), "route") == [("p1-ticket",)]


def test_that_nobody_can_read_them_any_more_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no incident is called untold: the alerting is broken, not the service."""
    monkeypatch.setattr(module, "_EVERY_S", 0.01)
    manager, told = Alertmanager(_alert()), list[Event]()
    reading = manager.reading()
    reading.start(told.append)
    reading.start(told.append)
    wait_until(lambda: bool(told), "the alert")
    manager.status = 500
    wait_until(lambda: len(told) > 1, "the end of reading")
    time.sleep(0.2)
    reading.close()
    assert [one.kind for one in told] == [EventKind.ALERT_SENT, EventKind.ALERTS_UNREAD]
    assert "500" in told[1].data["why"]


@pytest.mark.parametrize(
    ("state", "result"), [("active", "ok"), ("suppressed", "inhibited"), ("unprocessed", None)]
)
def test_what_became_of_it_is_told(state: str, result: str | None) -> None:
    """A graver one speaks for it, or it has not been looked at yet and is told later."""
    told = _data(Alertmanager(_alert(state=state)).reading().look(), "result")
    assert told == ([(result,)] if result else [])


def test_what_a_person_silenced_is_not_called_sent() -> None:
    """Nobody was told, and the verdict says so."""
    silenced = _alert()
    silenced["status"] = {"state": "suppressed", "inhibitedBy": [], "silencedBy": ["s"]}
    assert _data(Alertmanager(silenced).reading().look(), "result") == [("silenced",)]


def test_what_tells_nobody_is_left_out() -> None:
    """The watchdog, and that an experiment runs."""
    assert Alertmanager(_alert("TocsinWatchdog", priority="none")).reading().look() == []


def test_where_nobody_answers_the_run_does_not_begin() -> None:
    """In one line: what was asked, what came, what to do."""
    manager = Alertmanager()
    manager.status = 404
    with pytest.raises(EnvironmentFault, match="TOCSIN_ALERTMANAGER_URL, or unset it"):
        manager.reading().check()


def test_without_an_alertmanager_there_is_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is said; one that is named and away ends the run before it begins."""
    said: list[str] = []
    monkeypatch.delenv("TOCSIN_ALERTMANAGER_URL", raising=False)
    assert alert_reading("m", said.append) is None
    assert not said
    monkeypatch.setenv("TOCSIN_ALERTMANAGER_URL", "http://127.0.0.1:1,http://b:2")
    with pytest.raises(EnvironmentFault, match=r"127\.0\.0\.1:1/api/v2/alerts gave no list"):
        alert_reading("m", said.append)
