"""Plain integers that count what the checker did; `ray_jobs` exports them as metrics."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the process began; they only grow.

    Attributes:
        checks: evaluations by (operator, layer, result), result is "ok", "alarm" or "error".
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
        return plain
