"""The words of a run under way, and the view for logs: plain lines, one a second at most."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from tocsin.chaos.case import Conclusion
from tocsin.chaos.progress import ProgressState
from tocsin.chaos.report.wording import short
from tocsin.chaos.verdict import RunVerdict

PHASES = {
    "set-up": "starting the system",
    "golden": "asking a quiet engine for the right answers",
    "warm-up": "warming up: the first answers must be right",
    "faults": "injecting faults under load",
    "drain": "waiting for the last requests",
    "heal": "verifying that every fault is gone",
    "judge": "judging the recorded history",
    "report": "writing the report",
}
_LINE_EVERY_S = 1.0
_LETTERS_MOST = 400


class PlainView:
    """At most one line of progress a second, and none when nothing changed."""

    def __init__(self, stream: TextIO, now_s: Callable[[], float] = time.monotonic) -> None:
        """Write to a stream, with seconds from `now_s`."""
        self._stream, self._now_s = stream, now_s
        self._last_s, self._last_line = -math.inf, ""

    def update(self, state: ProgressState) -> None:
        """One line, if the last one is old enough and would not be repeated."""
        now_s, line = self._now_s(), plain_line(state)
        if now_s - self._last_s >= _LINE_EVERY_S and line != self._last_line:
            self._say(f"[{clock_text(state.elapsed_s)}] {line}")
            self._last_s, self._last_line = now_s, line

    def note(self, text: str) -> None:
        """A line of its own, at once."""
        self._say(short(text, _LETTERS_MOST))

    def end(self, verdict: RunVerdict, run_dir: Path, lines: tuple[str, ...]) -> None:
        """The verdict, its figures, and what the run has to say last."""
        for line in (verdict_words(verdict), figures_words(verdict), *lines):
            self._say(short(line, _LETTERS_MOST))

    def _say(self, line: str) -> None:
        """Write what the stream's encoding can hold: a log must not end a run."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()


def plain_line(state: ProgressState) -> str:
    """A reading as one line."""
    parts = [phase_words(state)]
    if state.requests_total:
        parts.append(f"requests {state.requests_done}/{state.requests_total}")
        parts.append(f"no answer {state.failed}")
    if state.occurrences_total:
        parts.append(f"faults {state.occurrences_done}/{state.occurrences_total}")
        parts.append(f"detections {state.detections}")
    if state.active:
        parts.append(f"now {', '.join(short(name, 80) for name in state.active[:4])}")
    if state.left_s is not None:
        parts.append(f"about {clock_text(state.left_s)} left")
    return " · ".join(parts)


def phase_words(state: ProgressState) -> str:
    """What is being done, in words."""
    return PHASES.get(state.phase, short(state.phase, 60))


def clock_text(seconds: float) -> str:
    """`0:07`, `2:05`, `1:02:05`."""
    whole = max(0, int(seconds))
    if whole >= 3600:
        return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"


def verdict_words(verdict: RunVerdict) -> str:
    """`PASS (exit code 0)`; a pass that does not exit with 0 does not call itself one."""
    word = str(verdict.conclusion).upper()
    if verdict.conclusion is Conclusion.PASS and verdict.exit_code:
        word = "NOT A PASS"
    return f"{word} (exit code {verdict.exit_code})"


def figures_words(verdict: RunVerdict) -> str:
    """The numbers of a verdict in one line."""
    planned = sum(fault.planned for fault in verdict.faults)
    fired = sum(fault.fired for fault in verdict.faults)
    detected = sum(fault.detected for fault in verdict.faults)
    healed = sum(fault.healed for fault in verdict.faults)
    return (
        f"{verdict.requests:,} requests, {verdict.tokens:,} tokens · silent corruptions "
        f"{verdict.silent_corruptions:,}, lost {verdict.lost:,}, duplicated "
        f"{verdict.duplicated:,} · faults planned {planned}, fired {fired}, detected {detected}, "
        f"healed {healed}"
    )
