"""Pushing everything: complete, repeatable, and clear about what stands when it breaks off."""

from collections.abc import Iterator

import promql_parser
import pytest

from tests.dashboards.grafana.stub import TOKEN, StubGrafana, stub_grafana
from tocsin.core.errors import EnvironmentFault
from tocsin.dashboards.contract import alerts
from tocsin.dashboards.grafana.alerting import contact_point, rules
from tocsin.dashboards.grafana.client import GrafanaApi, Written
from tocsin.dashboards.grafana.files import Addresses
from tocsin.dashboards.grafana.push import Step, push
from tocsin.dashboards.panels import DASHBOARDS

ADDRESSES = Addresses(docs="https://docs.example")
RULES = rules(ADDRESSES)


@pytest.fixture
def stub() -> Iterator[StubGrafana]:
    with stub_grafana() as server:
        yield server


def _push(stub: StubGrafana, *, alerts: bool = False, webhook: str = "") -> list[Step]:
    return list(push(GrafanaApi(stub.url, TOKEN), ADDRESSES, alerts=alerts, webhook=webhook))


def test_everything_is_there_after_one_push(stub: StubGrafana) -> None:
    """Folder and source come first, because dashboards stand on them."""
    steps = _push(stub)
    assert [step.name for step in steps[:2]] == ["folder tocsin", "data source tocsin-prometheus"]
    assert {f"dashboards/uid/{board.uid}" for board in DASHBOARDS} <= stub.kept.keys()
    assert {step.written for step in steps} == {Written.CREATED}


def test_a_second_push_writes_nothing(stub: StubGrafana) -> None:
    """So it can stand in a start script."""
    _push(stub, alerts=True, webhook="http://relay/alerts/webhook")
    before = stub.writes()
    steps = _push(stub, alerts=True, webhook="http://relay/alerts/webhook")
    assert {step.written for step in steps} == {Written.UNCHANGED}
    assert stub.writes() == before


def test_a_push_that_broke_off_is_finished_by_the_next(stub: StubGrafana) -> None:
    """The error says what is missing; what stands is not written again."""
    real = GrafanaApi(stub.url, TOKEN)
    third = DASHBOARDS[2].uid

    class Breaks(GrafanaApi):
        def put_dashboard(self, model: object, folder_uid: str) -> Written:
            if isinstance(model, dict) and model["uid"] == third:
                stub.trouble["POST", "/dashboards/db"] = (503, '{"message": "busy"}')
            return super().put_dashboard(model, folder_uid)  # type: ignore[arg-type]

    with pytest.raises(EnvironmentFault, match=r"503, busy.*4 of 8 objects stand") as caught:
        list(push(Breaks(stub.url, TOKEN), ADDRESSES))
    for board in DASHBOARDS[2:]:
        assert board.uid in str(caught.value)
    assert DASHBOARDS[1].uid not in str(caught.value)
    stub.trouble.clear()
    written = [step.written for step in push(real, ADDRESSES)]
    assert written == [Written.UNCHANGED] * 4 + [Written.CREATED] * 4


def test_an_answer_lost_after_the_write_does_no_harm(stub: StubGrafana) -> None:
    """The server kept the dashboard and the reply was lost: the next push finds it unchanged."""
    _push(stub)
    stub.trouble["POST", "/dashboards/db"] = (504, "gateway timed out")
    assert {step.written for step in _push(stub)} == {Written.UNCHANGED}


def test_a_server_that_is_ill_is_not_written_to(stub: StubGrafana) -> None:
    """Health comes first."""
    stub.database = "failing"
    with pytest.raises(EnvironmentFault, match="database"):
        _push(stub)
    assert stub.writes() == []


def test_alerts_are_pushed_only_when_asked_for(stub: StubGrafana) -> None:
    """Where Prometheus has our rules, the same from Grafana would page twice."""
    _push(stub)
    assert not [key for key in stub.kept if "alert-rules" in key]
    _push(stub, alerts=True)
    pushed = [key for key in stub.kept if "alert-rules" in key]
    assert len(pushed) == len([one for one in alerts().values() if one.priority is not None])
    assert not [key for key in stub.kept if key.startswith("point/")]


@pytest.mark.parametrize("rule", RULES, ids=[rule["title"] for rule in RULES])
def test_a_rule_says_the_same_as_its_declaration(rule: dict[str, object]) -> None:
    """Name, labels, hold and texts are those of Prometheus' rule; the query stands alone."""
    (alert,) = [one for one in alerts().values() if one.name == rule["title"]]
    assert rule["labels"] == alert.labels
    assert rule["for"] == alert.hold
    query, condition = rule["data"]  # type: ignore[misc]
    assert rule["condition"] == condition["refId"]
    assert "tocsin:" not in query["model"]["expr"], "a recorded series needs our Prometheus rules"
    promql_parser.parse(query["model"]["expr"])
    annotations = rule["annotations"]
    assert "$value " not in annotations["summary"]  # type: ignore[index]
    assert annotations["runbook_url"] == (  # type: ignore[index]
        f"https://docs.example/runbooks/{alert.id}.md"
    )
    assert len(str(rule["uid"])) <= 40


def test_an_alert_with_the_value_zero_still_stands() -> None:
    """The condition is that there is a number: `> 0` would lose `up == 0`."""
    assert {rule["data"][1]["model"]["expression"] for rule in RULES} == {"is_number($A)"}


def test_a_contact_point_is_a_webhook() -> None:
    """The address is the person's; nothing secret stands in it."""
    assert contact_point("http://relay/x")["settings"] == {
        "url": "http://relay/x",
        "httpMethod": "POST",
    }
