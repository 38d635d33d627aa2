"""The metric file of a chaos run: faults injected, seen and healed, as the run tells them."""

from pathlib import Path

from tocsin.chaos.contract import faults
from tocsin.core.metrics import (
    CHAOS_ACTIVE,
    CHAOS_DETECTION,
    CHAOS_RUNNING,
    FALSE_ALARMS,
    FAULTS_DETECTED,
    FAULTS_HEALED,
    FAULTS_INJECTED,
)
from tocsin.ray_jobs.metric_file import MetricFile

_BY_FAULT = (FAULTS_INJECTED, FAULTS_DETECTED, FAULTS_HEALED, CHAOS_ACTIVE)


class ChaosFile:
    """Implements `core.chaos_meter.ChaosMeter`.

    Args:
        folder: the node folder.
    """

    def __init__(self, folder: Path) -> None:
        """Every known fault stands at 0."""
        self._file = MetricFile(folder, "chaos")
        for metric in _BY_FAULT:
            self._file.prepare(metric, fault=faults())
        for metric in (CHAOS_DETECTION, CHAOS_RUNNING, FALSE_ALARMS):
            self._file.prepare(metric)

    def running(self, on: bool) -> None:
        """An experiment begins or has ended."""
        self._file.set(CHAOS_RUNNING, (), float(on))

    def active(self, fault: str, count: int) -> None:
        """So many faults of this kind are in place now."""
        self._file.set(CHAOS_ACTIVE, (fault,), count)

    def injected(self, fault: str) -> None:
        """A fault has left evidence that it fired."""
        self._file.inc(FAULTS_INJECTED, (fault,))

    def detected(self, fault: str, seconds: float) -> None:
        """A detector that is meant to see it has alarmed."""
        self._file.inc(FAULTS_DETECTED, (fault,))
        self._file.observe(CHAOS_DETECTION, (), seconds)

    def healed(self, fault: str) -> None:
        """A fault was shown to be gone."""
        self._file.inc(FAULTS_HEALED, (fault,))

    def false_alarms(self, count: int) -> None:
        """So many alarms of the run belong to no fault."""
        self._file.inc(FALSE_ALARMS, (), count)

    def close(self) -> None:
        """The run is over."""
        self._file.close()
