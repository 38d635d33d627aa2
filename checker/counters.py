"""Plain integers that count what the checker did; `ray_jobs` exports them as metrics."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the process began; they only grow.

    Attributes:
        checks: evaluations by (operator, layer, result), result is "ok", "alarm" or "error".
        sampled_checks: the same in steps that hold a request of the sample, without errors.
        failures: recorded failures by (operator, layer, check, priority), one a finding.
        causes: what the ladder concluded, by `Cause` value.
        check_errors: exceptions raised by a check itself, by check id.
        skipped: calls that could not be checked, by reason.
        steps: steps settled; reruns: further runs of a step by the ladder.
        unverified_tokens: tokens released with no verdict behind them.
        verified_tokens: tokens released after their verdict.
        journal_dropped: lines and snapshots that the disk did not take; journal_lost: finished
            files that went for the cap without a copy; snapshots_dropped: too much waited.
        nonfinite: values in the tensors of recorded failures, by (operator, "nan" or "inf").
        log_records: failure records by (operator, what the journal did with them).
        archive_failures: journal files that could not be archived; archive_lag_s: age of the
            oldest rotated one that waits for it, 0 when none does.
    """

    checks: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    sampled_checks: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    check_errors: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    nonfinite: Counter[tuple[str, str]] = field(default_factory=Counter)
    log_records: Counter[tuple[str, str]] = field(default_factory=Counter)
    archive_failures: int = 0
    archive_lag_s: float = 0.0
    steps: int = 0
    reruns: int = 0
    unverified_tokens: int = 0
    verified_tokens: int = 0
    pages_quarantined: int = 0
    weights_repaired: int = 0
    journal_dropped: int = 0
    journal_lost: int = 0
    snapshots_dropped: int = 0

    def exception_rates(self) -> Mapping[str, "Rate"]:
        """Alarms and evaluations of each operator that was looked at."""
        return rates_of(self.checks)

    def as_dict(self) -> Mapping[str, object]:
        """JSON-safe copy: keys of several words are joined with a slash."""
        plain: dict[str, object] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, Counter):
                plain[name] = {
                    "/".join(key) if isinstance(key, tuple) else key: count
                    for key, count in value.items()
                }
            else:
                plain[name] = value
        rates = self.exception_rates().items()
        plain["exception_rates"] = {operator: rate.share for operator, rate in rates}
        return plain


@dataclass(frozen=True, slots=True)
class Rate:
    """How often the checks of one operator alarmed."""

    evaluations: int = 0
    alarms: int = 0

    @property
    def share(self) -> float:
        """Alarms for each evaluation; 0 where nothing was evaluated."""
        return self.alarms / self.evaluations if self.evaluations else 0.0


def rates_of(checks: Mapping[tuple[str, str, str], int]) -> dict[str, Rate]:
    """Rates by operator.

    Args:
        checks: evaluations by (operator, layer, result); a check that raised evaluated nothing.
    """
    evaluations: Counter[str] = Counter()
    alarms: Counter[str] = Counter()
    for (operator, _, result), count in checks.items():
        if result in ("ok", "alarm"):
            evaluations[operator] += count
            alarms[operator] += count if result == "alarm" else 0
    return {
        operator: Rate(count, alarms[operator])
        for operator, count in sorted(evaluations.items())
        if count
    }
