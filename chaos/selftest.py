"""The oracle's own test, in every run: known sins planted in a copy of the history must be found.

The copy holds a sample of the run's own clean answers, set close together in time, and one each of
what else a history may hold, as it should be: a fault with its alarm, reaction and alert, a
degraded answer, a cancelled and a shed request, readings of pages, health and processes. It must
be found clean; then each sin is committed alone and must be flagged by the properties that name
it, and by no other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.chaos.case import Case, Conclusion
from tocsin.chaos.clean_copy import clean_copy
from tocsin.chaos.contract import Property
from tocsin.chaos.sins import SINS
from tocsin.chaos.verdict import SinResult

CLEAN = ""
"""In place of the name of a sin: the copy without one."""


@dataclass(frozen=True, slots=True)
class Planted:
    """The clean copy, and the same with each sin committed in it alone.

    Attributes:
        base: None: there are too few clean answers to plant in.
        sinful: by sin; None: there was no place for it.
    """

    base: Case | None
    sinful: Mapping[str, Case | None]


def plant(case: Case) -> Planted:
    """Commit every known sin in a clean copy of the history."""
    base = clean_copy(case)
    if base is None:
        return Planted(None, {})
    return Planted(base, {name: _committed(name, base) for name in SINS})


def objections(planted: Planted, unit: Property) -> dict[str, int]:
    """How often a property objects to each sin, and under the empty name to the clean copy.

    One that breaks or cannot tell counts as having objected. A conditional one that is vacuous
    even here, where there is something for everybody, says nothing of this run (it needs the
    certificate of bits, say): it is not asked about sins.
    """
    if planted.base is None:
        return {}
    conclusion, count = _flags(planted.base, unit)
    if unit.conditional and conclusion is Conclusion.VACUOUS:
        return {CLEAN: 0}
    counts = {CLEAN: count}
    for name, sinful in planted.sinful.items():
        counts[name] = 0 if sinful is None else _flags(sinful, unit)[1]
    return counts


def self_test(case: Case, units: Mapping[str, Property]) -> tuple[SinResult, ...]:
    """Plant each sin that some of the properties must flag.

    Returns:
        One result a sin. Without enough clean answers to plant in, or when the copy is not found
        clean, nothing is caught: the run cannot show that its oracle can say no.
    """
    planted = plant(case)
    return sin_results(units, {name: objections(planted, unit) for name, unit in units.items()})


def sin_results(
    units: Mapping[str, Property], counts: Mapping[str, Mapping[str, int]]
) -> tuple[SinResult, ...]:
    """What the objections of each property come to, by sin.

    Args:
        counts: by property id, as `objections` returns it.
    """
    # A property without counts died in its own process: only the sins that name it suffer.
    base = {unit: found[CLEAN] for unit, found in counts.items() if CLEAN in found}
    dirty = tuple(sorted(unit for unit, count in base.items() if count))
    shown = bool(base) and not dirty
    results = []
    for name in SINS:
        expected = tuple(
            sorted(
                unit.id
                for unit in units.values()
                if name in unit.sins and (name in counts[unit.id] or unit.id not in base)
            )
        )
        if not expected:
            continue
        flagged = tuple(sorted(unit for unit, found in counts.items() if found.get(name)))
        flagged = flagged if shown else dirty
        caught = shown and flagged == expected
        results.append(SinResult(name, caught, SINS[name].meaning, expected, flagged))
    return tuple(results)


def _committed(name: str, base: Case) -> Case | None:
    try:
        return SINS[name].commit(base)
    except (StopIteration, IndexError, LookupError):
        return None  # this run's answers offer no place for it: it stays uncaught


def _flags(case: Case, unit: Property) -> tuple[Conclusion, int]:
    """What a property comes to, and its objections."""
    try:
        verdict = unit.judge(case)
    except Exception:  # noqa: BLE001 - counted: a property that breaks is not an oracle
        return Conclusion.UNKNOWN, 1
    count = len(verdict.violations) + (verdict.conclusion is Conclusion.UNKNOWN)
    return verdict.conclusion, count
