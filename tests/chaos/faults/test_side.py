"""Faults beside the replicas, on processes of the test's own: they strike, show it, and go."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tocsin.chaos import guardian
from tocsin.chaos.contract import ProcessTarget, faults
from tocsin.chaos.process import look, state_of
from tocsin.chaos.side import SideStriker, SideTarget
from tocsin.core.clock import SystemClock
from tocsin.core.faulting import Order, OrderStatus

WRITER = """
import sys
for line in sys.stdin:
    try:
        with open(sys.argv[1], "a") as file:
            file.write(line)
        print("written", flush=True)
    except OSError as error:
        print("refused", error.errno, flush=True)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes each line that it is given to a file, and says what came of it."""
    words = [sys.executable, "-I", "-S", "-c", WRITER, str(tmp_path / "lines")]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def ask(writer: subprocess.Popen[str]) -> str:
    """Have it write one line."""
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.write("a line\n")
    writer.stdin.flush()
    return writer.stdout.readline().strip()


@dataclass
class Around:
    """The striker, with one process as the hub and the only serving process."""

    pid: int
    reports: list[OrderStatus] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.striker = SideStriker(SystemClock(), self.reports.append, self._target)

    def _target(self, params: object, seed: int) -> SideTarget:
        reading = look(self.pid)
        assert reading is not None
        process = ProcessTarget(self.pid, reading.started_ticks, {}, seed, SystemClock())
        return SideTarget(
            hub=process,
            metrics_answer=lambda: state_of(process) != "T",
            workers=(process,),
            journal="journal",
            params=params,  # type: ignore[arg-type]
            seed=seed,
            clock=SystemClock(),
        )

    def strike(self, kind: str, **params: object) -> OrderStatus:
        return self.striker.strike(Order("it@0", kind, 1, 0, 60.0, dict(params)))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Poll: what is waited for happens in other processes."""
        until_s = time.monotonic() + 30.0
        while not condition():
            assert time.monotonic() < until_s
            time.sleep(0.02)

    def state(self) -> str:
        self.striker.tick()
        return self.striker.statuses()[0].state


def test_a_full_disk_refuses_what_is_written_and_takes_it_again(
    writer: subprocess.Popen[str],
) -> None:
    """The process lives on and is told by the kernel; healed, nothing is refused any more."""
    around = Around(writer.pid)
    assert ask(writer) == "written"
    status = around.strike("disk.full", duration_s=60.0)
    assert status.state == "fired", status.error
    assert status.evidence is not None
    assert "any size" in status.evidence.before
    assert status.evidence.after == "may grow to 0 bytes"
    assert ask(writer).startswith("refused 27")  # EFBIG
    assert around.state() == "fired"
    around.striker.disarm("it@0")
    assert around.state() == "healed"
    assert ask(writer) == "written"


def test_a_full_disk_is_over_by_itself_when_nobody_heals_it(writer: subprocess.Popen[str]) -> None:
    """The guardian lives in a session of its own: whoever struck may have been killed."""
    around = Around(writer.pid)
    assert around.strike("disk.full", duration_s=0.3).state == "fired"
    around.wait_until(lambda: ask(writer) == "written")
    assert around.state() == "healed"


def test_another_process_of_the_same_pid_keeps_its_limit(writer: subprocess.Popen[str]) -> None:
    """Start times tell them apart."""
    reading = look(writer.pid)
    assert reading is not None
    assert not guardian.give_back(writer.pid, reading.started_ticks + 1, 0)
    assert ask(writer) == "written"


@pytest.mark.parametrize("params", [{"bytes": -1}, {"duration_s": 0}, {"duration_s": 1e6}])
def test_a_disk_that_cannot_be_filled_so_is_refused(
    writer: subprocess.Popen[str], params: dict[str, float]
) -> None:
    """In words, and nothing is limited."""
    status = Around(writer.pid).strike("disk.full", **params)
    assert (status.state, "expected" in status.error) == ("disarmed", True)
    assert ask(writer) == "written"


def test_a_page_of_metrics_hangs_and_comes_back(writer: subprocess.Popen[str]) -> None:
    """Seen in place, healed before its time, and seen healed."""
    around = Around(writer.pid)
    status = around.strike("obs.metrics_outage", duration_s=30.0)
    assert status.state == "fired", status.error
    assert status.evidence is not None
    assert (status.evidence.before, status.evidence.after) == (
        "answers",
        "no answer within a second",
    )
    assert around.state() == "fired"
    around.striker.disarm("it@0")
    assert around.state() == "healed"
    assert ask(writer) == "written"


def test_a_page_that_hangs_comes_back_by_itself(writer: subprocess.Popen[str]) -> None:
    """The guardian lets it go on."""
    around = Around(writer.pid)
    assert around.strike("obs.metrics_outage", duration_s=0.3).state == "fired"
    around.wait_until(lambda: around.state() == "healed")


def test_metrics_of_another_machine_are_not_struck(writer: subprocess.Popen[str]) -> None:
    """There is no process here that could be stopped."""
    around = Around(writer.pid)
    target = around._target({}, 1)
    target.hub = None
    with pytest.raises(Exception, match="not served on this machine"):
        faults()["obs.metrics_outage"].inject(target)
