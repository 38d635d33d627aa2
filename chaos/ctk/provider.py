"""What the activities of an exported experiment call, in the process of `chaos run`.

Our run goes by its own plan, on its logical clocks: an action does not decide when its fault is
injected, it waits for it and hands over the proof. An action that is taken out of the document
takes its occurrence out of the plan; all others stay where they were.
"""

from typing import Any

from tocsin.chaos.ctk.control import current
from tocsin.chaos.spec import ProbeSpec


def workload() -> dict[str, Any]:
    """Action: run the experiment to its verdict; meant for the background."""
    return current().conduct()


def inject(occurrence: str) -> dict[str, Any]:
    """Action: the evidence that an occurrence fired; fails when the run ends without any."""
    return current().fired(occurrence)


def check(property_id: str) -> dict[str, Any]:
    """Probe: what the run says of one property, once it has ended."""
    return current().property(property_id)


def verdict() -> str:
    """Probe: the conclusion of the run, `not run yet` before it has begun."""
    return current().verdict()


def right_answers() -> int:
    """Probe: how many of the warm-up requests are answered as golden."""
    return current().right_answers()


def steady(metric: str) -> float | None:
    """Probe: a steady-state metric, read from a few requests sent now."""
    return current().steady(metric)


def holds(op: str, limit: float, value: float | None = None) -> bool:
    """Tolerance: whether a reading meets its condition; no data never does."""
    probe = ProbeSpec.model_validate(
        {"name": "tolerance", "metric": "ok_ratio", "op": op, "value": limit}
    )
    return value is not None and probe.holds(value)


def heal() -> list[str]:
    """Rollback: stop what still runs and show that nothing is left armed."""
    return current().heal()
