"""A run ends when people are alerted during it, and when nobody can say whether they are."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tocsin.core.errors import SpecError
from tocsin.ray_jobs.alert_stop import AlertStop

Handler = Callable[[httpx.Request], httpx.Response]


def _alert(name: str, began: str = "2026-11-29T22:00:00Z", **labels: str) -> dict[str, Any]:
    labels = {"alertname": name, **labels}
    return {"fingerprint": f"{name}-print", "startsAt": began, "labels": labels}


class Alertmanager:
    """Answers with `alerts`, or with `instead`; keeps what it was asked."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        self.instead: list[httpx.Response | Exception] = []
        self.asked: list[httpx.QueryParams] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/api/v2/alerts"
        self.asked.append(request.url.params)
        if self.instead:
            answer = self.instead.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return httpx.Response(200, json=self.alerts)

    def stop(self, *matchers: str) -> AlertStop:
        return AlertStop("http://am:9093/", matchers, transport=httpx.MockTransport(self))


@pytest.fixture
def manager() -> Alertmanager:
    return Alertmanager()


def test_an_alert_that_begins_during_the_run_ends_it(manager: Alertmanager) -> None:
    """It is named with its labels."""
    stop = manager.stop()
    assert not stop.why_not()
    assert not stop.why_not()
    manager.alerts = [_alert("GpuLost", severity="P0", namespace="demo")]
    reason = stop.why_not()
    assert reason.startswith("alerts: GpuLost (severity=P0, namespace=demo) began during the run")


def test_an_alert_that_fired_before_does_not(manager: Alertmanager) -> None:
    """Told by what the first look showed: the clocks of the two machines are not compared."""
    manager.alerts = [_alert("Old", began="2199-01-01T00:00:00Z")]
    stop = manager.stop()
    assert not stop.why_not()
    assert not stop.why_not()


def test_an_old_alert_that_fires_anew_does(manager: Alertmanager) -> None:
    """The same fingerprint, another beginning."""
    manager.alerts = [_alert("Old")]
    stop = manager.stop()
    assert not stop.why_not()
    manager.alerts = []
    assert not stop.why_not()
    manager.alerts = [_alert("Old", began="2026-11-29T22:10:00Z"), _alert("New")]
    assert "and 1 more" in stop.why_not()


def test_alerts_of_chaos_itself_are_left_out_unless_asked_for(manager: Alertmanager) -> None:
    """Silenced and inhibited ones as well: nobody is told of them."""
    assert not manager.stop('severity=~"P0|P1"').why_not()
    assert not manager.stop("chaos=true").why_not()
    first, second = manager.asked
    assert first.get_list("filter") == ['severity=~"P0|P1"', 'chaos!="true"']
    assert second.get_list("filter") == ['chaos="true"']
    assert (first["active"], first["silenced"], first["inhibited"]) == ("true", "false", "false")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(500, text="no"), "status 500"),
        (httpx.Response(200, text="no JSON"), "Expecting value"),
        (httpx.Response(200, json={"status": "success"}), "dict instead of a list"),
        (httpx.Response(200, json=[{"labels": {}}]), "fingerprint"),
        (httpx.ConnectError("refused"), "refused"),
        (httpx.ReadTimeout("slow"), "no answer in 4 s"),
    ],
    ids=["500", "text", "dict", "no alert", "refused", "slow"],
)
def test_no_data_for_two_looks_ends_the_run(
    manager: Alertmanager, answer: httpx.Response | Exception, words: str
) -> None:
    """One miss is forgiven, and forgotten after an answer; two in a row are not."""
    stop = manager.stop()
    assert not stop.why_not()
    for _ in range(2):
        manager.instead = [answer]
        assert not stop.why_not()
        assert not stop.why_not()
    manager.instead = [answer, answer]
    assert not stop.why_not()
    reason = stop.why_not()
    assert "two looks at http://am:9093/api/v2/alerts" in reason
    assert words in reason
    assert "\n" not in reason


def test_before_the_run_one_miss_is_enough(manager: Alertmanager) -> None:
    """Without a first look nobody can say which alerts are new."""
    manager.instead = [httpx.ConnectError("refused")]
    assert "the first look" in manager.stop().why_not()


def test_a_matcher_that_is_none_is_refused(manager: Alertmanager) -> None:
    """Before anything is served or asked."""
    with pytest.raises(SpecError, match="--stop-matchers: 'P0' is no matcher"):
        manager.stop("P0")
