"""The figures: Grafana's panels computed from samples, with fifteen minutes remembered."""

import io
import math

import pytest

from tests.dashboards.live.states import busy, quiet
from tocsin.core import metrics
from tocsin.core.metrics import Metric
from tocsin.dashboards.live.figures import (
    FIGURES,
    SPAN_S,
    Recorder,
    Sample,
    panel_of,
    quantile,
)
from tocsin.dashboards.live.lights import least, light
from tocsin.dashboards.live.numerals import amount, count, countdown, seconds
from tocsin.dashboards.live.state import Figure, Light
from tocsin.dashboards.live.terminal import draw, sparkline
from tocsin.dashboards.panel import Unit

TPOT = metrics.TIME_PER_OUTPUT_TOKEN


def value(recorder: Recorder, figure: str, now_s: float) -> dict[str, float | None]:
    found = next(one for one in recorder.figures(now_s) if one.id == figure)
    return {line.name: line.last for line in found.lines}


def sample(metric: Metric, number: float, *labels: str, part: str = "") -> Sample:
    return Sample(metric, labels, number, part)


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_of_the_page_is_a_panel_that_needs_no_promql(figure: str) -> None:
    """A panel without words for its queries could never show anything here."""
    assert all(query.shape is not None for query in panel_of(figure).queries)


def test_a_rate_is_the_growth_of_ten_seconds_summed_over_what_is_not_told_apart() -> None:
    """Two models of one outcome are one line; the first reading alone tells no rate."""
    recorder = Recorder(("overview.requests",))
    for second in range(13):
        recorder.take(
            100.0 + second,
            [
                sample(metrics.REQUESTS, 3.0 * second, "a", "ok"),
                sample(metrics.REQUESTS, 1.0 * second, "b", "ok"),
                sample(metrics.REQUESTS, 5.0, "a", "failed"),
            ],
        )
        if second == 0:
            assert value(recorder, "overview.requests", 100.0) == {"ok": None, "failed": None}
    assert value(recorder, "overview.requests", 112.0) == {"ok": 4.0, "failed": 0.0}


def test_a_counter_that_falls_is_not_a_negative_rate() -> None:
    """A hub that lost its files begins anew."""
    recorder = Recorder(("overview.tokens",))
    recorder.take(1.0, [sample(metrics.TOKENS, 500.0, "m")])
    recorder.take(2.0, [sample(metrics.TOKENS, 2.0, "m")])
    assert value(recorder, "overview.tokens", 2.0)["released"] == 0.0


def test_checked_and_unchecked_times_are_two_lines_of_their_own_means() -> None:
    """The mean of the last half minute; nothing where no answer ended."""
    recorder = Recorder(("degradation.token_time_checked",))
    for second, (total, first, second_bucket) in enumerate(((0.0, 0, 0), (0.9, 2, 1))):
        recorder.take(
            50.0 + second,
            [
                sample(TPOT, total, "m", "true", part="sum"),
                sample(TPOT, first, "m", "true", part="0.2"),
                sample(TPOT, second_bucket, "m", "true", part="+Inf"),
                sample(TPOT, 0.0, "m", "false", part="sum"),
                sample(TPOT, 0.0, "m", "false", part="+Inf"),
            ],
        )
    found = value(recorder, "degradation.token_time_checked", 51.0)
    assert found == {"checked: true": pytest.approx(0.3), "checked: false": None}


def test_an_increase_counts_the_range_shown_and_forgets_what_is_older() -> None:
    """Fifteen minutes; a thing that happened before is not still happening."""
    recorder = Recorder(("overview.unverified_tokens",))
    for second, total in ((0.0, 0.0), (10.0, 7.0), (SPAN_S / 2, 7.0), (SPAN_S + 20, 7.0)):
        recorder.take(second, [sample(metrics.UNVERIFIED_TOKENS, total, "m")])
        if second == 10.0:
            assert value(recorder, "overview.unverified_tokens", second) == {"unverified": 7.0}
    assert value(recorder, "overview.unverified_tokens", SPAN_S + 20) == {"unverified": 0.0}


def test_where_and_largest_follow_the_panels_words() -> None:
    """The window of the fleet, not that of a node; the largest over models."""
    recorder = Recorder(("operators.window",))
    recorder.take(
        1.0,
        [
            sample(metrics.FAILURES_WINDOW, 9.0, "a", "rope", "node"),
            sample(metrics.FAILURES_WINDOW, 2.0, "a", "rope", "fleet"),
            sample(metrics.FAILURES_WINDOW, 4.0, "b", "rope", "fleet"),
        ],
    )
    assert value(recorder, "operators.window", 1.0) == {"rope": 4.0}


def test_a_quantile_is_the_one_that_prometheus_reckons() -> None:
    """Linear within a bucket; in the last one its lower edge; of nothing there is none."""
    buckets = {"0.1": 50.0, "0.2": 40.0, "+Inf": 10.0}
    assert quantile(buckets, 0.5) == pytest.approx(0.1)
    assert quantile(buckets, 0.7) == pytest.approx(0.15)
    assert quantile(buckets, 0.99) == pytest.approx(0.2)
    assert quantile({"0.1": 0.0, "+Inf": 0.0}, 0.5) is None


def test_the_ring_is_bounded_in_time_in_points_and_in_lines() -> None:
    """Whatever comes in: a replica that is new every second, a gauge that is not finite."""
    recorder = Recorder(("kv_memory.usage",))
    for second in range(2_000):
        now_s = float(second)
        recorder.take(
            now_s,
            [
                sample(metrics.KV_USAGE, 0.5, "m", "steady"),
                sample(metrics.KV_USAGE, 0.1, "m", f"replica-{second}"),
                sample(metrics.KV_USAGE, math.nan, "m", "broken"),
            ],
        )
    figure: Figure = recorder.figures(1_999.0)[0]
    lines = {line.name: line.points for line in figure.lines}
    assert len(lines) <= 24
    assert len(lines["steady"]) == 900
    assert lines["steady"][0][0] >= 1_999.0 - SPAN_S
    assert not lines.get("broken")


def test_a_line_that_stopped_has_no_present_value() -> None:
    """A lost replica's last word is not what is true now."""
    recorder = Recorder(("kv_memory.usage",))
    recorder.take(0.0, [sample(metrics.KV_USAGE, 0.5, "m", "r")])
    recorder.take(60.0, [])
    assert value(recorder, "kv_memory.usage", 60.0) == {"r": None}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Light.OK),
        ({"checks": 0}, Light.ABSENT),
        ({"per_second": 0.0}, Light.IDLE),
        ({"profile": "off"}, Light.OFF),
        ({"noted": True}, Light.NOTE),
        ({"recent": ["P1"]}, Light.WARN),
        ({"recent": ["P2", "P0"]}, Light.BAD),
        ({"recent": ["P1"], "unrepaired": True}, Light.BAD),
        ({"recent": ["P1"], "profile": "off"}, Light.WARN),
        ({"noted": True, "profile": "off"}, Light.OFF),
    ],
)
def test_a_light_shows_the_gravest_of_what_is_true(
    changes: dict[str, object], expected: Light
) -> None:
    """An alarm outlasts the switch that silenced it; off outshines an old alarm."""
    values = {
        "checks": 1,
        "profile": "full",
        "per_second": 1.0,
        "recent": [],
        "unrepaired": False,
        "noted": False,
        **changes,
    }
    assert light(**values) is expected  # type: ignore[arg-type]


def test_one_replica_with_its_checks_off_is_not_hidden_by_the_others() -> None:
    """The least of all profiles is shown."""
    assert least(["full", "off", "guard"], "full") == "off"
    assert least(["full", "guard"], "full") == "guard"
    assert least([], "full") == "full"


def test_numbers_are_short_and_carry_their_unit() -> None:
    """Three digits, no exponent, nothing that is not zero shown as zero."""
    assert [count(one) for one in (0, 7, 12.34, 1234.0, 2.5e6)] == [
        "0",
        "7",
        "12.3",
        "1.23k",
        "2.5M",
    ]
    assert count(0.001) == "<0.01"
    assert amount(0.042, Unit.SECONDS) == "42 ms"
    assert amount(0.5, Unit.RATIO) == "50 %"
    assert amount(None, Unit.SECONDS) == "–"
    assert [seconds(one) for one in (1.5, 600.0, 9000.0)] == ["1.5 s", "10 min", "2.5 h"]
    assert [countdown(one) for one in (299.2, 0.0, 3725.0)] == ["5:00", "0:00", "1:02:05"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_terminal_shows_what_the_page_shows(language: str) -> None:
    """Grid, replicas, figures, failures with their command, faults, orders; and a quiet state."""
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(draw(busy(), language))
    said = console.export_text()
    for text in (
        "kv_update",
        "✖ P0",
        "tocsin reproduce 01J",
        "state.kv_page_sum",
        "kv@0",
        "layer:numerical",
        "5:00",
        "sdpa*",
    ):
        assert text in said, text
    console.print(draw(quiet(), language))
    console.print(draw(busy(), language, wide=True))
    rows = console.export_text().splitlines()
    assert any("rope" in row and "tocsin reproduce" in row for row in rows)  # side by side


def test_a_sparkline_has_a_block_for_each_value() -> None:
    """Zeros are the lowest block, the largest is the highest."""
    assert sparkline([0.0, 1.0, 2.0]) == "▁▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([0.5], top=1.0) == "▅"
