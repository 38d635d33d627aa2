"""Who may speak: ten lines a second an operator, the first of each check always, all counted.

Every failure is counted in exactly one five-minute row of its (operator, code), whether its own
line is written or not; what was suppressed since is on the next line of the operator.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tocsin.core.draw import draw_unit

ROWS_MAX = 1024
"""Pairs of (operator, code) that are told apart within five minutes."""

OTHER = "other"
"""The code of all pairs beyond."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What becomes of one failure.

    Attributes:
        written: it has a line of its own.
        full: its calls are stored whole: it is the first of a check, or was drawn by its id.
        firsts: those of its (operator, check) that were not seen for five minutes.
        suppressed: failures of the operator since its last line that have none.
        not_before_s: when the line may go out; infinite for one that never does.
        crowded: the operator speaks as much as it may: the line should be short.
    """

    written: bool
    full: bool
    firsts: tuple[tuple[str, str], ...]
    suppressed: int
    not_before_s: float
    crowded: bool = False


@dataclass(slots=True)
class _Row:
    """The failures of one (operator, code) within five minutes."""

    since_s: float
    count: int = 0
    written: int = 0
    sampled_full: int = 0
    first_id: str = ""
    last_id: str = ""
    last_s: float = 0.0


@dataclass(slots=True)
class _Speaker:
    """One operator: when its last lines went (or go) out, and what was kept back since."""

    lines: deque[float]
    suppressed: int = 0
    rows: dict[str, _Row] = field(default_factory=dict)


class Limiter:
    """Decides for each failure; a pure function of the times that it is given.

    Args:
        lines_max: lines of one operator within any `span_s`.
        window_s: span of a row, and time after which a check counts as new.
        full_share: share of failures that are stored whole, chosen by their id: every replica
            would choose the same.
    """

    def __init__(
        self,
        *,
        lines_max: int = 10,
        span_s: float = 1.0,
        window_s: float = 300.0,
        full_share: float = 0.01,
    ) -> None:
        """Nothing has failed yet."""
        self._lines_max = lines_max
        self._span_s = span_s
        self._window_s = window_s
        self._full_share = full_share
        self._speakers: dict[str, _Speaker] = {}
        self._seen: dict[tuple[str, str], float] = {}
        self._pairs = 0
        self._due_s = math.inf
        self._closed: list[tuple[dict[str, Any], float]] = []

    def limit(self, *, lines_max: int, window_s: float, full_share: float) -> None:
        """Other limits from now on; rows and counts go on."""
        self._window_s, self._full_share = window_s, full_share
        self._due_s = -math.inf  # rows end by the new span: look at the next chance
        if lines_max != self._lines_max:
            self._lines_max = lines_max
            for speaker in self._speakers.values():
                speaker.lines = deque(speaker.lines, maxlen=lines_max)

    def admit(
        self,
        operator: str,
        code: str,
        failure_id: str,
        now_s: float,
        checks: tuple[tuple[str, str], ...] = (),
    ) -> Admission:
        """Count one failure and decide about its line.

        Args:
            operator, code: of the first finding; the row that it is counted in.
            checks: every (operator, check) that alarmed; empty: the pair above.
            now_s: never less than before.
        """
        self._close(now_s)
        speaker = self._speakers.get(operator)
        if speaker is None:
            speaker = self._speakers[operator] = _Speaker(deque(maxlen=self._lines_max))
        row = speaker.rows.get(code) or self._new_row(speaker, code, failure_id, now_s)
        row.count += 1
        row.last_id, row.last_s = failure_id, now_s
        seen, limit_s = self._seen, now_s - self._window_s
        firsts = tuple(
            pair for pair in checks or ((operator, code),) if seen.get(pair, -math.inf) <= limit_s
        )
        free_s = self._free_s(speaker, now_s)
        if not firsts and free_s > now_s:
            speaker.suppressed += 1
            return Admission(False, False, (), 0, math.inf)
        for pair in firsts:
            seen[pair] = now_s
        lines = speaker.lines
        crowded = len(lines) == self._lines_max and now_s - lines[0] < 2 * self._span_s
        lines.append(free_s)
        full = bool(firsts) or draw_unit(0, "full", failure_id) < self._full_share
        row.written += 1
        row.sampled_full += full
        suppressed, speaker.suppressed = speaker.suppressed, 0
        return Admission(True, full, firsts, suppressed, free_s, crowded)

    def closed(self, now_s: float, *, all_rows: bool = False) -> list[tuple[dict[str, Any], float]]:
        """Rows whose five minutes are over, each with the time at which its line may go out.

        Args:
            all_rows: also those that are still open: the journal is being closed.
        """
        self._close(now_s, all_rows=all_rows)
        done, self._closed = self._closed, []
        return done

    def _close(self, now_s: float, *, all_rows: bool = False) -> None:
        """Take the rows out whose time is over."""
        if now_s < self._due_s and not all_rows:
            return
        self._due_s = math.inf
        for operator, speaker in self._speakers.items():
            for code, row in list(speaker.rows.items()):
                if not all_rows and now_s - row.since_s < self._window_s:
                    self._due_s = min(self._due_s, row.since_s + self._window_s)
                    continue
                del speaker.rows[code]
                self._pairs -= 1
                free_s = self._free_s(speaker, now_s)
                speaker.lines.append(free_s)
                self._closed.append((_line(operator, code, row, self._window_s), free_s))

    def _free_s(self, speaker: _Speaker, now_s: float) -> float:
        """When the operator may have its next line."""
        lines = speaker.lines
        if len(lines) < self._lines_max:
            return now_s
        return max(now_s, lines[0] + self._span_s)

    def _new_row(self, speaker: _Speaker, code: str, failure_id: str, now_s: float) -> _Row:
        """A row begins; beyond the bound all share one."""
        if self._pairs >= ROWS_MAX:
            code = OTHER
            if code in speaker.rows:
                return speaker.rows[code]
        self._pairs += 1
        row = speaker.rows[code] = _Row(now_s, first_id=failure_id)
        self._due_s = min(self._due_s, now_s + self._window_s)
        return row


def _line(operator: str, code: str, row: _Row, window_s: float) -> dict[str, Any]:
    return {
        "mark": "[MERGED]",
        "row": "aggregate",
        "operator": operator,
        "code": code,
        "count": row.count,
        "written": row.written,
        "suppressed": row.count - row.written,
        "sampled_full": row.sampled_full,
        "since_s": row.since_s,
        "until_s": row.last_s,
        "window_s": window_s,
        "first_failure_id": row.first_id,
        "last_failure_id": row.last_id,
    }
