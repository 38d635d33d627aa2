"""A serving process stops running without dying."""

import signal
import subprocess
import sys
from pathlib import Path

from tocsin.chaos.contract import ProcessTarget, fault
from tocsin.chaos.process import send, state_of, wait_for
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_SEEN_WITHIN_S = 2.0
_GUARDIAN = Path(__file__).parents[2] / "guardian.py"


@fault(
    "actor.freeze",
    expect=("service.heartbeat",),
    priority=Priority.P1,
    source="ray-project/ray#61263, vllm-project/vllm#36451: health answers, generation hangs",
    scope=Scope.PROCESS,
    params={"duration_s": 4.0},
)
def freeze(target: ProcessTarget) -> Evidence:
    """Send SIGSTOP, after a guardian stands ready to send SIGCONT when `duration_s` is over."""
    before = state_of(target)
    _start_guardian(target)
    send(target, signal.SIGSTOP)
    after = wait_for(target, lambda state: state in ("T", "gone"), _SEEN_WITHIN_S)
    return Evidence(place=f"pid {target.pid}", before=_words(before), after=_words(after))


def _words(state: str) -> str:
    """Running and sleeping change by themselves; only stopped and gone are told apart."""
    return {"T": "stopped (state T)", "gone": "gone"}.get(state, "runs")


def _start_guardian(target: ProcessTarget) -> None:
    """Start the watchdog and wait until it says that it guards.

    Raises:
        SpecError: it does not come up; then nothing is frozen.
    """
    duration_s = float(target.params["duration_s"])
    if not 0 < duration_s <= 60:
        raise SpecError(
            f"actor.freeze: duration_s is {duration_s}, expected more than 0 and at most 60"
        )
    arguments = [str(target.pid), str(target.started_ticks), str(duration_s)]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(_GUARDIAN), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        said, complaint = process.communicate(timeout=20)
    if not said.startswith("guarding"):
        raise SpecError(f"actor.freeze: the guardian did not start: {complaint or said!r}")


@freeze.heal
def heal(target: ProcessTarget) -> None:
    """Let the process go on before its time."""
    send(target, signal.SIGCONT)
    wait_for(target, lambda state: state != "T", _SEEN_WITHIN_S)


@freeze.heal_verify
def is_healed(target: ProcessTarget) -> bool:
    """The process is not stopped."""
    return state_of(target) != "T"
