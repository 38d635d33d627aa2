"""Faults on processes, on real child processes: killed, frozen, and never left frozen."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tocsin.chaos import guard_duty, guardian
from tocsin.chaos.contract import ProcessTarget
from tocsin.chaos.process import Striker, look, send, state_of
from tocsin.core.clock import ManualClock, SystemClock
from tocsin.core.faulting import Order, OrderStatus


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps; killed at the end, whatever became of it."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def reports() -> list[OrderStatus]:
    return []


@pytest.fixture
def striker(reports: list[OrderStatus]) -> Striker:
    return Striker(SystemClock(), reports.append)


class TurnedByHand(ManualClock):
    """It jumps, and yet gives the kernel a moment to do what it was asked for."""

    def sleep(self, seconds: float) -> None:
        """Advance at once, after a little real time."""
        time.sleep(0.01)
        super().sleep(seconds)


def _order(kind: str, ttl_s: float = 30.0, **params: object) -> Order:
    return Order(f"{kind}@0", kind, 1, 0, ttl_s, dict(params))


def _until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Wait for the kernel or another process; there is no clock to turn by hand there."""
    deadline_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


def _state(pid: int) -> str:
    reading = look(pid)
    return "gone" if reading is None else reading.state


def test_a_killed_process_is_gone(
    striker: Striker, child: subprocess.Popen[bytes], reports: list[OrderStatus]
) -> None:
    """The evidence is what the kernel says, not that a signal was sent."""
    status = striker.strike(_order("actor.kill"), child.pid)
    assert status.state == "fired"
    assert status.evidence is not None
    assert status.evidence.after == "state gone"
    assert child.wait() == -signal.SIGKILL
    assert reports == [status]


def test_a_kill_is_healed_by_another_living_process_only(
    striker: Striker, child: subprocess.Popen[bytes]
) -> None:
    """Nobody, the dead one itself, and a pid that does not exist are no replacement."""
    serving: list[int | None] = [None]
    striker.strike(_order("actor.kill"), child.pid, replacement=lambda: serving[0])
    for pid in (None, child.pid, 2**22 - 1):
        serving[0] = pid
        striker.tick()
        assert striker.statuses()[0].state == "fired"
    serving[0] = os.getpid()
    striker.tick()
    assert striker.statuses()[0].state == "healed"


def test_a_kill_without_replacement_in_time_is_unhealed(child: subprocess.Popen[bytes]) -> None:
    """The lease ends: nothing can be done from here, and that is said."""
    clock = TurnedByHand()
    striker = Striker(clock, lambda status: None)
    striker.strike(_order("actor.kill", ttl_s=5.0), child.pid, replacement=lambda: None)
    clock.sleep(6.0)
    striker.tick()
    assert striker.statuses()[0].state == "unhealed"


def test_a_frozen_process_is_stopped_and_goes_on_when_healed(
    striker: Striker, child: subprocess.Popen[bytes]
) -> None:
    """State T while it lasts; the heal does not wait for the guardian."""
    status = striker.strike(_order("actor.freeze", duration_s=30.0), child.pid)
    assert status.state == "fired"
    assert _state(child.pid) == "T"
    striker.tick()
    assert striker.statuses()[0].state == "fired"
    striker.disarm("actor.freeze@0")
    assert striker.statuses()[0].state == "healed"
    assert _state(child.pid) != "T"


def test_a_freeze_ends_by_itself(striker: Striker, child: subprocess.Popen[bytes]) -> None:
    """Nobody disarms: the guardian does, and the next tick sees it."""
    striker.strike(_order("actor.freeze", duration_s=0.3), child.pid)
    assert _state(child.pid) == "T"
    assert _until(lambda: _state(child.pid) != "T")
    striker.tick()
    assert striker.statuses()[0].state == "healed"


def test_a_freeze_ends_although_the_chaos_actor_was_killed(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the process that froze it, and to its process group, leaves nothing frozen."""
    script = (
        "import sys, time\n"
        "from tocsin.chaos.process import Striker\n"
        "from tocsin.core.clock import SystemClock\n"
        "from tocsin.core.faulting import Order\n"
        "order = Order('f@0', 'actor.freeze', 1, 0, 30.0, {'duration_s': 1.0})\n"
        "striker = Striker(SystemClock(), lambda status: None)\n"
        "print(striker.strike(order, int(sys.argv[1])).state, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(child.pid)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as actor:
        assert actor.stdout is not None
        assert actor.stdout.readline() == "fired\n"
        os.killpg(actor.pid, signal.SIGKILL)
        assert _state(child.pid) == "T"
    assert _until(lambda: _state(child.pid) != "T")
    assert child.poll() is None


def test_a_lease_that_ends_lets_a_frozen_process_go_on(child: subprocess.Popen[bytes]) -> None:
    """No renewal within the lease: the striker itself sends SIGCONT."""
    clock = TurnedByHand()
    striker = Striker(clock, lambda status: None)
    striker.strike(_order("actor.freeze", ttl_s=5.0, duration_s=30.0), child.pid)
    assert _until(lambda: _state(child.pid) == "T")
    striker.renew(5.0)
    clock.sleep(4.0)
    striker.tick()
    assert _state(child.pid) == "T"
    clock.sleep(2.0)
    striker.tick()
    assert _until(lambda: _state(child.pid) != "T")


def test_a_process_that_took_over_the_pid_is_not_touched(child: subprocess.Popen[bytes]) -> None:
    """Start times tell apart two processes of one pid, for the signal and for the guardian."""
    reading = look(child.pid)
    assert reading is not None
    other = ProcessTarget(child.pid, reading.started_ticks + 1, {}, 0, SystemClock())
    assert state_of(other) == "gone"
    assert not send(other, signal.SIGSTOP)
    assert _state(child.pid) != "T"
    os.kill(child.pid, signal.SIGSTOP)
    assert _until(lambda: _state(child.pid) == "T")
    assert not guardian.release(child.pid, reading.started_ticks + 1)
    assert _state(child.pid) == "T"
    assert guardian.release(child.pid, reading.started_ticks)
    assert _until(lambda: _state(child.pid) != "T")


def test_a_guardian_of_a_vanished_process_leaves_early(child: subprocess.Popen[bytes]) -> None:
    """It does not wait out its time for nobody."""
    reading = look(child.pid)
    assert reading is not None
    words = [sys.executable, "-I", "-S", str(guard_duty.GUARDIAN), "60"]
    order = f"{child.pid}:{reading.started_ticks}"
    with subprocess.Popen([*words, order], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        word, pid = process.stdout.readline().split()
    assert word == "guarding"
    child.kill()
    child.wait()
    assert _until(lambda: _state(int(pid)) == "gone")


def _asleep(folder: Path) -> Path:
    (folder / "asleep.py").write_text("import time\ntime.sleep(60)\n")
    return folder / "asleep.py"


@pytest.mark.parametrize("script", [lambda folder: folder / "missing.py", _asleep])
def test_nothing_is_frozen_when_the_guardian_cannot_stand(
    striker: Striker,
    child: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    script: Callable[[Path], Path],
) -> None:
    """The watchdog comes first: without it, or when it takes too long, the order is refused."""
    monkeypatch.setattr(guard_duty, "GUARDIAN", script(tmp_path))
    monkeypatch.setattr(guard_duty, "STARTS_WITHIN_S", 0.3)
    status = striker.strike(_order("actor.freeze"), child.pid)
    assert status.state == "disarmed"
    assert "guardian did not start" in status.error
    assert _state(child.pid) != "T"


@pytest.mark.parametrize(
    ("kind", "pid", "params", "complaint"),
    [
        ("actor.kill", 1, {}, "may be struck"),
        ("actor.kill", os.getpid(), {}, "may be struck"),
        ("actor.kill", 2**22 - 1, {}, "may be struck"),
        ("kv.bitflip", 2**22 - 1, {}, "no fault on processes"),
        ("actor.kill", 2**22 - 1, {"signal": 9}, "may be struck|known are"),
    ],
    ids=["init", "itself", "nobody", "another-kind", "unknown-parameter"],
)
def test_an_order_on_a_wrong_process_is_refused_in_words(
    striker: Striker, kind: str, pid: int, params: dict[str, object], complaint: str
) -> None:
    """Init, the chaos actor itself and the dead are never signalled."""
    status = striker.strike(_order(kind, **params), pid)
    assert status.state == "disarmed"
    assert re.search(complaint, status.error)


@pytest.mark.parametrize("duration_s", [0.0, -1.0, 3600.0])
def test_a_freeze_of_no_or_of_very_long_duration_is_refused(
    striker: Striker, child: subprocess.Popen[bytes], duration_s: float
) -> None:
    """A typing error must not stop a replica for an hour."""
    status = striker.strike(_order("actor.freeze", duration_s=duration_s), child.pid)
    assert status.state == "disarmed"
    assert "at most 60" in status.error


def test_an_occurrence_is_struck_once(striker: Striker, child: subprocess.Popen[bytes]) -> None:
    """A repeated command does not freeze twice."""
    order = _order("actor.freeze", duration_s=30.0)
    striker.strike(order, child.pid)
    striker.disarm(order.occurrence)
    striker.strike(order, child.pid)
    assert _state(child.pid) != "T"


def test_chaos_disable_refuses_a_strike(
    striker: Striker, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lever holds for processes as well."""
    monkeypatch.setenv("CHAOS_DISABLE", "1")
    assert striker.strike(_order("actor.kill"), child.pid).state == "disarmed"
    assert child.poll() is None
