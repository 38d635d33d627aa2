"""One property and one run: its verdict, and whether it objects to the sins planted in the run."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tocsin.chaos.case import Case, Conclusion, PropertyVerdict
from tocsin.chaos.contract import Property
from tocsin.chaos.selftest import objections, plant

PATIENCE_S = 120.0
"""How long a property may take over one history; the slowest takes seconds for a million."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What came of one property.

    Attributes:
        objections: by sin, as `selftest.objections` returns it; empty: it died before it could
            tell, or there was nothing to plant sins in.
    """

    verdict: PropertyVerdict
    objections: Mapping[str, int] = field(default_factory=dict)


def examine_all(
    case: Case, units: Mapping[str, Property], patience_s: float = PATIENCE_S
) -> dict[str, Examined]:
    """Examine each property in this process; for histories too small to be worth another.

    One that raises, exits or does not end is unknown for itself only. Nothing limits its memory,
    and nothing saves this process from a call of `os._exit`: see `judge_apart`.
    """
    planted = plant(case)

    def examine(unit: Property) -> Examined:
        tested = objections(planted, unit)
        return Examined(examine_one(case, unit), tested)

    return {name: _within(patience_s, unit, examine) for name, unit in units.items()}


def examine_one(case: Case, unit: Property) -> PropertyVerdict:
    """The verdict of one property, its advice added; unknown when it breaks."""
    try:
        verdict = unit.judge(case)
    except MemoryError:
        return unknown(unit.id, "the property ran out of memory")
    except Exception as error:  # noqa: BLE001 - a broken property must not cost the others
        return unknown(unit.id, f"the property broke: {type(error).__name__}: {error}")
    violations = tuple(replace(one, advice=one.advice or unit.advice) for one in verdict.violations)
    return replace(verdict, violations=violations)


def unknown(property_id: str, reason: str) -> PropertyVerdict:
    """The verdict of a property that could not be judged."""
    return PropertyVerdict(property_id, Conclusion.UNKNOWN, 0, reason=reason)


def _within(patience_s: float, unit: Property, examine: Callable[[Property], Examined]) -> Examined:
    """What it comes to, on a thread of its own that is left behind when it does not end."""
    found: list[Examined] = []
    broken: list[BaseException] = []

    def work() -> None:
        try:
            found.append(examine(unit))
        except BaseException as error:  # noqa: BLE001 - SystemExit too: it ends the thread alone
            broken.append(error)

    thread = threading.Thread(target=work, name=f"property {unit.id}", daemon=True)
    thread.start()
    thread.join(patience_s)
    if found:
        return found[0]
    if broken:
        why = f"the property broke: {type(broken[0]).__name__}: {broken[0]}"
    else:
        why = f"the property did not end in {patience_s:g} s"
    return Examined(unknown(unit.id, why))
