"""A run under way, drawn in the terminal: live where it is one, plain lines where it is a log."""

import atexit
import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tocsin.chaos.progress import Progress, ProgressState
from tocsin.chaos.progress_lines import (
    PlainView,
    clock_text,
    figures_words,
    phase_words,
    verdict_words,
)
from tocsin.chaos.report.wording import short
from tocsin.chaos.verdict import RunVerdict

_RECENT = 6
_BAR_CELLS = 28
_REFRESHES_PER_S = 5


def progress_view(stream: TextIO | None = None) -> Progress:
    """The view that fits the stream: live in a terminal, plain lines in a log.

    Args:
        stream: where to write; None: standard error, so that standard output stays a result.
    """
    target = sys.stderr if stream is None else stream
    console = Console(file=target, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console)
    return PlainView(target)


class Recent:
    """What was injected lately, newest last, and whether each still goes on."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._goes_on: dict[str, bool] = {}

    def update(self, active: tuple[str, ...]) -> None:
        """Take over what is active now; what was and is no more is over."""
        kept = {name: False for name in self._goes_on if name not in active}
        self._goes_on = {**kept, **dict.fromkeys(active, True)}
        for name in list(self._goes_on)[: max(0, len(self._goes_on) - _RECENT)]:
            del self._goes_on[name]

    def rows(self) -> list[tuple[str, bool]]:
        """Name and whether it goes on, newest first."""
        return list(reversed(self._goes_on.items()))


class LiveView:
    """A few lines that are redrawn in place; drawing happens on a thread of its own."""

    def __init__(self, console: Console) -> None:
        """Draw on a terminal; nothing appears before the first reading."""
        self._console, self._recent = console, Recent()
        self._live: Live | None = None

    def update(self, state: ProgressState) -> None:
        """Replace what is shown."""
        self._recent.update(state.active)
        drawing = panel(state, self._recent.rows())
        if self._live is None:
            self._live = Live(
                drawing, console=self._console, refresh_per_second=_REFRESHES_PER_S, transient=True
            )
            self._live.start()
            atexit.register(self._stop)  # an interrupted run gives the cursor back
        else:
            self._live.update(drawing)

    def note(self, text: str) -> None:
        """A line that stays, above what is redrawn."""
        self._console.print(Text(short(text, 400), style="dim"))

    def end(self, verdict: RunVerdict, run_dir: Path, lines: tuple[str, ...]) -> None:
        """Take the drawing away and leave the verdict."""
        self._stop()
        tone = "bold green" if verdict.exit_code == 0 else "bold red"
        self._console.print(Text(verdict_words(verdict), style=tone))
        for line in (figures_words(verdict), *lines):
            self._console.print(Text(short(line, 400)), soft_wrap=True)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            atexit.unregister(self._stop)


def panel(state: ProgressState, recent: list[tuple[str, bool]]) -> RenderableType:
    """What the terminal shows for one reading."""
    counted = [_bars(state), _detections(state)] if state.requests_total else []
    return Group(_heading(state), *counted, *_occurrences(recent))


def _heading(state: ProgressState) -> RenderableType:
    """What is being done, for how long, and how long it may still take."""
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(overflow="ellipsis", no_wrap=True)
    line.add_column(justify="right", no_wrap=True)
    left = f" · about {clock_text(state.left_s)} left" if state.left_s is not None else ""
    words = Text.assemble(("tocsin chaos ", "bold"), phase_words(state))
    line.add_row(words, Text(f"{clock_text(state.elapsed_s)}{left}", style="dim"))
    return line


def _bars(state: ProgressState) -> RenderableType:
    """Requests and faults, done of all, and how the requests ended."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(max_width=_BAR_CELLS)  # the bar gives way in a narrow terminal
    table.add_column(no_wrap=True)
    for name, done, total in (
        ("requests", state.requests_done, state.requests_total),
        ("faults", state.occurrences_done, state.occurrences_total),
    ):
        if total:
            bar = ProgressBar(
                total, min(done, total), complete_style="cyan", finished_style="green"
            )
            table.add_row(Text(name), bar, Text(f"{done}/{total}"))
    failed = Text(f"no answer {state.failed}", style="yellow" if state.failed else "dim")
    answers = Text.assemble(f"ok {state.ok} · ", failed, f" · {state.tokens:,} tokens")
    return Group(table, answers)


def _detections(state: ProgressState) -> RenderableType:
    """How many alarms there were, and the last of them."""
    last = f" · last: {short(state.last_detection, 90)}" if state.last_detection else ""
    return Text(f"detections {state.detections}{last}", no_wrap=True, overflow="ellipsis")


def _occurrences(recent: list[tuple[str, bool]]) -> list[RenderableType]:
    """What is being injected, and what was just before."""
    return [
        Text.assemble(
            ("  ▼ ", "red") if goes_on else ("  ✓ ", "green"),
            Text(short(name, 100), style="bold" if goes_on else "dim"),
            Text("  active" if goes_on else "  over", style="red" if goes_on else "dim"),
            no_wrap=True,
            overflow="ellipsis",
        )
        for name, goes_on in recent
    ]
