"""Failures and injected faults as the live page lists them, from the board's events."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tocsin.chaos.attribution import check_ids
from tocsin.chaos.contract import faults
from tocsin.core.history import NOTICED_BY, EventKind
from tocsin.dashboards.live.figures import SPAN_S
from tocsin.dashboards.live.state import FailureRow, FaultRow
from tocsin.ray_jobs.live.reading import Reading

FAILURES_MAX = 100
FINDINGS_MAX = 2_000
FAULTS_MAX = 64
_SKEW_S = 0.05
_LATE_S = 5.0
"""An alarm this long after the healing may still be the fault's."""


class Failures:
    """The latest failures, and their findings as long as the grid needs them."""

    def __init__(self) -> None:
        """None yet."""
        self.total = 0
        self.rows: deque[FailureRow] = deque(maxlen=FAILURES_MAX)
        self.findings: deque[FailureRow] = deque(maxlen=FINDINGS_MAX)

    def take(self, reading: Reading) -> None:
        """News of one reading; what is older than the page shows is forgotten."""
        for event in reading.events:
            if event["kind"] != EventKind.CHECK_FAILED:
                continue
            self.total += 1
            row = _failure(event, wall_of(event, reading))
            self.rows.appendleft(row)
            for finding in event["data"].get("findings", ()):
                self.findings.append(
                    replace(
                        row,
                        operator=str(finding.get("operator") or row.operator),
                        layer=str(finding.get("layer") or row.layer),
                        check=str(finding.get("check", "")),
                        priority=str(finding.get("priority", row.priority)),
                    )
                )
        while self.findings and self.findings[0].wall_s < reading.wall_s - SPAN_S:
            self.findings.popleft()


class Faults:
    """What was injected, when it fired, who noticed and when it was gone."""

    def __init__(self) -> None:
        """Nothing was injected."""
        self._rows: dict[str, FaultRow] = {}

    @property
    def rows(self) -> tuple[FaultRow, ...]:
        """Newest first."""
        return tuple(sorted(self._rows.values(), key=lambda row: -row.injected_s))

    @property
    def running(self) -> bool:
        """Something is in place or about to be."""
        return any(row.state in ("armed", "fired") for row in self._rows.values())

    def take(self, reading: Reading) -> None:
        """News of one reading."""
        for occurrence, known in reading.kinds.items():
            if occurrence not in self._rows:
                self._rows[occurrence] = FaultRow(
                    occurrence, known["fault"], known["replica"], "armed", reading.wall_s
                )
        for occurrence, status in reading.statuses.items():
            self._follow(occurrence, status, reading)
        for event in reading.events:
            self._hear(event, reading)
        while len(self._rows) > FAULTS_MAX:
            oldest = min(self._rows.values(), key=lambda row: row.injected_s)
            del self._rows[oldest.occurrence]

    def _follow(self, occurrence: str, status: Mapping[str, Any], reading: Reading) -> None:
        row = self._rows.get(occurrence)
        if row is None:
            name = occurrence.partition("@")[0]
            row = FaultRow(occurrence, name, "", str(status["state"]), reading.wall_s)
        fired_s = _since(status.get("fired_ns"), reading)
        healed_s = _since(status.get("healed_ns"), reading)
        evidence = status.get("evidence") or {}
        self._rows[occurrence] = replace(
            row,
            state=str(status["state"]),
            fired_s=row.fired_s or fired_s,
            healed_s=row.healed_s or healed_s,
            injected_s=min(row.injected_s, fired_s) if fired_s else row.injected_s,
            place=row.place or str(evidence.get("place", "")),
        )

    def _hear(self, event: Mapping[str, Any], reading: Reading) -> None:
        data, kind = event["data"], event["kind"]
        subject = str(data.get("replica") or event["replica"])
        row = self._rows.get(str(data.get("occurrence", "")))
        if row is not None and subject and not row.replica:
            self._rows[row.occurrence] = replace(row, replica=subject)
        detectors = check_ids(data) if kind == EventKind.CHECK_FAILED else ()
        if kind in NOTICED_BY:
            detectors = (NOTICED_BY[EventKind(kind)],)
        if detectors:
            wall_s = wall_of(event, reading)
            for row in tuple(self._rows.values()):
                self._match(row, detectors, subject, wall_s)

    def _match(
        self, row: FaultRow, detectors: tuple[str, ...], subject: str, wall_s: float
    ) -> None:
        """The first alarm that may be this fault's: of its replica, in its time, meant for it."""
        if row.fired_s is None or (row.replica and row.replica != subject):
            return
        if wall_s < row.fired_s - _SKEW_S:
            return
        if row.healed_s is not None and wall_s > row.healed_s + _LATE_S:
            return
        if row.detected_s is not None and row.detected_s <= wall_s:
            return
        declared = faults().get(row.fault)
        meant = [one for one in detectors if declared is None or one in declared.expect]
        if meant:
            detected_s = max(wall_s, row.fired_s)
            self._rows[row.occurrence] = replace(row, detected_s=detected_s, detector=meant[0])


def wall_of(event: Mapping[str, Any], reading: Reading) -> float:
    """Unix time of an event; one of another machine's clock counts as new."""
    age_s = (reading.now_ns - event["t_ns"]) / 1e9
    return reading.wall_s - age_s if 0 <= age_s <= 86_400 else reading.wall_s


def _since(t_ns: Any, reading: Reading) -> float | None:
    return wall_of({"t_ns": t_ns}, reading) if t_ns else None


def _failure(event: Mapping[str, Any], wall_s: float) -> FailureRow:
    data = event["data"]
    findings = data.get("findings") or ()
    first = findings[0] if findings else {}
    return FailureRow(
        failure_id=str(data.get("failure_id", "")),
        wall_s=wall_s,
        operator=str(data.get("operator") or first.get("operator", "")),
        layer=str(data.get("layer") or first.get("layer", "")),
        check=str(data.get("check") or first.get("check", "")),
        priority=str(data.get("priority") or first.get("priority", "")),
        cause=str(data.get("cause", "")),
        action=str(data.get("action", "")),
        replica=str(event["replica"]),
        step=int(event["step"]),
        ratio=_ratio(first.get("ratio")),
        message=str(first.get("message") or data.get("error", ""))[:400],
        requests=len(data.get("request_ids") or ()),
    )


def _ratio(value: Any) -> str:
    """Residual over limit in short; NaN and infinities come as text."""
    if isinstance(value, int | float):
        return f"{value:.3g}"
    return str(value or "").replace("Infinity", "∞")
