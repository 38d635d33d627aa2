"""The times that users saw: to the first token, between tokens, to the end; and how it ended."""

from pathlib import Path

import pytest

from tocsin.core.clock import ManualClock
from tocsin.core.metrics import (
    PROMPT_TOKENS,
    REQUEST_DURATION,
    REQUESTS,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
    Metric,
)
from tocsin.ray_jobs.gateway_meter import GatewayMeter
from tocsin.ray_jobs.metric_file import SUM, metric_key
from tocsin.ray_jobs.node_page import NodePage


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(10**18)


def value(folder: Path, metric: Metric, *labels: str, part: str = "") -> float:
    numbers = NodePage(folder, ManualClock(10**18)).numbers()
    return numbers.values[metric_key(metric.name, part, labels)]


def test_an_answers_times_are_those_that_its_user_saw(tmp_path: Path, clock: ManualClock) -> None:
    """Two seconds to the first token, three more at a tenth of a second each."""
    meter = GatewayMeter(tmp_path, "m", clock=clock)
    times = meter.arrived()
    times.taken(17)
    clock.sleep(2.0)
    times.token(verified=True, exemplar={"trace_id": "a" * 32})
    for _ in range(3):
        clock.sleep(0.1)
        times.token(verified=True, exemplar=None)
    clock.sleep(0.5)
    meter.ended("ok")
    times.ended(None, whole=True)
    assert value(tmp_path, PROMPT_TOKENS, "m") == 17
    assert value(tmp_path, REQUESTS, "m", "ok") == 1
    assert value(tmp_path, TIME_TO_FIRST_TOKEN, "m", part="2.0") == 1
    assert value(tmp_path, TIME_PER_OUTPUT_TOKEN, "m", "true", part=SUM) == pytest.approx(0.1)
    assert value(tmp_path, TIME_PER_OUTPUT_TOKEN, "m", "false", part=SUM) == 0
    assert value(tmp_path, REQUEST_DURATION, "m", part=SUM) == pytest.approx(2.8)
    exemplars = NodePage(tmp_path, clock).numbers().exemplars
    key = metric_key(TIME_TO_FIRST_TOKEN.name, "2.0", ("m",))
    assert exemplars[key].labels == {"trace_id": "a" * 32}


def test_one_unchecked_token_makes_an_answer_an_unchecked_one(
    tmp_path: Path, clock: ManualClock
) -> None:
    """What checks cost is the difference of the two."""
    times = GatewayMeter(tmp_path, "m", clock=clock).arrived()
    for verified in (True, False, True):
        times.token(verified=verified, exemplar=None)
        clock.sleep(0.2)
    times.ended(None, whole=True)
    assert value(tmp_path, TIME_PER_OUTPUT_TOKEN, "m", "false", part=SUM) == pytest.approx(0.2)
    assert value(tmp_path, TIME_PER_OUTPUT_TOKEN, "m", "true", part=SUM) == 0


def test_an_answer_nobody_waited_for_has_no_duration(tmp_path: Path, clock: ManualClock) -> None:
    """And one of a single token has no time between tokens."""
    meter = GatewayMeter(tmp_path, "m", clock=clock)
    times = meter.arrived()
    times.token(verified=True, exemplar=None)
    clock.sleep(9.0)
    meter.ended("aborted")
    times.ended(None, whole=False)
    assert value(tmp_path, REQUESTS, "m", "aborted") == 1
    assert value(tmp_path, REQUEST_DURATION, "m", part=SUM) == 0
    assert value(tmp_path, TIME_PER_OUTPUT_TOKEN, "m", "true", part=SUM) == 0
