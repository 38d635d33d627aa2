"""The calls to Grafana as they go over the wire, and what is made of every kind of answer."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.dashboards.grafana.stub import TOKEN, StubGrafana, stub_grafana
from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.dashboards.grafana.client import GrafanaApi, GrafanaServer, Written
from tocsin.dashboards.grafana.files import Addresses, committed, datasource

MODEL = committed()[0]
RULE = {"uid": "tocsin-blind", "title": "TocsinBlind", "for": "2m"}
POINT = {"uid": "tocsin-webhook", "name": "Tocsin", "type": "webhook", "settings": {"url": "u"}}


@pytest.fixture
def stub() -> Iterator[StubGrafana]:
    with stub_grafana() as server:
        yield server


@pytest.fixture
def api(stub: StubGrafana) -> GrafanaServer:
    return GrafanaApi(stub.url, TOKEN)


def test_every_call_carries_the_token_as_a_bearer(stub: StubGrafana, api: GrafanaServer) -> None:
    """Service accounts of Grafana are let in by this header and by nothing else."""
    assert api.health() == "12.1.0"
    api.put_folder("tocsin", "Tocsin")
    assert {each.authorization for each in stub.asked} == {f"Bearer {TOKEN}"}


def test_a_folder_is_made_once_and_renamed_when_it_must(
    stub: StubGrafana, api: GrafanaServer
) -> None:
    """Looked up first, so that a second push writes nothing."""
    assert api.put_folder("tocsin", "Tocsin") is Written.CREATED
    assert api.put_folder("tocsin", "Tocsin") is Written.UNCHANGED
    assert api.put_folder("tocsin", "Alarm") is Written.UPDATED
    assert stub.writes() == [("POST", "/folders"), ("PUT", "/folders/tocsin")]
    assert stub.body("POST", "/folders") == {"uid": "tocsin", "title": "Tocsin"}
    assert stub.body("PUT", "/folders/tocsin")["overwrite"] is True


def test_a_data_source_is_found_by_its_uid(stub: StubGrafana, api: GrafanaServer) -> None:
    """The package's own calls know names and numbers only; ours ask by uid."""
    source = datasource(Addresses())
    assert api.put_datasource(source) is Written.CREATED
    assert api.put_datasource(source) is Written.UNCHANGED
    moved = datasource(Addresses(prometheus="http://other:9090"))
    assert api.put_datasource(moved) is Written.UPDATED
    path = "/datasources/uid/tocsin-prometheus"
    assert stub.writes() == [("POST", "/datasources"), ("PUT", path)]
    assert stub.body("PUT", path)["url"] == "http://other:9090"
    assert stub.kept[path[1:]]["type"] == "prometheus"


def test_a_dashboard_is_written_whole_into_its_folder(
    stub: StubGrafana, api: GrafanaServer
) -> None:
    """`overwrite` without an id: Grafana finds it by its uid and counts its version itself."""
    assert api.put_dashboard(MODEL, "tocsin") is Written.CREATED
    body = stub.body("POST", "/dashboards/db")
    assert body["overwrite"] is True
    assert body["folderUid"] == "tocsin"
    assert body["dashboard"]["id"] is None
    assert body["dashboard"]["panels"] == MODEL["panels"]
    assert api.put_dashboard(MODEL, "tocsin") is Written.UNCHANGED


def test_what_the_server_counts_itself_is_no_difference(
    stub: StubGrafana, api: GrafanaServer
) -> None:
    """A dashboard that was exported carries a number and a version of another server."""
    exported = {**MODEL, "id": 512, "version": 33}
    assert api.put_dashboard(exported, "tocsin") is Written.CREATED
    assert api.put_dashboard(exported, "tocsin") is Written.UNCHANGED


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept["dashboard"]["panels"][1].update(title="mine"),
        lambda kept: kept["dashboard"]["panels"][1].update(id=99),
        lambda kept: kept["dashboard"]["panels"].pop(),
        lambda kept: kept["meta"].update(folderUid="elsewhere"),
    ],
)
def test_a_dashboard_that_somebody_changed_is_put_right(
    stub: StubGrafana, api: GrafanaServer, change: Any
) -> None:
    """A title, a panel's number, a panel too few, another folder: each is seen and written."""
    api.put_dashboard(MODEL, "tocsin")
    change(stub.kept["dashboards/uid/tocsin-overview"])
    assert api.put_dashboard(MODEL, "tocsin") is Written.UPDATED
    assert api.put_dashboard(MODEL, "tocsin") is Written.UNCHANGED


def test_a_rule_goes_through_provisioning_and_stays_editable(
    stub: StubGrafana, api: GrafanaServer
) -> None:
    """Without the header Grafana locks what came over this path."""
    assert api.put_alert_rule(RULE) is Written.CREATED
    assert api.put_alert_rule(RULE) is Written.UNCHANGED
    assert api.put_alert_rule({**RULE, "for": "3m"}) is Written.UPDATED
    path = "/v1/provisioning/alert-rules"
    assert stub.writes() == [("POST", path), ("PUT", f"{path}/tocsin-blind")]
    assert {each.provenance for each in stub.asked} == {"true"}


def test_a_contact_point_is_looked_for_in_the_list(stub: StubGrafana, api: GrafanaServer) -> None:
    """Grafana has no call for a single one."""
    assert api.put_contact_point(POINT) is Written.CREATED
    assert api.put_contact_point(POINT) is Written.UNCHANGED
    moved = {**POINT, "settings": {"url": "v"}}
    assert api.put_contact_point(moved) is Written.UPDATED
    path = "/v1/provisioning/contact-points"
    assert stub.writes() == [("POST", path), ("PUT", f"{path}/tocsin-webhook")]


def test_a_mark_becomes_a_span(stub: StubGrafana, api: GrafanaServer) -> None:
    """Set at the start, ended by its id."""
    note = api.annotate({"time": 1000, "tags": ["tocsin-chaos"], "text": "run"})
    api.end_annotation(note, 2000)
    assert stub.writes() == [("POST", "/annotations"), ("PATCH", "/annotations/41")]
    assert stub.kept["annotations/41"] == {
        "time": 1000,
        "timeEnd": 2000,
        "tags": ["tocsin-chaos"],
        "text": "run",
    }


def test_a_server_below_a_path_is_reached() -> None:
    """Behind a proxy Grafana often lives at /grafana."""
    with stub_grafana("/grafana") as stub:
        assert GrafanaApi(f"{stub.url}/", TOKEN).health() == "12.1.0"
        assert stub.asked[0].path == "/health"


def test_a_wrong_token_is_said_and_not_shown(stub: StubGrafana) -> None:
    """The message tells what to do; the token itself is in no message."""
    with pytest.raises(EnvironmentFault, match=r"answered 401.*service account") as caught:
        GrafanaApi(stub.url, "glsa_another").health()
    assert "glsa_another" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (403, '{"message": "Permission denied"}', "403, Permission denied; .*role Editor"),
        (412, '{"message": "changed"}', "412, changed; .*push again"),
        (500, '{"message": "boom"}', "500, boom"),
        (503, "<html>this message is no JSON</html>", "no JSON.*proxy"),
        (502, "Bad gateway", "502, without a reason"),
        (200, "<html>log in</html>", "no usable answer|no JSON"),
        (200, '"a string"', "answered str"),
    ],
)
def test_every_answer_ends_in_one_line(
    stub: StubGrafana, api: GrafanaServer, status: int, text: str, expected: str
) -> None:
    """Error pages of proxies too, on one of which the package itself raises a TypeError."""
    stub.trouble["POST", "/dashboards/db"] = (status, text)
    with pytest.raises(EnvironmentFault, match=expected) as caught:
        api.put_dashboard(MODEL, "tocsin")
    assert "POST" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_ill_database_is_not_called_healthy(stub: StubGrafana, api: GrafanaServer) -> None:
    """Grafana answers 200 or 503 then; the word counts."""
    stub.database = "failing"
    with pytest.raises(EnvironmentFault, match="database is 'failing'"):
        api.health()


def test_nobody_at_the_address_is_said() -> None:
    """A refused connection is a line, within seconds."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentFault, match=r"no usable answer \(ConnectionError\)"):
            GrafanaApi(f"http://127.0.0.1:{port}", TOKEN).health()


def test_a_server_that_never_answers_is_given_up() -> None:
    """The time limit is ours, not the operating system's."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EnvironmentFault, match="Timeout"):
            GrafanaApi(url, TOKEN, timeout_s=0.05).health()


@pytest.mark.parametrize(
    "url",
    [
        "grafana:3000",
        "ftp://grafana",
        "",
        "http://me:pass@grafana",
        "http://me:pass/@grafana",
        "http://[::1",
        "http://grafana:99999",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Also one with a password in it, which would end in logs; it is not repeated."""
    with pytest.raises(SpecError, match="without a user") as caught:
        GrafanaApi(url, TOKEN)
    assert "pass" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[]", '{"meta": [], "dashboard": 5}', '{"meta": null}', "[" * 9999]
)
def test_an_answer_of_another_form_is_no_traceback(
    stub: StubGrafana, api: GrafanaServer, text: str
) -> None:
    """A server that is not Grafana: one line, or the dashboard is simply written again."""
    stub.trouble["GET", f"/dashboards/uid/{MODEL['uid']}"] = (200, text)
    stub.trouble["GET", "/health"] = (200, text)
    with suppress(EnvironmentFault):
        api.put_dashboard(MODEL, "tocsin")
    with pytest.raises(EnvironmentFault) as caught:
        api.health()
    assert "\n" not in str(caught.value)


def test_a_token_that_no_header_takes_is_said(stub: StubGrafana) -> None:
    """Not as an answer of the server, which was never asked."""
    with pytest.raises(EnvironmentFault, match="token of plain letters"):
        GrafanaApi(stub.url, "日本").health()
    assert stub.asked == []
