"""A replica's numbers: everything the catalogue promises of it, from a real engine's readings."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.core import metrics
from tocsin.core.calls import Call
from tocsin.core.clock import ManualClock
from tocsin.core.degrade import p0_reason
from tocsin.core.metrics import Metric, MetricType
from tocsin.core.requests import Request
from tocsin.core.terms import Operator, Phase, Profile
from tocsin.ray_jobs.chaos_file import ChaosFile
from tocsin.ray_jobs.delivery_meter import delivery_counter
from tocsin.ray_jobs.exposition import sample_count
from tocsin.ray_jobs.gateway_meter import GatewayMeter
from tocsin.ray_jobs.metric_file import SUM, metric_key
from tocsin.ray_jobs.node_page import NodePage
from tocsin.ray_jobs.numbers import series_of
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.service_meter import incident_counter
from tocsin.ray_jobs.stack import Stack, build
from tocsin.ray_jobs.worker_meter import WorkerMeter

REPLICA = "r1"
REPLICA_SERIES_MAX = 300
NODE_SERIES_MAX = 2_000


class Replica:
    """One replica without Ray: engine, checks and meter, stepped by hand."""

    def __init__(self, folder: Path, model: Path, name: str = REPLICA) -> None:
        options = ServeOptions(
            path=str(model), model="m", profile=Profile.FULL, slots=4, pages=64, max_length=256
        )
        self.clock = ManualClock(10**18)
        self.meter = WorkerMeter(folder, options.served_name, name, self.clock)
        self.stack: Stack = build(
            options, replica=name, clock=self.clock, recorded=self.meter.recorded
        )

    def serve(self, tokens: int = 6) -> None:
        self.stack.engine.submit(Request("q", (1, 2, 3, 4), tokens, ignore_eos=True))
        while self.stack.engine.has_work:
            self.turn()
        self.rest()

    def turn(self) -> None:
        self.clock.sleep(0.05)
        self.stack.engine.step()
        self.meter.turned(self.stack, 0.05)

    def rest(self) -> None:
        """A turn without work brings the gauges up to date."""
        self.meter.turned(self.stack, None)

    def spoil(self, times: int) -> None:
        """A norm's output is wrong in so many steps."""
        spoilt: set[int] = set()

        def listener(call: Call) -> None:
            step = self.stack.engine.stats().step
            if step not in spoilt and len(spoilt) < times:
                spoilt.add(step)
                call.output.mul_(3.0)  # type: ignore[attr-defined]

        self.stack.engine.seams.add_fault(Operator.RMS_NORM, Phase.AFTER, listener)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def replica(tmp_path: Path, model: Path) -> Iterator[Replica]:
    made = Replica(tmp_path, model)
    yield made
    made.meter.close()


def value(folder: Path, metric: Metric, *labels: str, part: str = "") -> float:
    return (
        NodePage(folder, ManualClock(10**18))
        .numbers()
        .values[metric_key(metric.name, part, labels)]
    )


def test_a_served_request_is_in_every_number_of_its_replica(
    tmp_path: Path, replica: Replica
) -> None:
    """Tokens, checks, steps and their times, as the engine itself says."""
    replica.serve(tokens=6)
    counters = replica.stack.gate.counters
    assert value(tmp_path, metrics.TOKENS, "m") == 6
    assert value(tmp_path, metrics.UNVERIFIED_TOKENS, "m") == 0
    (operator, layer, result), count = next(iter(counters.checks.items()))
    assert value(tmp_path, metrics.CHECKS, "m", operator, layer, result) == count
    assert value(tmp_path, metrics.SAMPLED_CHECKS, "m", operator, layer, "ok") == 0
    counters.sampled_checks[operator, layer, "ok"] = 7
    replica.meter.count(replica.stack)
    assert value(tmp_path, metrics.SAMPLED_CHECKS, "m", operator, layer, "ok") == 7
    for kind, steps in (("decode", 5), ("prefill", 1)):
        found = [
            value(tmp_path, metrics.STEP_DURATION, "m", kind, part=part) for part in ("0.05", "0.1")
        ]
        assert sum(found) == pytest.approx(steps)
    assert value(tmp_path, metrics.CHECK_DURATION, "m", part=SUM) >= 0
    last_s = value(tmp_path, metrics.LAST_TOKEN, "m", REPLICA)
    assert last_s == pytest.approx(replica.clock.wall_s(), abs=0.2)
    assert 0 < value(tmp_path, metrics.RATIO_PEAK, "m", "numerical", REPLICA) <= 1
    assert value(tmp_path, metrics.CHECK_ENABLED, "m", "numerical", REPLICA) > 5
    assert value(tmp_path, metrics.BACKEND_IN_USE, "m", "attention", "flash", REPLICA) == 1
    assert value(tmp_path, metrics.RUNNING, "m", REPLICA) == 0
    assert value(tmp_path, metrics.MEMORY_FREE, "m", REPLICA) > 0


def test_a_failure_is_counted_before_its_step_has_ended(tmp_path: Path, replica: Replica) -> None:
    """A process that is killed in that very step leaves it behind."""
    replica.spoil(1)
    replica.stack.engine.submit(Request("q", (1, 2, 3, 4), 2, ignore_eos=True))
    while not replica.stack.gate.counters.failures:
        replica.stack.engine.step()  # and nobody flushes
    failures = {
        series.labels[1:]: count
        for key, count in NodePage(tmp_path, replica.clock).numbers().values.items()
        if (series := series_of(key)) and series.metric is metrics.CHECK_FAILURES and count
    }
    assert set(failures) == set(replica.stack.gate.counters.failures)
    assert value(tmp_path, metrics.CAUSES, "m", "transient") == 1
    page = NodePage(tmp_path, replica.clock)
    page.ticks()
    assert sum(page._window.worst(replica.clock.wall_s()).values()) == 1


def test_the_eleventh_failure_of_a_minute_degrades_in_its_own_step(
    tmp_path: Path, replica: Replica
) -> None:
    """The tenth does not; the order ends after its time."""
    replica.spoil(11)
    replica.stack.engine.submit(Request("q", (1, 2, 3, 4), 40, ignore_eos=True))
    reason, gate = p0_reason("rms_norm"), replica.stack.gate
    for failures in range(1, 12):
        assert not gate.degrader.in_force(reason)
        replica.turn()
        assert sum(gate.counters.causes.values()) == failures
    assert gate.degrader.in_force(reason)
    replica.rest()
    assert value(tmp_path, metrics.SWITCHES, "m", "auto") == 1
    assert value(tmp_path, metrics.INCIDENTS, "m", "rms_norm", "P1") == 11
    replica.clock.sleep(601)
    replica.stack.switchboard.expire()
    gate.degrader.expire()
    assert not gate.degrader.in_force(reason)


def test_time_on_a_fallback_is_counted_in_seconds(tmp_path: Path, replica: Replica) -> None:
    """From the change to the way back, to a fifth of a second at either end."""
    replica.serve(2)
    replica.stack.gate.degrader.degrade("attention", reason="by hand", ttl_s=30)
    for _ in range(100):
        replica.turn()
    replica.stack.gate.degrader.lift("attention", reason="by hand")
    replica.rest()
    degraded_s = value(tmp_path, metrics.DEGRADED_SECONDS, "m", "attention")
    assert degraded_s == pytest.approx(5.0, abs=0.41)
    labels = ("m", "attention", "flash")
    for to in ("forced", "allowed"):
        assert value(tmp_path, metrics.BREAKER_TRANSITIONS, *labels, to) == 1


def test_a_replica_adds_less_than_its_budget_and_a_node_stays_within_its_own(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve replicas, the gateway, a chaos run and the relay on one node."""
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path))
    gateway, chaos = GatewayMeter(tmp_path, "m"), ChaosFile(tmp_path)
    delivery_counter("relay")
    incident_counter()
    page = NodePage(tmp_path, ManualClock(10**18))
    counts, made = [], []
    for number in range(2):
        made.append(Replica(tmp_path, model, f"r{number}"))
        made[-1].spoil(2)
        made[-1].serve(3)
        page.ticks()
        counts.append(sample_count(page.numbers()))
    each = counts[1] - counts[0]
    assert each <= REPLICA_SERIES_MAX
    assert counts[1] + 10 * each <= NODE_SERIES_MAX
    gateway.arrived()
    chaos.close()


def test_every_metric_of_the_catalogue_is_filled_by_somebody(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A declared metric without a writer would be a panel without data."""
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path))
    made = (Replica(tmp_path, model), GatewayMeter(tmp_path, "m"), ChaosFile(tmp_path))
    made[0].serve(2)
    delivery_counter("relay")
    incident_counter()
    page = NodePage(tmp_path, ManualClock(10**18))
    page.ticks()
    filled = {series.metric.name for key in page.numbers().values if (series := series_of(key))}
    assert {metric.name for metric in metrics.CATALOGUE} - filled == set()


def test_no_label_is_unbounded() -> None:
    """Requests, pids, shapes and depths are in the journal and in exemplars."""
    allowed = {
        *("model", "operator", "layer", "check", "priority", "result", "scope", "cause", "kind"),
        *("replica", "actor", "backend", "state", "to", "outcome", "checked", "fault"),
        *("decision", "receiver", "version", "torch", "ray", "attn_backend"),
        "detector",
    }
    for metric in metrics.CATALOGUE:
        assert set(metric.labels) <= allowed
        assert metric.type is not MetricType.HISTOGRAM or not {"replica", "check"} & set(
            metric.labels
        )
