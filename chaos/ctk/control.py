"""The control of an exported experiment: makes the session, interrupts, and heals at the end.

Rollbacks are not played by default when an experiment was interrupted or a probe failed; this
control is asked in every case, so it heals too.
"""

from collections.abc import Mapping
from typing import Any

from tocsin.chaos.ctk.embedded import EXTENSION
from tocsin.chaos.ctk.session import Session
from tocsin.core.errors import SpecError, TocsinError

_sessions: list[Session] = []


def current() -> Session:
    """The session of this process.

    Raises:
        SpecError: the control was taken out of the document.
    """
    if not _sessions:
        raise SpecError(
            "controls: the control `tocsin` was not called, expected it in the experiment; "
            "put it back, or export the experiment again"
        )
    return _sessions[-1]


def configure_control(experiment: Mapping[str, Any], configuration: Mapping[str, Any]) -> None:
    """The Chaos Toolkit begins."""
    _sessions.append(Session(experiment, configuration or {}))


def before_hypothesis_control(context: Mapping[str, Any]) -> None:
    """The hypothesis is about to be looked at, so its probes must read anew."""
    current().sample_anew()


def before_activity_control(context: Mapping[str, Any]) -> None:
    """An activity is about to begin: not when safety has stopped the run."""
    provider = context.get("provider", {})
    if provider.get("func") in ("heal", "verdict"):
        return
    reason = current().aborted()
    if reason:
        from chaoslib.exceptions import InterruptExecution  # type: ignore[import-untyped]

        raise InterruptExecution(f"tocsin: the run was stopped: {reason}")


def after_experiment_control(context: Mapping[str, Any], state: dict[str, Any]) -> None:
    """The Chaos Toolkit is about to write its journal: heal, and add what our run came to."""
    session = current()
    try:
        healed = session.heal()
    except TocsinError as error:
        healed = [str(error)]
        state["status"] = "failed"
    state[EXTENSION] = {**session.outcome(), "heal": healed}


def cleanup_control() -> None:
    """The Chaos Toolkit has ended."""
    while _sessions:
        _sessions.pop().close()
