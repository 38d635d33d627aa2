"""Whether B is worse than A: the one place where it is decided, as `meaning.MEANING` says it."""

from collections.abc import Sequence

from tocsin.chaos.compare.meaning import AVAILABILITY_TOLERANCE, FLOOR_MS
from tocsin.chaos.compare.model import Change, FaultReading, PairedRatio, PropertyChange, Side
from tocsin.chaos.report.wording import milliseconds
from tocsin.chaos.verdict import (
    EXIT_ABORTED,
    EXIT_FAIL,
    EXIT_INVALID,
    EXIT_PASS,
    EXIT_UNHEALED,
    EXIT_UNKNOWN,
)

_EXITS_BEST_FIRST = (
    EXIT_PASS,
    EXIT_UNKNOWN,
    EXIT_INVALID,
    EXIT_ABORTED,
    EXIT_FAIL,
    EXIT_UNHEALED,
)
_VERDICTS_BEST_FIRST = ("pass", "vacuous", "unknown", "fail")
_GUARDED = ("first token", "whole answer")


def property_change(a: str, b: str) -> Change:
    """What became of a property; an empty verdict says that it was not judged."""
    if not a or not b:
        return Change.ADDED if b else Change.REMOVED
    ranks = [_rank(_VERDICTS_BEST_FIRST, one) for one in (a, b)]
    if ranks[0] == ranks[1]:
        return Change.SAME
    return Change.WORSE if ranks[1] > ranks[0] else Change.BETTER


def fault_change(
    a: FaultReading | None, b: FaultReading | None, tolerance: float
) -> tuple[Change, tuple[str, ...]]:
    """What became of a fault, and in which words."""
    if a is None or b is None:
        return (Change.ADDED if b else Change.REMOVED), ()
    worse: list[str] = []
    better: list[str] = []
    for what, of_a, of_b in (
        ("fired", (a.fired, a.planned), (b.fired, b.planned)),
        ("detected", (a.detected, a.fired), (b.detected, b.fired)),
        ("healed", (a.healed, a.fired), (b.healed, b.fired)),
    ):
        if what != "fired" and not (a.fired and b.fired):
            continue  # of nothing there is no share
        change = _share(of_b) - _share(of_a)
        words = f"{what} {of_a[0]} of {of_a[1]}, then {of_b[0]} of {of_b[1]}"
        if change:
            (worse if change < 0 else better).append(words)
    for what, time_a, time_b in (
        ("time to detect (p99)", a.mttd_ms_p99, b.mttd_ms_p99),
        ("recovery", a.recover_ms_max, b.recover_ms_max),
    ):
        if time_a is None or time_b is None:
            continue
        words = f"{what} {milliseconds(time_a)}, then {milliseconds(time_b)}"
        if _grew(time_a, time_b, tolerance):
            worse.append(words)
        elif _grew(time_b, time_a, tolerance):
            better.append(words)
    if worse:
        return Change.WORSE, tuple(worse)
    return (Change.BETTER if better else Change.SAME), tuple(better)


def worsenings(
    a: Side,
    b: Side,
    properties: Sequence[PropertyChange],
    faults: Sequence[tuple[str, Change, tuple[str, ...]]],
    paired: Sequence[PairedRatio],
    tolerance: float,
) -> tuple[str, ...]:
    """Each way in which B is worse than A (`MEANING`), the gravest first."""
    found = []
    if _rank(_EXITS_BEST_FIRST, b.exit_code) > _rank(_EXITS_BEST_FIRST, a.exit_code):
        found.append(
            f"the run ended with exit code {b.exit_code} ({b.verdict}), "
            f"before with {a.exit_code} ({a.verdict})"
        )
    found += [
        f"{one.id}: {one.a}, then {one.b or 'not judged'}"
        for one in properties
        if one.a == "pass" and one.b != "pass"
    ]
    for name, before, after in (
        ("silent corruptions", a.silent_corruptions, b.silent_corruptions),
        ("lost requests", a.lost, b.lost),
        ("duplicated tokens", a.duplicated, b.duplicated),
        ("false alarms", a.false_alarms, b.false_alarms),
    ):
        if after > before:
            found.append(f"{name}: {before}, then {after}")
    if _less_available(a.availability, b.availability):
        found.append(f"availability: {_percent(a.availability)}, then {_percent(b.availability)}")
    for fault, change, reasons in faults:
        if change is Change.WORSE:
            found += [f"{fault}: {reason}" for reason in reasons]
    found += [
        f"{one.measure}: {one.ratio:.2f} times as long ({one.low:.2f} to {one.high:.2f}) over "
        f"{one.pairs} pairs"
        for one in paired
        if one.phase == "whole run" and _slower(one, tolerance)
    ]
    return tuple(found)


def _slower(one: PairedRatio, tolerance: float) -> bool:
    return one.measure in _GUARDED and one.low is not None and one.low > 1 + tolerance


def _grew(before_ms: float, after_ms: float, tolerance: float) -> bool:
    return after_ms > before_ms * (1 + tolerance) and after_ms - before_ms > FLOOR_MS


def _share(counts: tuple[int, int]) -> float:
    part, whole = counts
    return part / whole if whole else 0.0


def _less_available(a: float | None, b: float | None) -> bool:
    if a is None:
        return False
    return b is None or b < a - AVAILABILITY_TOLERANCE


def _percent(value: float | None) -> str:
    return "no data" if value is None else f"{100 * value:.1f} %"


def _rank(best_first: Sequence[object], value: object) -> int:
    """What is not known is the worst."""
    return best_first.index(value) if value in best_first else len(best_first)
