"""Stopping a process for a while, so that it goes on whatever becomes of who stopped it."""

import signal

from tocsin.chaos.contract import ProcessTarget
from tocsin.chaos.guard_duty import put_on_duty
from tocsin.chaos.process import send, state_of, wait_for
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence

_SEEN_WITHIN_S = 2.0
_LONGEST_S = 60.0


def stop(kind: str, target: ProcessTarget, duration_s: float) -> Evidence:
    """Send SIGSTOP, after a guardian stands ready to send SIGCONT.

    Args:
        kind: of the fault, for the message.

    Raises:
        SpecError: the duration is none, or the guardian does not come up: nothing is stopped.
    """
    if not 0 < duration_s <= _LONGEST_S:
        raise SpecError(
            f"{kind}: duration_s is {duration_s}, expected more than 0 and at most {_LONGEST_S:g}"
        )
    before = state_of(target)
    put_on_duty(kind, duration_s, [f"{target.pid}:{target.started_ticks}"])
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
