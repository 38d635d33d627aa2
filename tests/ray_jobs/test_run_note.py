"""A chaos run's mark in Grafana: set, ended, and never in the way of the run."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboards.grafana.stub import TOKEN, StubGrafana, stub_grafana
from tocsin.core.clock import ManualClock
from tocsin.core.errors import EnvironmentFault
from tocsin.dashboards.grafana.client import GrafanaApi, GrafanaServer
from tocsin.ray_jobs import run_note
from tocsin.ray_jobs.run_note import RunNote, annotated


@pytest.fixture
def stub() -> Iterator[StubGrafana]:
    with stub_grafana() as server:
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def named(stub: StubGrafana, token_file: Path, monkeypatch: pytest.MonkeyPatch) -> StubGrafana:
    """A server that the environment names."""
    monkeypatch.setenv("TOCSIN_GRAFANA_URL", stub.url)
    monkeypatch.setenv("TOCSIN_GRAFANA_TOKEN_FILE", str(token_file))
    return stub


def test_a_run_is_a_span_with_its_name(stub: StubGrafana) -> None:
    """From start to end, in milliseconds, under the tag that every dashboard shows."""
    clock = ManualClock(ns=5 * 10**9)
    note = RunNote(lambda: GrafanaApi(stub.url, TOKEN), "first-light", ("drill",), clock=clock)
    note.start()
    clock.sleep(20)
    note.stop()
    assert stub.kept["annotations/41"] == {
        "time": 5000,
        "timeEnd": 25000,
        "tags": ["tocsin-chaos", "drill"],
        "text": "first-light",
    }


def test_the_environment_says_where_to(named: StubGrafana) -> None:
    """Address and token file by name; the token itself is in no variable."""
    with annotated("run"):
        pass
    assert named.writes() == [("POST", "/annotations"), ("PATCH", "/annotations/41")]
    assert named.asked[0].authorization == f"Bearer {TOKEN}"


def test_a_run_that_fails_ends_its_mark(named: StubGrafana) -> None:
    """Else the span would never end on the dashboards; the error goes on."""
    with pytest.raises(ZeroDivisionError), annotated("run"):
        _ = 1 / 0
    assert "timeEnd" in named.kept["annotations/41"]


def test_without_an_address_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grafana is never assumed."""
    monkeypatch.delenv("TOCSIN_GRAFANA_URL", raising=False)
    said: list[str] = []
    with annotated("run", say=said.append):
        assert threading.active_count() == len(threading.enumerate())
    assert said == []


def test_an_address_without_a_token_is_said_and_the_run_goes_on(
    stub: StubGrafana, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forgotten setting costs a line, not a run."""
    monkeypatch.setenv("TOCSIN_GRAFANA_URL", stub.url)
    monkeypatch.delenv("TOCSIN_GRAFANA_TOKEN_FILE", raising=False)
    said: list[str] = []
    done = []
    with annotated("run", say=said.append):
        done.append(True)
    assert done == [True]
    (line,) = said
    assert "TOCSIN_GRAFANA_TOKEN_FILE" in line
    assert line.endswith("(the run goes on)")
    assert stub.asked == []


@pytest.mark.parametrize("path", ["/annotations", "/annotations/41"])
def test_a_server_that_refuses_is_said_once(named: StubGrafana, path: str) -> None:
    """At the start or at the end, in one line."""
    method = "POST" if path == "/annotations" else "PATCH"
    named.trouble[method, path] = (503, '{"message": "busy"}')
    said: list[str] = []
    with annotated("run", say=said.append):
        pass
    assert len(said) == 1
    assert "503, busy" in said[0]


def test_a_server_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run begins at once, and its end waits no longer than it is told to."""
    monkeypatch.setattr(run_note, "_TIMEOUT_S", 0.02)
    release, begun = threading.Event(), threading.Event()

    def hangs() -> GrafanaServer:
        begun.set()
        release.wait(30)
        raise EnvironmentFault("grafana: gone")

    said: list[str] = []
    note = RunNote(hangs, "run", say=said.append)
    note.start()
    assert begun.wait(10), "it is called aside"
    note.stop()
    assert "no answer yet" in said[0]
    release.set()


def test_a_note_that_was_never_started_cannot_end(stub: StubGrafana) -> None:
    """Stop without start is nothing, so clean-up may always call it."""
    RunNote(lambda: GrafanaApi(stub.url, TOKEN), "run").stop()
    assert stub.asked == []
