"""The view of a run under way: live in a terminal, a line a second in a log, never in the way."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.chaos.report.verdicts import passing, verdict_of
from tocsin.chaos.case import Conclusion
from tocsin.chaos.progress import ProgressState
from tocsin.chaos.progress_lines import PHASES, PlainView, clock_text, verdict_words
from tocsin.chaos.progress_view import LiveView, Recent, panel, progress_view

STATE = ProgressState(
    phase="faults",
    requests_done=132,
    requests_total=240,
    tokens=2640,
    ok=128,
    failed=2,
    occurrences_done=12,
    occurrences_total=28,
    active=("kv.bitflip on replica-1",),
    detections=14,
    last_detection="state.kv_page_sum saw kv-bitflip@1 after 31 ms",
    elapsed_s=31.2,
    left_s=29.0,
)


class Seconds:
    """Time that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def state(**changes: object) -> ProgressState:
    """The state above with changes."""
    values = {name: getattr(STATE, name) for name in STATE.__slots__}
    return ProgressState(**{**values, **changes})


def test_a_log_gets_at_most_one_line_a_second() -> None:
    """A hundred readings within two seconds make three lines."""
    stream, seconds = io.StringIO(), Seconds()
    view = PlainView(stream, seconds)
    for k in range(101):
        seconds.now = 100.0 + k * 0.02
        view.update(state(requests_done=k))
    lines = stream.getvalue().splitlines()
    assert [line.partition("requests ")[2].partition("/")[0] for line in lines] == [
        "0",
        "50",
        "100",
    ]


def test_a_log_does_not_repeat_a_line_that_says_nothing_new() -> None:
    """The same reading a second later is not written again."""
    stream, seconds = io.StringIO(), Seconds()
    view = PlainView(stream, seconds)
    for _ in range(5):
        view.update(STATE)
        seconds.now += 2
    assert len(stream.getvalue().splitlines()) == 1


def test_a_line_tells_what_is_injected_and_how_long_it_takes() -> None:
    """Phase, requests, faults, detections, what is active and the time left."""
    stream = io.StringIO()
    PlainView(stream, Seconds()).update(STATE)
    assert stream.getvalue() == (
        "[0:31] injecting faults under load · requests 132/240 · no answer 2 · faults 12/28 · "
        "detections 14 · now kv.bitflip on replica-1 · about 0:29 left\n"
    )


def test_notes_are_single_lines_without_control_characters() -> None:
    """Text from outside cannot move the cursor or forge a line of the log."""
    stream = io.StringIO()
    PlainView(stream).note("bad\x1b[2J\nPASS (exit code 0)")
    assert stream.getvalue() == "bad⟨U+001B⟩[2J PASS (exit code 0)\n"


def test_a_log_that_cannot_hold_a_character_still_gets_its_line() -> None:
    """An ASCII stream gets question marks instead of an exception."""
    raw = io.BytesIO()
    view = PlainView(io.TextIOWrapper(raw, encoding="ascii"))
    view.update(STATE)
    assert b"132/240" in raw.getvalue()


def test_the_end_tells_verdict_figures_and_what_the_run_adds(tmp_path: Path) -> None:
    """Nothing is said twice: sentence, report and command come from the run itself."""
    stream = io.StringIO()
    PlainView(stream).end(passing()[1], tmp_path, ("one more",))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "PASS (exit code 0)"
    assert "silent corruptions 0, lost 0, duplicated 0" in lines[1]
    assert lines[2:] == ["one more"]


def test_a_pass_with_another_exit_code_is_not_announced_as_one() -> None:
    """Unhealed faults exit with 5 although every property holds."""
    verdict = verdict_of(passing()[0], exit_code=5)
    assert verdict.conclusion is Conclusion.PASS
    assert verdict_words(verdict) == "NOT A PASS (exit code 5)"


@pytest.mark.parametrize("width", [120, 80, 40])
def test_the_live_view_fits_the_terminal(width: int) -> None:
    """No line is longer than the terminal, and the essentials are there even in a narrow one."""
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    recent = Recent()
    recent.update(("rope.table on replica-2",))
    recent.update(STATE.active)
    console.print(panel(STATE, recent.rows()))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for words in ("132/240", "12/28", "detections 14", "kv.bitflip on replica-1"):
        assert words in text


def test_what_is_over_stays_in_view_for_a_while() -> None:
    """An injection that ended is shown as over; the oldest make room for new ones."""
    recent = Recent()
    recent.update(("a", "b"))
    recent.update(("b",))
    assert recent.rows() == [("b", True), ("a", False)]
    for name in "cdefghij":
        recent.update((name,))
    assert [name for name, _ in recent.rows()] == list("jihgfe")
    assert [goes_on for _, goes_on in recent.rows()] == [True] + 5 * [False]


def test_the_live_view_ends_with_the_verdict(tmp_path: Path) -> None:
    """What was redrawn goes away; notes and verdict stay."""
    stream = io.StringIO()
    view = LiveView(Console(file=stream, force_terminal=True, width=100, color_system=None))
    view.update(STATE)
    view.update(state(phase="judge"))
    view.note("replica-1 is gone")
    view.end(passing()[1], tmp_path, ())
    text = stream.getvalue()
    assert "replica-1 is gone" in text
    assert "PASS (exit code 0)" in text
    assert "\x1b[?25h" in text.rpartition("PASS")[0]


def test_a_stream_that_is_no_terminal_gets_plain_lines() -> None:
    """A CI log never sees cursor movements."""
    view = progress_view(io.StringIO())
    assert isinstance(view, PlainView)


def test_every_phase_has_words() -> None:
    """The phases that the run announces are those that the view knows."""
    documented = ProgressState.__doc__ or ""
    assert [phase for phase in PHASES if f"`{phase}`" not in documented] == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (-3, "0:00"), (61.9, "1:01"), (3725, "1:02:05")]
)
def test_time_is_written_as_on_a_clock(seconds: float, text: str) -> None:
    """Minutes and seconds, hours where there are any."""
    assert clock_text(seconds) == text
