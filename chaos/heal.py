"""Taking back what a run left behind: replays the heal logs of a store, as often as one likes."""

import signal
from collections.abc import Callable
from pathlib import Path

from tocsin.chaos import wal
from tocsin.chaos.contract import ProcessTarget
from tocsin.chaos.process import look, send, wait_for
from tocsin.core.clock import Clock, SystemClock
from tocsin.core.faulting import OrderStatus, Scope
from tocsin.core.system import System

EXIT_HEALED, EXIT_UNHEALED = 0, 5
_ASK_AGAIN_S = 0.2
_ANSWER_WITHIN_S = 10.0
_RENEWED_LATER_S = 5.0
"""A lease may have been renewed after the last record that reached the disk, but not longer."""


def heal_all(
    store_dir: Path,
    system: System | None,
    *,
    clock: Clock | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Heal whatever the runs of a store may have left armed, and say what was found.

    Args:
        system: the system that the faults live in; None: it cannot be reached, then it is shown
            from the leases and from the processes themselves that nothing is armed any more.
        say: told one line for each finding.

    Returns:
        0 when nothing is armed any more, 5 when that could not be shown.
    """
    logs = sorted(store_dir.glob(f"*/*/{wal.NAME}"))
    return heal_logs(logs, system, clock=clock, say=say)


def heal_logs(
    logs: list[Path],
    system: System | None,
    *,
    clock: Clock | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """`heal_all` for some logs only."""
    time = clock or SystemClock()
    unhealed = found = 0
    for path in logs:
        reading = wal.read(path)
        faults = wal.open_faults(reading.records)
        if reading.damaged:
            say(f"{path}: {reading.damaged} lines are damaged (a crash or a full disk); skipped")
        if not faults:
            continue
        log = wal.WriteAheadLog(path)
        try:
            for fault in faults:
                found += 1
                healed, words = _heal(fault, system, time)
                unhealed += not healed
                say(f"{path.parent.name}: {fault.occurrence}: {words}")
                if healed:
                    _settle(log, fault, words, time)
        finally:
            log.close()
    if not found:
        say(f"heal: nothing is armed: {len(logs)} heal logs, every fault in them was healed")
    elif unhealed:
        say(
            f"heal: {unhealed} of {found} faults were not shown to be gone; "
            "restart the replicas that they name"
        )
    else:
        say(f"heal: no fault is left armed: {found} were open, all are gone")
    return EXIT_UNHEALED if unhealed else EXIT_HEALED


def _settle(log: wal.WriteAheadLog, fault: wal.OpenFault, words: str, clock: Clock) -> None:
    log.write(
        {
            "type": "settled",
            "occurrence": fault.occurrence,
            "state": "healed",
            "by": "heal",
            "how": words,
            "wall_s": clock.wall_s(),
        }
    )


def _heal(fault: wal.OpenFault, system: System | None, clock: Clock) -> tuple[bool, str]:
    """Whether the fault is gone, and how that is known."""
    if fault.intent.get("scope") == Scope.CLIENT:
        return True, "was a request; nothing of it stays"
    if system is not None:
        told = _through_system(fault, system, clock)
        if told is not None:
            return told
    return _by_lease(fault, clock)


def _through_system(fault: wal.OpenFault, system: System, clock: Clock) -> tuple[bool, str] | None:
    """Disarm through the system and wait for its word; None: it knows nothing of the fault."""
    system.disarm(fault.occurrence)
    deadline_ns = clock.now_ns() + int(_ANSWER_WITHIN_S * 1e9)
    status: OrderStatus | None = None
    while clock.now_ns() < deadline_ns:
        status = system.orders().get(fault.occurrence)
        if status is None:
            return None
        if status.state in ("healed", "expired", "disarmed"):
            return True, f"{status.state}, says its target"
        clock.sleep(_ASK_AGAIN_S)
    state = status.state if status else "silent"
    return False, f"its target says {state}: {status.error if status else ''}".rstrip(": ")


def _by_lease(fault: wal.OpenFault, clock: Clock) -> tuple[bool, str]:
    """Wait for the end of the lease, then look at the process itself."""
    ttl_s = float(fault.intent.get("ttl_s", 0.0))
    renewed_s = max(fault.alive_wall_s, float(fault.intent.get("wall_s", 0.0)))
    left_s = renewed_s + _RENEWED_LATER_S + ttl_s - clock.wall_s()
    if left_s > 0:
        clock.sleep(left_s)
    pid = int(fault.intent.get("pid", 0))
    reading = look(pid) if pid > 0 else None
    born = int(fault.intent.get("started_ticks", -1))
    if pid > 0 and (reading is None or reading.dead or born not in (-1, reading.started_ticks)):
        return True, f"its process {pid} is gone, and the fault with it"
    if reading is not None and reading.state == "T":
        target = ProcessTarget(pid, reading.started_ticks, {}, 0, clock)
        send(target, signal.SIGCONT)
        if wait_for(target, lambda state: state != "T", _ANSWER_WITHIN_S) == "T":
            return False, f"process {pid} stays stopped; let it go on with: kill -CONT {pid}"
        return True, f"its process {pid} was still stopped and was let go on"
    if fault.state == "unhealed":
        remedy = f"restart process {pid}" if pid > 0 else "start its cluster anew"
        return False, f"its target said that it could not heal; {remedy}"
    if ttl_s <= 0:
        return False, "had no lease; restart its replica"
    ago_s = clock.wall_s() - renewed_s - ttl_s
    return True, f"disarmed by its lease of {ttl_s:g} s, which ended {ago_s:.0f} s ago"
