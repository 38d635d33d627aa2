"""Stopping a process for a while, so that it goes on whatever becomes of who stopped it."""

import signal
import subprocess
import sys
from pathlib import Path

from tocsin.chaos.contract import ProcessTarget
from tocsin.chaos.process import send, state_of, wait_for
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence

GUARDIAN = Path(__file__).parent / "guardian.py"
_SEEN_WITHIN_S = 2.0
_LONGEST_S = 60.0


def stop(kind: str, target: ProcessTarget, duration_s: float, guardian: Path) -> Evidence:
    """Send SIGSTOP, after a guardian stands ready to send SIGCONT.

    Args:
        kind: of the fault, for the message.

    Raises:
        SpecError: the duration is none, or the guardian does not come up: nothing is stopped.
    """
    before = state_of(target)
    _start_guardian(kind, target, duration_s, guardian)
    send(target, signal.SIGSTOP)
    after = wait_for(target, lambda state: state in ("T", "gone"), _SEEN_WITHIN_S)
    return Evidence(place=f"pid {target.pid}", before=_words(before), after=_words(after))


def let_go(target: ProcessTarget) -> None:
    """Let the process go on before its time."""
    send(target, signal.SIGCONT)
    wait_for(target, lambda state: state != "T", _SEEN_WITHIN_S)


def _words(state: str) -> str:
    """Running and sleeping change by themselves; only stopped and gone are told apart."""
    return {"T": "stopped (state T)", "gone": "gone"}.get(state, "runs")


def _start_guardian(kind: str, target: ProcessTarget, duration_s: float, guardian: Path) -> None:
    """Start the watchdog and wait until it says that it guards."""
    if not 0 < duration_s <= _LONGEST_S:
        raise SpecError(
            f"{kind}: duration_s is {duration_s}, expected more than 0 and at most {_LONGEST_S:g}"
        )
    arguments = [str(target.pid), str(target.started_ticks), str(duration_s)]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(guardian), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        said, complaint = process.communicate(timeout=20)
    if not said.startswith("guarding"):
        raise SpecError(f"{kind}: the guardian did not start: {complaint or said!r}")
