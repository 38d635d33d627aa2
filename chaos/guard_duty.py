"""Putting a guardian on duty before something is done to a process."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tocsin.core.errors import SpecError

GUARDIAN = Path(__file__).parent / "guardian.py"
STARTS_WITHIN_S = 20.0


def put_on_duty(kind: str, seconds: float, orders: Sequence[str]) -> None:
    """Start the watchdog and wait until it says that it guards.

    Args:
        kind: of the fault, for the message.
        seconds: after which it undoes what was done.
        orders: what it undoes, in the words of `guardian.py`.

    Raises:
        SpecError: it does not come up, or not in time; then nothing may be done.
    """
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(GUARDIAN), str(seconds), *orders],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            said, complaint = process.communicate(timeout=STARTS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, complaint = "", f"it said nothing for {STARTS_WITHIN_S:g} s"
    if not said.startswith("guarding"):
        raise SpecError(f"{kind}: the guardian did not start: {complaint or said!r}")
