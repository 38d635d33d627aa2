"""Faults on processes: who a process is, and the striker of the chaos actor of a node."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tocsin.chaos.contract import ELSEWHERE, Fault, ProcessTarget
from tocsin.chaos.strikes import Report, Strikes
from tocsin.core.clock import Clock
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Order, OrderStatus, Scope

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One look at a process: its state letter of /proc and its start in clock ticks since boot."""

    state: str
    started_ticks: int

    @property
    def dead(self) -> bool:
        """It runs no more; its parent may not have asked for its exit code yet."""
        return self.state in ("Z", "X")


def look(pid: int) -> ProcessReading | None:
    """State and start of a process; None when there is none of this pid (proc(5), stat)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessReading(state=fields[0], started_ticks=int(fields[19]))


def state_of(target: ProcessTarget) -> str:
    """State letter of the very process that was aimed at, "gone" when it is no more."""
    reading = look(target.pid)
    if reading is None or reading.dead or reading.started_ticks != target.started_ticks:
        return "gone"
    return reading.state


def send(target: ProcessTarget, number: signal.Signals) -> bool:
    """Signal the process that was aimed at, never a later one that was given its pid.

    Returns:
        Whether the process was there.
    """
    try:
        handle = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return False
    try:
        # The handle pins the process, so the start time cannot change between look and signal.
        if state_of(target) == "gone":
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def wait_for(target: ProcessTarget, wanted: Callable[[str], bool], timeout_s: float) -> str:
    """Look until the state is wanted or time is up; returns the last state seen."""
    deadline_ns = target.clock.now_ns() + int(timeout_s * 1e9)
    state = state_of(target)
    while not wanted(state) and target.clock.now_ns() < deadline_ns:
        target.clock.sleep(_POLL_S)
        state = state_of(target)
    return state


def is_replaced(target: ProcessTarget) -> bool:
    """Another living process serves in its place; where nobody is to, that it is gone."""
    if target.replacement is None:
        return state_of(target) == "gone"
    pid = target.replacement()
    if pid == ELSEWHERE:
        return True
    reading = None if pid is None or pid == target.pid else look(pid)
    return reading is not None and not reading.dead


class Striker(Strikes):
    """Carries out PROCESS orders on its node, at once; ticked, it sees them heal or heals them."""

    def __init__(self, clock: Clock, report: Report, folder: Path | None = None) -> None:
        """Nothing is struck yet.

        Args:
            folder: of the node, for notes to its serving processes; None: they read none.
        """
        super().__init__(clock, report)
        self._folder = folder

    def strike(
        self, order: Order, pid: int, replacement: Callable[[], int | None] | None = None
    ) -> OrderStatus:
        """Carry out an order on a process now; an occurrence is struck once.

        Args:
            order: its `kind` names a fault of scope PROCESS; `after_step` is the caller's affair.
            pid: a process of this machine.
            replacement: pid of the process that serves instead, None while nobody does.
        """
        return self._strike(order, lambda: self._aim(order, pid, replacement))

    def _aim(
        self, order: Order, pid: int, replacement: Callable[[], int | None] | None
    ) -> tuple[Fault, ProcessTarget]:
        """The fault and the process, or why not."""
        fault = self._fault(order, Scope.PROCESS)
        reading = look(pid)
        if pid <= 1 or pid == os.getpid() or reading is None or reading.dead:
            raise SpecError(
                f"{order.occurrence}: pid {pid} is not a process that may be struck; expected a "
                "living one other than init and the chaos actor itself"
            )
        params = fault.resolve(order.params)
        target = ProcessTarget(
            pid,
            reading.started_ticks,
            params,
            order.seed,
            self._clock,
            replacement,
            folder=self._folder,
        )
        return fault, target
