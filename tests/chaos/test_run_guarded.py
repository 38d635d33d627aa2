"""Runs under guards, under SIGTERM, and under a meter that others must have seen first."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.experiments import small
from tests.chaos.fake_system import FakeSystem, Misbehaviour
from tocsin.chaos import conduct
from tocsin.chaos.run import run
from tocsin.chaos.spec_file import parse_experiment
from tocsin.chaos.store import read_verdict
from tocsin.core.chaos_meter import Unmetered


class Says:
    """A guard that says what it is told to, from a certain look on."""

    def __init__(self, reason: str, from_look: int) -> None:
        self.reason, self.from_look, self.looks = reason, from_look, 0

    def why_not(self) -> str:
        self.looks += 1
        return self.reason if self.looks >= self.from_look else ""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small runs are over before a guard would be asked a second time."""
    monkeypatch.setattr(conduct, "_GUARD_S", 0.02)


def _run(
    folder: Path, *guards: Says, system: FakeSystem | None = None, **options: Any
) -> tuple[int, dict[str, Any], FakeSystem]:
    system = system or FakeSystem(wrong=Misbehaviour())
    code = run(parse_experiment(small()), system, folder, guards=guards, **options)
    return code, read_verdict((folder / "latest").resolve()), system


def test_guards_that_agree_are_asked_all_along_and_change_nothing(tmp_path: Path) -> None:
    """The nearest miss: the run passes."""
    guard = Says("", 1)
    code, _, _ = _run(tmp_path, guard)
    assert code == 0
    assert guard.looks > 5


def test_a_guard_that_refuses_at_first_lets_nothing_be_armed(tmp_path: Path) -> None:
    """Exit 4, the reason in the verdict, no order and no request."""
    code, verdict, system = _run(tmp_path, Says("namespace demo: label is gone", 1))
    assert code == 4
    assert "namespace demo: label is gone" in json.dumps(verdict)
    assert not system.given
    assert system.sent == 0


class Lasting(FakeSystem):
    """Its faults stay until somebody takes them back."""

    def __init__(self) -> None:
        super().__init__(wrong=Misbehaviour(), heal_after_ns=10**12)

    def disarm(self, occurrence: str) -> None:
        super().disarm(occurrence)
        self.heal_after_ns = 0


def test_a_guard_that_refuses_later_heals_and_ends_the_run(tmp_path: Path) -> None:
    """What was armed is taken back; the run is aborted, not failed."""
    system = Lasting()

    class WhenArmed(Says):
        def why_not(self) -> str:
            return self.reason if system.given else ""

    code, verdict, _ = _run(tmp_path, WhenArmed("alerts: GpuLost began", 1), system=system)
    assert code == 4
    assert all(status.state != "fired" for status in system.orders().values())
    assert "alerts: GpuLost began" in json.dumps(verdict)
    assert system.sent < 40


def test_sigterm_heals_and_writes_the_verdict_in_time(tmp_path: Path) -> None:
    """Kubernetes sends SIGKILL 30 s later, whatever the targets do meanwhile."""
    system = Lasting()
    sent_s: list[float] = []

    def terminate() -> None:
        while not system.given:
            time.sleep(0.005)
        sent_s.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=terminate, daemon=True).start()
    brought: list[bool] = []
    code, verdict, _ = _run(tmp_path, system=system, bring=lambda: brought.append(True))
    assert not brought  # other hosts are not waited for
    assert code == 4
    assert "SIGTERM was received" in json.dumps(verdict)
    assert time.monotonic() - sent_s[0] < 20.0
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_while_the_verdict_is_written_does_not_hinder_it(tmp_path: Path) -> None:
    """The run is over by then: its own exit code stands."""

    def keep(run_dir: Path) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    brought: list[bool] = []
    code, verdict, _ = _run(tmp_path, keep=keep, bring=lambda: brought.append(True))
    assert code == 0
    assert brought
    assert verdict["exit_code"] == 0


class Told(Unmetered):
    """Notes when the run began, for whoever scrapes, and when the first fault was in place."""

    def __init__(self) -> None:
        self.began_s = self.injected_s = 0.0

    def running(self, on: bool) -> None:
        self.began_s = self.began_s or time.monotonic()

    def injected(self, fault: str) -> None:
        self.injected_s = self.injected_s or time.monotonic()


@pytest.mark.parametrize("announce_s", [0.0, 1.5])
def test_those_who_scrape_have_their_time_before_the_first_fault(
    tmp_path: Path, announce_s: float
) -> None:
    """Else the first alert of the chaos would page somebody in earnest."""
    told = Told()
    code, _, _ = _run(tmp_path, meter=told, announce_s=announce_s)
    assert code == 0
    assert told.injected_s - told.began_s >= announce_s


def test_a_run_that_is_stopped_does_not_wait_for_those_who_scrape(tmp_path: Path) -> None:
    """A minute of silence after a refusal helps nobody."""
    began_s = time.monotonic()
    code, _, _ = _run(tmp_path, Says("lease: lost", 3), announce_s=60.0)
    assert code == 4
    assert time.monotonic() - began_s < 20.0


def test_a_fault_on_pods_runs_like_one_on_processes(tmp_path: Path) -> None:
    """All other replicas are well meanwhile, and the run passes with its detectors."""
    document = small()
    document["faults"] = [
        {
            "id": "gone",
            "kind": "pod.delete",
            "when": {"clock": "request", "at": [6]},
            "expect": {"within": "1s", "recover_within": "5s"},
        }
    ]
    document["safety"]["scope"] = "cluster_destructive"
    told: list[str] = []
    code = run(
        parse_experiment(document),
        FakeSystem(wrong=Misbehaviour()),
        tmp_path,
        progress=_Notes(told.append),
    )
    assert code == 0
    assert any("pod.delete on replica-" in line for line in told)


class _Notes:
    """A progress that keeps what is noted."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note

    def update(self, state: Any) -> None:
        pass

    def end(self, verdict: Any, run_dir: Path, lines: tuple[str, ...]) -> None:
        pass
