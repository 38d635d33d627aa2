"""The heal log: readable after a cut at any byte; healing replays it as often as one likes."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.checkout import ROOT
from tocsin.chaos import wal
from tocsin.chaos.heal import heal_all
from tocsin.chaos.process import look
from tocsin.core.clock import ManualClock
from tocsin.core.faulting import OrderStatus

RECORDS = [
    {"type": "run", "experiment": "small", "wall_s": 1.0},
    {"type": "intent", "occurrence": "a@0", "scope": "worker", "ttl_s": 5.0, "wall_s": 2.0},
    {"type": "fired", "occurrence": "a@0", "wall_s": 3.0},
    {"type": "intent", "occurrence": "b@0", "scope": "worker", "ttl_s": 5.0, "wall_s": 3.5},
    {"type": "settled", "occurrence": "a@0", "state": "healed", "wall_s": 4.0},
    {"type": "end", "wall_s": 5.0},
]


def _write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    log = wal.WriteAheadLog(path)
    for record in records:
        log.write(record)
    log.close()
    return path


def test_a_log_cut_at_any_byte_yields_exactly_its_whole_records(tmp_path: Path) -> None:
    """A power cut leaves a beginning; no record is lost that was whole, none is made up."""
    whole = _write(tmp_path / "whole" / wal.NAME, RECORDS).read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    path = tmp_path / wal.NAME
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        reading = wal.read(path)
        # A line that lacks only its end is whole: its checksum says so.
        complete = sum(end - 1 <= cut for end in ends)
        assert [dict(record) for record in reading.records] == RECORDS[:complete]
        assert reading.damaged == (cut > 0 and cut not in ends and cut + 1 not in ends)


def test_a_log_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    """What is appended after a crash is not glued to what the crash cut off."""
    path = _write(tmp_path / wal.NAME, RECORDS[:2])
    path.write_bytes(path.read_bytes()[:-7])
    log = wal.WriteAheadLog(path)
    log.write(RECORDS[2])
    log.close()
    reading = wal.read(path)
    assert [dict(record) for record in reading.records] == [RECORDS[0], RECORDS[2]]
    assert reading.damaged == 1


@pytest.mark.parametrize("position", [0, 4, 8, 9, 20])
def test_a_changed_byte_is_told_apart(tmp_path: Path, position: int) -> None:
    """The checksum covers the whole text."""
    path = _write(tmp_path / wal.NAME, RECORDS[:1])
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))
    assert wal.read(path) == wal.Reading((), 1)


def test_only_what_was_intended_and_not_settled_is_open() -> None:
    """What never started is not healed; what was healed is not healed again."""
    assert [one.occurrence for one in wal.open_faults(RECORDS)] == ["b@0"]
    assert [one.state for one in wal.open_faults(RECORDS[:3])] == ["fired"]
    unhealed = {"type": "settled", "occurrence": "a@0", "state": "unhealed", "wall_s": 4.0}
    assert [one.state for one in wal.open_faults([*RECORDS[:3], unhealed])] == ["unhealed"]


@dataclass
class OrdersOnly:
    """As much of a system as healing asks for."""

    book: dict[str, OrderStatus] = field(default_factory=dict)
    disarmed: list[str] = field(default_factory=list)
    state: str = "healed"

    def disarm(self, occurrence: str) -> None:
        self.disarmed.append(occurrence)
        if occurrence in self.book:
            self.book[occurrence] = OrderStatus(occurrence, self.state)

    def orders(self) -> dict[str, OrderStatus]:
        return self.book


def _heal(
    store: Path, system: Any = None, wall_s: float = 1000.0
) -> tuple[int, list[str], ManualClock]:
    said: list[str] = []
    clock = ManualClock(int(wall_s * 1e9))
    return heal_all(store, system, clock=clock, say=said.append), said, clock


def test_nothing_open_is_said_and_is_fine(tmp_path: Path) -> None:
    """Also in a store without any run."""
    code, said, _ = _heal(tmp_path)
    assert code == 0
    assert "nothing is armed" in said[-1]


def test_a_lease_that_ended_long_ago_has_disarmed_its_fault(tmp_path: Path) -> None:
    """It is said so, written down, and the second time there is nothing left to do."""
    _write(tmp_path / "small" / "run" / wal.NAME, RECORDS[:3])
    code, said, clock = _heal(tmp_path)
    assert code == 0
    assert "a@0" in said[0]
    assert "disarmed by its lease of 5 s" in said[0]
    assert clock.wall_s() == 1000.0
    code, said, _ = _heal(tmp_path)
    assert (code, len(said)) == (0, 1)
    assert "nothing is armed" in said[0]


def test_a_lease_that_may_still_run_is_waited_for(tmp_path: Path) -> None:
    """Last sign of life at 3 s, renewed at most 5 s later, lease 5 s: gone at 13 s."""
    _write(tmp_path / "small" / "run" / wal.NAME, RECORDS[:3])
    code, _, clock = _heal(tmp_path, wall_s=6.0)
    assert code == 0
    assert clock.wall_s() == pytest.approx(13.0)


def test_a_fault_is_disarmed_through_the_system_that_knows_it(tmp_path: Path) -> None:
    """Its target's word counts more than the lease."""
    _write(tmp_path / "small" / "run" / wal.NAME, RECORDS[:3])
    system = OrdersOnly({"a@0": OrderStatus("a@0", "fired")})
    code, said, _ = _heal(tmp_path, system)
    assert code == 0
    assert system.disarmed == ["a@0"]
    assert "healed, says its target" in said[0]


def test_a_target_that_cannot_heal_ends_with_five(tmp_path: Path) -> None:
    """And it stays open for the next attempt."""
    path = _write(tmp_path / "small" / "run" / wal.NAME, RECORDS[:3])
    system = OrdersOnly({"a@0": OrderStatus("a@0", "fired")}, state="unhealed")
    code, said, _ = _heal(tmp_path, system)
    assert code == 5
    assert "not shown to be gone" in said[-1]
    assert len(wal.open_faults(wal.read(path).records)) == 1


def test_a_fault_whose_process_is_gone_is_gone_with_it(tmp_path: Path) -> None:
    """The pid is told apart from a later one by its start."""
    intent = {**RECORDS[1], "pid": os.getpid(), "started_ticks": 1}
    _write(tmp_path / "small" / "run" / wal.NAME, [intent])
    code, said, _ = _heal(tmp_path)
    assert code == 0
    assert "is gone" in said[0]


def test_a_process_that_is_still_stopped_is_let_go(tmp_path: Path) -> None:
    """A freeze whose guardian was killed too."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        try:
            reading = look(child.pid)
            assert reading is not None
            os.kill(child.pid, signal.SIGSTOP)
            _wait_for(lambda: _state(child.pid) == "T")
            intent = {
                **RECORDS[1],
                "scope": "process",
                "pid": child.pid,
                "started_ticks": reading.started_ticks,
            }
            _write(tmp_path / "small" / "run" / wal.NAME, [intent])
            code, said, _ = _heal(tmp_path)
            assert code == 0, said
            assert "let go on" in said[0]
            assert _state(child.pid) != "T"
        finally:
            child.kill()


def test_a_driver_killed_in_the_middle_leaves_a_log_that_healing_reports_on(
    tmp_path: Path,
) -> None:
    """SIGKILL between injection and heal: the intent is on the disk, and heal says what became."""
    code = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from tests.chaos.experiments import small\n"
        "from tests.chaos.fake_system import FakeSystem, Misbehaviour\n"
        "from tocsin.chaos.run import run\n"
        "from tocsin.chaos.spec_file import parse_experiment\n"
        "class Never(FakeSystem):\n"
        "    def _advance(self):\n"
        "        pass\n"
        "run(parse_experiment(small(safety={'ttl': '1s'})), Never(), Path(sys.argv[1]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT) as driver:
        try:
            _wait_for(lambda: any(map(_has_intent, tmp_path.glob(f"*/*/{wal.NAME}"))))
        finally:
            driver.kill()
    said: list[str] = []
    clock = ManualClock(int((time.time() + 60) * 1e9))
    assert heal_all(tmp_path, None, clock=clock, say=said.append) == 0
    assert any("weights@0: disarmed by its lease of 1 s" in line for line in said), said
    assert "no fault is left armed" in said[-1]


def _has_intent(path: Path) -> bool:
    return any(record.get("occurrence") == "weights@0" for record in wal.read(path).records)


def _state(pid: int) -> str:
    reading = look(pid)
    return reading.state if reading else "gone"


def _wait_for(condition: Any, timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)
