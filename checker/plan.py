"""How much to check each operator: proposed from how often its checks alarm (`tocsin scan --plan`).

Above 5 % all four layers, below 0.1 % the numerical one alone, the guard profile in between. A
rate counts as low only when the evaluations can carry that: the upper end of its Wilson interval
must lie below the mark. No evaluation is no low rate.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tocsin.checker.counters import Rate, rates_of
from tocsin.checker.journal.files import records_in
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.switchboard import Level
from tocsin.core.errors import SpecError
from tocsin.core.terms import Operator, Profile

HIGH: Final = 0.05
"""Above this share of alarms all four layers are checked."""
LOW: Final = 0.001
"""Below this share the numerical layer is enough."""
_Z: Final = 1.959964
"""Of a two-sided 95 % interval."""

_SERIES: Final = re.compile(
    r"^tocsin_checks_total\{([^}]*)\}[ \t]+([0-9.eE+]+)(?:[ \t].*)?$", re.MULTILINE
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one operator should be checked with, and why.

    Attributes:
        low, high: ends of the 95 % interval of its rate of alarms.
        level: None where there is nothing to base one on.
    """

    operator: Operator
    rate: Rate
    low: float
    high: float
    level: Level | None
    why: str


def propose(rates: Mapping[str, Rate]) -> tuple[Proposal, ...]:
    """A level for every operator, in the order of a forward pass; those without data have none."""
    return tuple(_proposal(operator, rates.get(str(operator), Rate())) for operator in Operator)


def _proposal(operator: Operator, rate: Rate) -> Proposal:
    if not rate.evaluations:
        return Proposal(operator, rate, 0.0, 1.0, None, "no evaluation: sample it first")
    low, high = wilson(rate.alarms, rate.evaluations)
    if rate.share > HIGH:
        return Proposal(operator, rate, low, high, Level.ALL, f"alarms in more than {HIGH:.0%}")
    if high < LOW:
        return Proposal(operator, rate, low, high, Level.NUMERICAL, f"surely less than {LOW:.1%}")
    if rate.share < LOW:
        needed = f"at most {high:.2%} so far: more evaluations may show less than {LOW:.1%}"
        return Proposal(operator, rate, low, high, Level.GUARD, needed)
    return Proposal(operator, rate, low, high, Level.GUARD, f"between {LOW:.1%} and {HIGH:.0%}")


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, square = hits / trials, _Z * _Z
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    half /= 1 + square / trials
    low = middle - half if hits else 0.0  # not what a rounding leaves of it
    return max(0.0, low), min(1.0, middle + half)


def rates_in_metrics(text: str, where: str) -> dict[str, Rate]:
    """Rates from a scrape in the text format of Prometheus, all replicas and models together.

    Raises:
        SpecError: it holds no `tocsin_checks_total`.
    """
    checks: Counter[tuple[str, str, str]] = Counter()
    for labels_text, value in _SERIES.findall(text):
        labels = dict(_LABEL.findall(labels_text))
        operator, layer, result = (labels.get(n, "") for n in ("operator", "layer", "result"))
        checks[operator, layer, result] += int(float(value))
    return _with_data(checks, where, "tocsin_checks_total")


def rates_in_status(status: Mapping[str, Any], where: str) -> dict[str, Rate]:
    """Rates from the answer of `/health/checker_status`, all replicas together.

    Raises:
        SpecError: there are no counters in it.
    """
    checks: Counter[tuple[str, str, str]] = Counter()
    for counters in _counters(status):
        for name, count in counters.items():
            operator, layer, result = (*name.split("/"), "", "")[:3]
            checks[operator, layer, result] += int(count)
    return _with_data(checks, where, "counters of checks")


def _counters(value: Any) -> Iterable[Mapping[str, int]]:
    """Every `counters.checks` somewhere in a JSON value."""
    if isinstance(value, dict):
        counters = value.get("counters")
        if isinstance(counters, dict) and isinstance(counters.get("checks"), dict):
            yield counters["checks"]
            return
        for item in value.values():
            yield from _counters(item)
    elif isinstance(value, list):
        for item in value:
            yield from _counters(item)


def _with_data(
    checks: Mapping[tuple[str, str, str], int], where: str, what: str
) -> dict[str, Rate]:
    rates = rates_of(checks)
    if not rates:
        raise SpecError(
            f"scan: {where} holds no {what}, expected how often each check ran; take a scrape of "
            "/metrics or an answer of /health/checker_status while requests are served"
        )
    return rates


def failures_in_journal(place: Path) -> dict[str, int]:
    """Findings by operator in a journal: what a counter lost with its process is still there.

    A merged row stands for failures that have no line: one finding each, of the row's operator.
    """
    found: Counter[str] = Counter()
    for record in records_in(place, rows=True):
        suppressed = record.get("suppressed")
        if record.get("row") == "aggregate" and record.get("operator") and suppressed:
            found[str(record["operator"])] += int(suppressed)
        for finding in record.get("findings") or ():
            if isinstance(finding, dict) and finding.get("operator"):
                found[str(finding["operator"])] += 1
    return dict(found)


def joined(rates: Mapping[str, Rate], failures: Mapping[str, int]) -> dict[str, Rate]:
    """Rates with at least as many alarms as the journal has findings."""
    made = {}
    for operator, rate in rates.items():
        alarms = max(rate.alarms, failures.get(operator, 0))
        made[operator] = Rate(max(rate.evaluations, alarms), alarms)
    return made


def settings_for(proposals: Iterable[Proposal], sample: float) -> CheckerSettings:
    """Settings that follow the proposals; the sample goes on, so that the rates stay known."""
    return CheckerSettings(
        profile=Profile.GUARD,
        sample=sample,
        levels={one.operator: one.level for one in proposals if one.level is not None},
    )


def table_of(proposals: Iterable[Proposal], failures: Mapping[str, int] | None = None) -> str:
    """The proposals for a person: a line an operator, those with data first."""
    rows = [("operator", "evaluations", "alarms", "rate", "95 % interval", "level", "why")]
    for one in sorted(proposals, key=lambda one: one.level is None):
        known = one.rate.evaluations > 0
        rows.append(
            (
                str(one.operator),
                f"{one.rate.evaluations:,}",
                f"{one.rate.alarms:,}",
                f"{one.rate.share:.4%}" if known else "-",
                f"{one.low:.4%} – {one.high:.4%}" if known else "-",
                "-" if one.level is None else str(one.level),
                one.why,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if 0 < column < 5 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    unknown = sorted(set(failures or ()) - {str(operator) for operator in Operator})
    if unknown:
        lines.append(f"(the journal names operators that are not known: {', '.join(unknown)})")
    return "\n".join(lines)
