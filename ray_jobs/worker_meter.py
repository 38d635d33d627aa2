"""What a replica counts: the readings of its engine and checker, brought to its metric file."""

from collections import Counter
from collections.abc import Hashable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import ray
import torch

from tocsin.checker.contract import registry
from tocsin.core import metrics
from tocsin.core.clock import Clock
from tocsin.core.metrics import Metric
from tocsin.core.terms import BreakerState, Layer, Operator, Priority
from tocsin.core.verdict import Failure
from tocsin.engine.upkeep import BESIDE_STEPS
from tocsin.ray_jobs.metric_file import Bound, MetricFile
from tocsin.ray_jobs.ticks import TickRing

if TYPE_CHECKING:
    from tocsin.ray_jobs.stack import Stack

_OWNER_CHECKS = frozenset({"state.page_owner", "state.page_epoch"})
_SUM_CHECKS = frozenset({"state.kv_page_sum"})
_PEAK_NS = 30_000_000_000
_READ_NS = 200_000_000


class WorkerMeter:
    """The metric file and the tick ring of one replica.

    Failures are written the moment they are recorded, counters once a step, gauges five times a
    second; only what has changed is written.

    Args:
        folder: the node folder.
        model: the name under which it is served.
    """

    def __init__(self, folder: Path, model: str, replica: str, clock: Clock) -> None:
        """Every label set stands at 0; the replica is up."""
        self._clock = clock
        self._model = model
        self._file = MetricFile(folder, "worker", clock=clock)
        self._ring = _ring(folder, model, clock)
        self._replica = (model, replica)
        self._bound: dict[tuple[str, Hashable], Bound] = {}
        self._degraded_ns = self._read_due_ns = 0
        self._described = False
        self._peaks = Peaks(clock)
        self._installs = self._steps = 0
        self._prepare(replica)
        self._up = self._file.bind(metrics.REPLICA_UP, self._replica)
        self._up.set(1.0)

    def recorded(self, failure: Failure, operator: str) -> None:
        """A failure is recorded; what is written here survives whatever comes next."""
        if self._ring is not None:
            self._ring.tick(operator)
        file, model = self._file, self._model
        gravest = min((str(one.priority) for one in failure.findings), default=str(Priority.P1))
        file.inc(metrics.INCIDENTS, (model, operator, gravest))
        file.inc(metrics.CAUSES, (model, str(failure.cause)))
        for finding in failure.findings:
            where = (model, str(finding.operator), str(finding.layer))
            file.inc(metrics.CHECK_FAILURES, (*where, finding.check, str(finding.priority)))
        checks = {finding.check for finding in failure.findings}
        if checks & _OWNER_CHECKS:
            file.inc(metrics.GENERATION_MISMATCHES, (model,))
        if checks & _SUM_CHECKS:
            file.inc(metrics.CHECKSUM_MISMATCHES, (model,))

    def turned(self, stack: "Stack", took_s: float | None) -> None:
        """A turn of the stepping thread has ended.

        Args:
            took_s: its engine step, checks included; None: there was no work.
        """
        if took_s is not None:
            self.stepped(stack, took_s)
        self.count(stack)
        if took_s is None or self._clock.now_ns() >= self._read_due_ns:
            self.read(stack)

    def stepped(self, stack: "Stack", took_s: float) -> None:
        """An engine step has ended.

        Args:
            took_s: the whole step, checks included.
        """
        gate, file, steps = stack.gate, self._file, stack.gate.guard.runtime.counters.steps
        if steps != self._steps:  # a call that found nothing to settle is not a step
            self._steps = steps
            file.observe(metrics.STEP_DURATION, (self._model, gate.kind), took_s)
            file.observe(metrics.CHECK_DURATION, (self._model,), gate.settle_s)
            if gate.kind == "decode":
                self._to(metrics.LAST_TOKEN, self._clock.wall_s(), *self._replica)
            self._peaks.take(gate.ratio_peaks())

    def count(self, stack: "Stack") -> None:
        """Bring the counters up to date, once a step: what is not written, a kill takes along."""
        self._up.set(1.0)  # its time is what says that the replica steps
        counters, model = stack.gate.counters, self._model
        for key, count in counters.checks.items():
            self._to(metrics.CHECKS, count, model, *key)
        for key, count in counters.sampled_checks.items():
            self._to(metrics.SAMPLED_CHECKS, count, model, *key)
        for (operator, kind), count in counters.nonfinite.items():
            self._to(metrics.NONFINITE, count, model, operator, kind)
        for (operator, decision), count in counters.log_records.items():
            self._to(metrics.LOG_RECORDS, count, operator, decision)
        self._to(metrics.ARCHIVE_FAILURES, counters.archive_failures)
        self._to(metrics.JOURNAL_DROPPED, counters.journal_dropped)
        self._to(metrics.UNVERIFIED_TOKENS, counters.unverified_tokens, model)
        self._to(metrics.PAGES_QUARANTINED, counters.pages_quarantined, model)
        self._to(metrics.WEIGHTS_REPAIRED, counters.weights_repaired, model)
        stats = stack.engine.stats()
        self._to(metrics.TOKENS, stats.tokens_released, model)
        self._to(metrics.PREEMPTIONS, stats.preemptions, model)

    def read(self, stack: "Stack") -> None:
        """Bring the gauges up to date, five times a second: no scraper looks more often."""
        self._read_due_ns = self._clock.now_ns() + _READ_NS
        if not self._described:
            self._described = True
            self._describe(stack.breaker.chain)
        self._to(metrics.ARCHIVE_LAG, stack.gate.counters.archive_lag_s)
        self._read_engine(stack)
        self._read_breaker(stack)
        self._read_checks(stack)

    def close(self) -> None:
        """The replica ends as it was asked to: nobody need be told of a loss."""
        self._file.close()

    def _read_engine(self, stack: "Stack") -> None:
        stats, watermark = stack.engine.stats(), stack.gate.watermark
        self._to(metrics.RUNNING, stats.running, *self._replica)
        self._to(metrics.WAITING, stats.waiting, *self._replica)
        usage = stats.pages_used / max(stats.pages_total, 1)
        self._to(metrics.KV_USAGE, usage, *self._replica)
        self._to(metrics.MEMORY_FREE, max(watermark.free_bytes, 0), *self._replica)
        self._to(metrics.WATERMARK_LEVEL, int(watermark.level), *self._replica)

    def _read_breaker(self, stack: "Stack") -> None:
        breaker, (model, replica) = stack.breaker, self._replica
        operator, serving = str(Operator.ATTENTION), stack.breaker.peek()
        for backend in breaker.chain:
            now = breaker.state(backend)
            for state in BreakerState:
                on = float(state is now)
                self._to(metrics.BREAKER_STATE, on, model, operator, backend, state, replica)
            used = float(backend == serving)
            self._to(metrics.BACKEND_IN_USE, used, model, operator, backend, replica)
        for (backend, to), count in breaker.transitions.items():
            self._to(metrics.BREAKER_TRANSITIONS, count, model, operator, backend, to)
        now_ns = self._clock.now_ns()
        if serving != breaker.primary and self._degraded_ns:
            seconds = (now_ns - self._degraded_ns) / 1e9
            self._file.inc(metrics.DEGRADED_SECONDS, (model, operator), seconds)
        self._degraded_ns = now_ns if serving != breaker.primary else 0

    def _read_checks(self, stack: "Stack") -> None:
        for layer, peak in self._peaks.worst().items():
            self._to(metrics.RATIO_PEAK, peak, self._model, str(layer), self._replica[1])
        for actor, count in stack.switchboard.changes.items():
            self._to(metrics.SWITCHES, count, self._model, actor)
        runtime = stack.gate.guard.runtime
        if runtime.installs != self._installs:
            self._installs = runtime.installs
            layers = Counter(one.partition(".")[0] for one in runtime.running())
            for layer in Layer:
                labels = (self._model, str(layer), self._replica[1])
                self._to(metrics.CHECK_ENABLED, layers[str(layer)], *labels)

    def _to(self, metric: Metric, value: float, *labels: str) -> None:
        """Bring one number to a reading; the series is looked up once."""
        bound = self._bound.get((metric.name, labels))
        if bound is None:
            bound = self._bound[metric.name, labels] = self._file.bind(metric, labels)
        bound.to(value)

    def _prepare(self, replica: str) -> None:
        """Put at 0 what may ever be counted here."""
        file, model = self._file, (self._model,)
        operators = tuple(map(str, Operator))
        for metric in (
            *(metrics.CAUSES, metrics.CHECK_DURATION, metrics.STEP_DURATION, metrics.SWITCHES),
            *(metrics.DEGRADED_SECONDS, metrics.TOKENS, metrics.UNVERIFIED_TOKENS),
            *(metrics.GENERATION_MISMATCHES, metrics.CHECKSUM_MISMATCHES, metrics.PREEMPTIONS),
            *(metrics.PAGES_QUARANTINED, metrics.WEIGHTS_REPAIRED, metrics.ARCHIVE_FAILURES),
            metrics.JOURNAL_DROPPED,
        ):
            file.prepare(metric, model=model)
        for metric in (metrics.INCIDENTS, metrics.NONFINITE, metrics.LOG_RECORDS):
            file.prepare(metric, model=model, operator=operators)
        for metric in (metrics.RATIO_PEAK, metrics.CHECK_ENABLED):
            file.prepare(metric, model=model, replica=(replica,))
        for unit in registry().values():
            for operator in map(str, unit.operators):
                where, priority = (self._model, operator, str(unit.layer)), str(unit.priority)
                file.touch(metrics.CHECK_FAILURES, (*where, unit.id, priority))
                for result in metrics.RESULTS:
                    file.touch(metrics.CHECKS, (*where, result))
                for result in metrics.SAMPLED_CHECKS.values["result"]:
                    file.touch(metrics.SAMPLED_CHECKS, (*where, result))
        for check, layer in BESIDE_STEPS.items():
            where, priority = (*model, str(Operator.KV_UPDATE), str(layer)), str(Priority.P1)
            file.touch(metrics.CHECK_FAILURES, (*where, check, priority))

    def _describe(self, chain: tuple[str, ...]) -> None:
        """Say which versions serve, and put the circuits of these backends at 0."""
        version = metadata.version("tocsin")
        labels = (version, torch.__version__, ray.__version__, chain[0])
        self._file.set(metrics.BUILD_INFO, labels, 1.0)
        self._file.prepare(metrics.BREAKER_TRANSITIONS, model=(self._model,), backend=chain)


class Peaks:
    """The largest ratios of the last minute or half of it, by layer."""

    def __init__(self, clock: Clock) -> None:
        """Nothing was read yet."""
        self._clock = clock
        self._since_ns = clock.now_ns()
        self._before: dict[Layer, float] = {}
        self._now: dict[Layer, float] = {}

    def take(self, ratios: dict[Layer, float]) -> None:
        """Take the ratios of one step."""
        if self._clock.now_ns() - self._since_ns >= _PEAK_NS:
            self._before, self._now = self._now, {}
            self._since_ns = self._clock.now_ns()
        for layer, ratio in ratios.items():
            if ratio > self._now.get(layer, -1.0):
                self._now[layer] = ratio

    def worst(self) -> dict[Layer, float]:
        """Of both halves."""
        return {
            layer: max(self._before.get(layer, 0.0), self._now.get(layer, 0.0)) for layer in Layer
        }


def _ring(folder: Path, model: str, clock: Clock) -> TickRing | None:
    """The tick ring; without disk for it the replica's own window still counts."""
    try:
        return TickRing(folder, model, clock)
    except OSError:
        return None
