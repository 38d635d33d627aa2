"""What is beside the replicas: seen when it does not run or does not take a line, and told once."""

from typing import Any

import pytest

from tocsin.ray_jobs.side_watch import HUB_SILENT_S, SideWatch


class Told:
    """Hears the watch; a process is in the state that the test says."""

    def __init__(self, state: str = "S") -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.state = state
        self.watch = SideWatch(self._note, lambda pid: self.state)

    def _note(self, kind: str, about: str, data: dict[str, Any]) -> None:
        assert about == "side"
        self.events.append((kind, data))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


@pytest.mark.parametrize("state", ["T", "Z", ""])
def test_a_hub_that_does_not_run_is_told_once_and_once_when_it_is_back(state: str) -> None:
    """Stopped, dead or gone; not before it was silent for some beats."""
    told = Told(state)
    told.watch.hub_beat(7, 10.0)
    told.watch.look(10.0 + HUB_SILENT_S)
    assert told.kinds == []
    for late_s in (0.1, 1.0, 60.0):
        told.watch.look(10.0 + HUB_SILENT_S + late_s)
    assert told.kinds == ["metrics_lost"]
    told.watch.hub_beat(8, 90.0)
    told.watch.hub_beat(8, 91.0)
    assert told.kinds == ["metrics_lost", "metrics_back"]


@pytest.mark.parametrize("state", ["S", "R", "D"])
def test_a_hub_that_is_only_late_is_let_be(state: str) -> None:
    """On a busy machine that is no loss."""
    told = Told(state)
    told.watch.hub_beat(7, 10.0)
    told.watch.look(100.0)
    assert told.kinds == []


def test_without_a_hub_nobody_misses_it() -> None:
    """It was never heard, or does not say by which process."""
    told = Told("")
    told.watch.look(100.0)
    told.watch.hub_beat(0, 100.0)
    told.watch.look(200.0)
    assert told.kinds == []


def test_lines_and_spans_that_nobody_took_are_told_as_they_come() -> None:
    """By replica, with how many; a count that stays says nothing new."""
    told = Told()
    for count in (0, 0, 2, 2, 5):
        told.watch.beat("replica-a", {"journal_dropped": count}, {})
    told.watch.beat("replica-b", {}, {"otlp_failed": 3, "otlp_dropped": 1, "spans_written": 9})
    told.watch.beat("replica-c", {}, {})
    assert told.events == [
        ("logs_lost", {"by": "replica-a", "lines": 2}),
        ("logs_lost", {"by": "replica-a", "lines": 3}),
        ("traces_lost", {"by": "replica-b", "spans": 4}),
    ]


def test_alerts_that_are_late_are_told_once_and_once_when_they_arrive() -> None:
    """However often they are tried in between."""
    told = Told()
    for result in ("ok", "retried", "retried", "dead_letter", "ok", "ok"):
        told.watch.delivered(result)
    assert told.kinds == ["alerts_late", "alerts_sent"]
