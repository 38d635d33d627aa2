"""Faults on processes: who a process is, and the order book of the chaos actor of a node."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tocsin.chaos.contract import Fault, ProcessTarget, faults
from tocsin.core.clock import Clock
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Order, OrderStatus, Scope

Report = Callable[[OrderStatus], None]
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


@dataclass(slots=True)
class _Struck:
    """One order that was carried out."""

    fault: Fault
    target: ProcessTarget
    status: OrderStatus
    deadline_ns: int


class Striker:
    """Carries out PROCESS orders on its node, at once; ticked, it sees them heal or heals them."""

    def __init__(self, clock: Clock, report: Report) -> None:
        """Nothing is struck yet; `report` hears of every change of an order's state."""
        self._clock = clock
        self._report = report
        self._struck: dict[str, _Struck] = {}

    def strike(
        self, order: Order, pid: int, replacement: Callable[[], int | None] | None = None
    ) -> OrderStatus:
        """Carry out an order on a process now; an occurrence is struck once.

        Args:
            order: its `kind` names a fault of scope PROCESS; `after_step` is the caller's affair.
            pid: a process of this machine.
            replacement: pid of the process that serves instead, None while nobody does.
        """
        if order.occurrence in self._struck:
            return self._struck[order.occurrence].status
        try:
            fault, target = self._aim(order, pid, replacement)
        except SpecError as error:
            status = OrderStatus(order.occurrence, "disarmed", error=str(error))
            self._report(status)
            return status
        deadline_ns = self._clock.now_ns() + int(order.ttl_s * 1e9)
        armed = OrderStatus(order.occurrence, "armed")
        struck = _Struck(fault, target, armed, deadline_ns)
        self._struck[order.occurrence] = struck
        self._carry_out(struck)
        return struck.status

    def tick(self) -> None:
        """See which faults have healed; heal those whose lease ran out."""
        for struck in self._struck.values():
            if struck.status.state != "fired":
                continue
            if self._is_healed(struck):
                self._settle(struck, "healed")
            elif self._clock.now_ns() >= struck.deadline_ns:
                self._heal(struck)

    def renew(self, ttl_s: float) -> None:
        """The controller is alive: every lease begins anew."""
        for struck in self._struck.values():
            struck.deadline_ns = self._clock.now_ns() + int(ttl_s * 1e9)

    def disarm(self, occurrence: str) -> None:
        """Heal what an order did; unknown and settled occurrences are left alone."""
        struck = self._struck.get(occurrence)
        if struck is not None and struck.status.state in ("fired", "unhealed"):
            self._heal(struck)

    def statuses(self) -> tuple[OrderStatus, ...]:
        """Where every order stands, in the order of their arrival."""
        return tuple(struck.status for struck in self._struck.values())

    def _aim(
        self, order: Order, pid: int, replacement: Callable[[], int | None] | None
    ) -> tuple[Fault, ProcessTarget]:
        """The fault and the process, or why not."""
        if os.environ.get("CHAOS_DISABLE") == "1":
            raise SpecError(f"{order.occurrence}: CHAOS_DISABLE is 1; unset it to allow chaos")
        fault = faults().get(order.kind)
        if fault is None or fault.scope is not Scope.PROCESS:
            raise SpecError(
                f"{order.occurrence}: {order.kind} is no fault on processes; "
                f"known are {[f.id for f in faults().values() if f.scope is Scope.PROCESS]}"
            )
        reading = look(pid)
        if pid <= 1 or pid == os.getpid() or reading is None or reading.dead:
            raise SpecError(
                f"{order.occurrence}: pid {pid} is not a process that may be struck; expected a "
                "living one other than init and the chaos actor itself"
            )
        params = fault.resolve(order.params)
        target = ProcessTarget(
            pid, reading.started_ticks, params, order.seed, self._clock, replacement
        )
        return fault, target

    def _carry_out(self, struck: _Struck) -> None:
        occurrence = struck.status.occurrence
        try:
            evidence = struck.fault.inject(struck.target)
        except (OSError, SpecError, ValueError, TypeError) as error:
            struck.status = OrderStatus(occurrence, "disarmed", error=f"{struck.fault.id}: {error}")
        else:
            struck.status = OrderStatus(
                occurrence,
                "fired" if evidence.fired else "disarmed",
                evidence=evidence,
                fired_ns=self._clock.now_ns() if evidence.fired else 0,
                error="" if evidence.fired else f"{evidence.place}: still reads {evidence.after}",
            )
        self._report(struck.status)

    def _heal(self, struck: _Struck) -> None:
        error = ""
        if struck.fault.heal_with is not None and not self._is_healed(struck):
            try:
                struck.fault.heal_with(struck.target)
            except OSError as failure:
                error = f"{struck.fault.id}: heal: {failure}"
        self._settle(struck, "healed" if self._is_healed(struck) else "unhealed", error)

    def _is_healed(self, struck: _Struck) -> bool:
        verify = struck.fault.verify_heal_with
        return verify is None or verify(struck.target)

    def _settle(self, struck: _Struck, state: str, error: str = "") -> None:
        before = struck.status
        healed_ns = self._clock.now_ns() if state == "healed" else 0
        struck.status = OrderStatus(
            before.occurrence,
            state,
            before.evidence,
            before.fired_ns,
            before.fired_step,
            healed_ns,
            error,
        )
        if struck.status != before:
            self._report(struck.status)
