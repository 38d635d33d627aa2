"""A watchdog process that undoes what was done to processes, whatever became of who did it.

Run as a script, with the standard library alone: `guardian.py SECONDS ORDER…`, where an order is
`PID:STARTED_TICKS` to let a stopped process go on, or `PID:STARTED_TICKS:BYTES` to give it its soft
limit on the size of files back. It detaches from its parent (who may be killed, and whose children
Ray may kill with it), says `guarding` on its output, waits, and reaches every process that still is
the same one.
"""

import os
import resource
import signal
import sys
import time


def started_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc(5), stat, field 22)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return int(stat.read().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def release(pid: int, expected_ticks: int) -> bool:
    """Let the process go on; False when it is gone, or another one has its pid."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if started_ticks(pid) != expected_ticks:
            return False
        signal.pidfd_send_signal(handle, signal.SIGCONT)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def give_back(pid: int, expected_ticks: int, soft: int) -> bool:
    """Set the soft limit again; False when the process is gone, or another one has its pid."""
    if started_ticks(pid) != expected_ticks:
        return False
    try:
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main(seconds: float, orders: list[list[int]]) -> None:
    """Detach, report for duty, wait, undo."""
    deadline_s = time.monotonic() + seconds
    if os.fork() > 0:
        os._exit(0)
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.write(f"guarding {os.getpid()}\n")
    sys.stdout.flush()
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    while (left_s := deadline_s - time.monotonic()) > 0:
        time.sleep(min(left_s, 0.2))
        if not any(started_ticks(pid) == ticks for pid, ticks, *_ in orders):
            return
    for pid, ticks, *soft in orders:
        if soft:
            give_back(pid, ticks, soft[0])
        else:
            release(pid, ticks)


if __name__ == "__main__":
    main(float(sys.argv[1]), [[int(part) for part in one.split(":")] for one in sys.argv[2:]])
