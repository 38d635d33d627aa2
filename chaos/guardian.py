"""A watchdog process that lets a frozen process go on, whatever became of those who froze it.

Run as a script, with the standard library alone: `guardian.py PID STARTED_TICKS SECONDS`. It
detaches from its parent (who may be killed, and whose children Ray may kill with it), says
`guarding` on its output, waits, and sends SIGCONT to the process if it still is the same one.
"""

import os
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


def main(pid: int, expected_ticks: int, seconds: float) -> None:
    """Detach, report for duty, wait, release."""
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
        if started_ticks(pid) != expected_ticks:
            return
    release(pid, expected_ticks)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
