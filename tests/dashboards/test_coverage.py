"""Empty panels are found: against a stub of Prometheus, and against Prometheus itself."""

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tocsin.core.clock import ManualClock
from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.core.metrics import CATALOGUE, REQUESTS, Metric, MetricType
from tocsin.dashboards.coverage import missing
from tocsin.dashboards.panel import Dashboard, Kind, Panel, Query, Row, Unit
from tocsin.ray_jobs.monitor import Monitor

Reply = Callable[[str, dict[str, str]], tuple[int, str]]
NUMBER = {"resultType": "vector", "result": [{"metric": {}, "value": [1, "3"]}]}
NOTHING = {"resultType": "vector", "result": []}
NOT_A_NUMBER = {
    "resultType": "matrix",
    "result": [{"metric": {}, "values": [[1, "NaN"], [2, "NaN"]]}],
}
LATE = {"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "NaN"], [2, "0"]]}]}


def _board(*exprs: str, instant: bool = False) -> Dashboard:
    panels = tuple(
        Panel(
            f"p{index}",
            "t",
            "题",
            "d",
            Unit.NUMBER,
            (Query(expr, "x", instant),),
            Kind.STAT,
            "none",
            "blind",
        )
        for index, expr in enumerate(exprs)
    )
    return Dashboard("board", "t", "题", "d", (), (Row("r", "行", panels),))


@contextmanager
def _server(reply: Reply, method: str = "POST") -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            asked = parse_qs(self.rfile.read(size).decode())
            status, text = reply(self.path, {key: value[0] for key, value in asked.items()})
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    setattr(Handler, f"do_{method}", Handler._serve)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _data(data: Any) -> tuple[int, str]:
    return 200, json.dumps({"status": "success", "data": data})


@pytest.mark.parametrize(
    ("data", "why"),
    [(NUMBER, []), (NOTHING, ["no series"]), (NOT_A_NUMBER, ["only NaN"]), (LATE, [])],
)
def test_a_panel_has_data_when_one_number_came(data: Any, why: list[str]) -> None:
    """Zero is a number; a quantile of nothing is none."""
    with _server(lambda _path, _asked: _data(data)) as url:
        found = missing(url, boards=[_board("up")])
    assert [each.why for each in found] == why


def test_a_query_that_prometheus_refuses_is_reported_with_its_reason() -> None:
    """A mistake in PromQL is an answer with status 400 and says why."""
    text = json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error: x"})
    with _server(lambda _path, _asked: (400, text)) as url:
        (found,) = missing(url, boards=[_board("up{")])
    assert str(found) == "board/p0: refused (parse error: x): up{"


def test_variables_range_and_time_are_put_in() -> None:
    """The browser's numbers: a range in 100 steps, or one moment; the variables that are named."""
    asked: list[tuple[str, dict[str, str]]] = []

    def reply(path: str, words: dict[str, str]) -> tuple[int, str]:
        asked.append((path, words))
        return _data(NUMBER)

    clock = ManualClock(ns=1_000 * 10**9)
    with _server(reply) as url:
        ranged = _board('x{model=~"$model"}[$__rate_interval]')
        missing(url, boards=[ranged], values={"__rate_interval": "8s"}, range_s=200, clock=clock)
        once = _board("x[$__range]", instant=True)
        missing(url, boards=[once], range_s=200, clock=clock)
    (path, words), (once_path, once_words) = asked
    assert path == "/api/v1/query_range"
    assert words == {
        "query": 'x{model=~".*"}[8s]',
        "start": "800.0",
        "end": "1000.0",
        "step": "2.0",
    }
    assert once_path == "/api/v1/query"
    assert once_words == {"query": "x[200s]", "time": "1000.0"}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "[" * 9999,
        '{"status": "success"}',
        '{"status": "success", "data": {"result": 5}}',
        '{"status": "success", "data": {"result": [{}]}}',
        '{"status": "success", "data": {"result": [{"values": [[1]]}]}}',
        '{"status": "success", "data": {"result": [{"value": [1, "x"]}]}}',
    ],
)
def test_an_answer_that_is_not_prometheus_is_one_line(text: str) -> None:
    """Another server answers JSON, too."""
    with (
        _server(lambda _path, _asked: (200, text)) as url,
        pytest.raises(EnvironmentFault, match="expected Prometheus; correct the address") as one,
    ):
        missing(url, boards=[_board("up")])
    assert "\n" not in str(one.value)


def test_a_server_that_speaks_no_http_is_one_line() -> None:
    """The port of something else altogether."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def talk() -> None:
            caller, _ = other.accept()
            with caller:
                caller.recv(9999)
                caller.sendall(b"garbage\r\n\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        with pytest.raises(EnvironmentFault, match="does not answer"):
            missing(f"http://127.0.0.1:{other.getsockname()[1]}", boards=[_board("up")])
        thread.join()


@pytest.mark.parametrize("url", ["http://[::1", "http://", "http://a:99999", "http://é..x/"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Whatever the standard library would raise for it."""
    with pytest.raises(SpecError, match="expected the http"):
        missing(url, boards=[_board("up")])


def test_no_prometheus_is_not_an_empty_panel() -> None:
    """Nobody there, or somebody else: an error, because nothing is known then."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EnvironmentFault, match="does not answer"):
            missing(url, boards=[_board("up")])
    with (
        _server(lambda _path, _asked: (200, "<html>")) as url,
        pytest.raises(EnvironmentFault, match="no JSON"),
    ):
        missing(url, boards=[_board("up")])
    with pytest.raises(SpecError, match="http"):
        missing("file:///etc/passwd", boards=[_board("up")])


# --- against Prometheus itself ---

_LABELS = {
    "model": ("m",),
    "operator": ("attention", "rope"),
    "replica": ("r0", "r1"),
    "layer": ("numerical", "state"),
    "result": ("ok", "alarm"),
    "check": ("numerical.rms_range",),
    "priority": ("P0", "P1"),
    "backend": ("flash",),
    "fault": ("rope.nan", "kv.bit_flip"),
}


def _page(second: int) -> str:
    """Every metric of the catalogue with every value that it declares, growing by the second."""
    lines: list[str] = []
    for metric in CATALOGUE:
        lines.append(f"# TYPE {metric.name} {metric.type}")
        sets = [metric.values.get(name, _LABELS.get(name, ("x",))) for name in metric.labels]
        for values in itertools.product(*sets):
            pairs = [f'{name}="{value}"' for name, value in zip(metric.labels, values, strict=True)]
            lines += _samples(metric, pairs, second)
    return "\n".join([*lines, ""])


def _samples(metric: Metric, pairs: list[str], second: int) -> list[str]:
    def line(suffix: str, value: float, *more: str) -> str:
        return f"{metric.name}{suffix}{{{','.join([*pairs, *more])}}} {value}"

    if metric.type is not MetricType.HISTOGRAM:
        return [line("", second)]
    edges = [*map(str, metric.buckets), "+Inf"]
    counts = [line("_bucket", second * (i + 1), f'le="{edge}"') for i, edge in enumerate(edges)]
    return [*counts, line("_sum", second / 10), line("_count", second * len(edges))]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.live
def test_every_panel_has_data_when_every_metric_is_exported(tmp_path: Path) -> None:
    """No query is wrong in a way that only Prometheus sees; and one that is wrong is found."""
    started = time.monotonic()
    alertmanager, prometheus = tmp_path / "alertmanager.yml", tmp_path / "prometheus.yml"
    alertmanager.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")

    def page(_path: str, _asked: dict[str, str]) -> tuple[int, str]:
        return 200, _page(int(time.monotonic() - started) + 1)

    with _server(page, "GET") as hub:
        target = hub.removeprefix("http://")
        prometheus.write_text(
            "global: {scrape_interval: 1s}\nscrape_configs:\n"
            f"- {{job_name: tocsin, static_configs: [{{targets: ['{target}']}}]}}\n"
        )
        monitor = Monitor(
            tmp_path / "data",
            prometheus_yml=prometheus,
            alertmanager_yml=alertmanager,
            prometheus_port=_free_port(),
            alertmanager_port=_free_port(),
        )
        with monitor:
            values = {"__rate_interval": "4s"}
            found = missing(monitor.prometheus_url, values=values, range_s=10)
            while found and time.monotonic() - started < 60:
                time.sleep(1)
                found = missing(monitor.prometheus_url, values=values, range_s=10)
            assert found == ()
            renamed = _board(f"rate({REQUESTS.name}_v2[4s])", "sum by (model) (up{")
            whys = [each.why for each in missing(monitor.prometheus_url, boards=[renamed])]
            assert whys[0] == "no series"
            assert whys[1].startswith("refused (")
