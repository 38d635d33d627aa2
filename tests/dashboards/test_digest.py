"""The weekly digest: exact counts, honest trends, examples that can be pasted."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from tocsin.checker.counters import Counters
from tocsin.checker.journal import Journal, JournalSettings, records_in
from tocsin.core.clock import ManualClock
from tocsin.dashboards.digest import EXAMPLES_MAX, make_digest, markdown, page
from tocsin.ray_jobs.commands.digest import digest

DAY_S = 86400.0
NOW_S = 1_790_000_000.0


def _stamp(when_s: float) -> str:
    return datetime.fromtimestamp(when_s, tz=UTC).isoformat(timespec="milliseconds")


def _line(failure_id: str, when_s: float, code: str = "numerical.rms_range") -> dict[str, Any]:
    return {
        "row": "failure",
        "ts": _stamp(when_s),
        "failure_id": failure_id,
        "operator": "rms_norm",
        "code": code,
        "replica": "r0",
        "cause": "transient",
    }


def _row(count: int, since_s: float, until_s: float, written: int = 1) -> dict[str, Any]:
    return {
        "row": "aggregate",
        "ts": _stamp(until_s + 300),
        "operator": "rms_norm",
        "code": "numerical.rms_range",
        "count": count,
        "written": written,
        "suppressed": count - written,
        "since": _stamp(since_s),
        "until": _stamp(until_s),
    }


def _week(*writers: list[dict[str, Any]]) -> Any:
    return make_digest(writers, NOW_S - 7 * DAY_S, NOW_S)


def test_a_failure_in_a_row_and_on_a_line_counts_once() -> None:
    """The row counts every failure, the line shows one of them."""
    at_s = NOW_S - DAY_S
    (entry,) = _week([_row(40, at_s, at_s + 60, written=1), _line("A", at_s + 5)]).entries
    assert (entry.count, entry.suppressed) == (40, 39)
    assert entry.examples[0].command == "tocsin reproduce A --run"
    assert (entry.first_s, entry.last_s) == (at_s, at_s + 60)


def test_a_line_that_no_row_covers_counts() -> None:
    """Its writer was killed before the five minutes were over."""
    at_s = NOW_S - DAY_S
    (entry,) = _week([_row(40, at_s, at_s + 60), _line("B", at_s + 400)]).entries
    assert entry.count == 41


def test_a_row_of_one_writer_does_not_cover_a_line_of_another() -> None:
    """Two replicas fail at the same time; both count."""
    at_s = NOW_S - DAY_S
    (entry,) = _week([_row(40, at_s, at_s + 60)], [_line("B", at_s + 5)]).entries
    assert entry.count == 41


def test_the_trend_compares_with_the_week_before() -> None:
    """Twice as many is +100 %."""
    lines = [_line(f"N{n}", NOW_S - DAY_S + n) for n in range(4)]
    old = [_line(f"O{n}", NOW_S - 8 * DAY_S + n) for n in range(2)]
    (entry,) = _week([*lines, *old]).entries
    assert (entry.count, entry.before, entry.trend) == (4, 2, "+100%")


def test_what_was_not_there_before_is_new() -> None:
    """The journal reaches back, and held nothing of it."""
    old = _line("O", NOW_S - 8 * DAY_S, code="state.kv_page_sum")
    entries = _week([_line("N", NOW_S - DAY_S), old]).entries
    assert [(entry.check, entry.trend) for entry in entries] == [("numerical.rms_range", "new")]


def test_a_trend_without_a_week_before_is_unknown() -> None:
    """No data is never fine: a journal of three days says nothing about last week."""
    (entry,) = _week([_line("N", NOW_S - DAY_S)]).entries
    assert (entry.before, entry.trend) == (None, "unknown")


def test_what_nobody_was_told_stands_apart_from_what_paged() -> None:
    """Numerical warnings are the digest's own business; the rest is for the record."""
    made = _week([_line("N", NOW_S - DAY_S), _line("S", NOW_S - DAY_S, code="state.kv_page_sum")])
    assert [entry.check for entry in made.archived] == ["numerical.rms_range"]
    assert [entry.check for entry in made.told] == ["state.kv_page_sum"]


def test_the_examples_are_the_newest_few() -> None:
    """A week of failures still fits on a page."""
    (entry,) = _week([_line(f"F{n}", NOW_S - DAY_S + n) for n in range(9)]).entries
    assert [example.failure_id for example in entry.examples] == ["F8", "F7", "F6"][:EXAMPLES_MAX]


def test_a_quiet_week_says_so() -> None:
    """An empty page could also be a broken one."""
    text = markdown(_week([]))
    assert text.count("No failure was recorded") == 2
    assert "每周摘要" in text


def test_the_page_holds_no_markup_of_a_record() -> None:
    """Codes come from exceptions and files; they are text, not HTML."""
    record = _line("N", NOW_S - DAY_S, code="<script>alert(1)</script>")
    text = page(_week([record]))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "每周摘要" in text


def test_a_torn_record_is_passed_over() -> None:
    """A kill may leave anything."""
    assert _week([{"row": "aggregate"}, {}, {"failure_id": "x"}]).entries == ()


@pytest.mark.parametrize("wrong", ["x", None, [1], -1, {"a": 1}, float("inf")])
def test_a_record_whose_values_are_none_is_passed_over(wrong: object) -> None:
    """A line of another version, or of a damaged disk, costs itself and no other."""
    row = {
        "row": "aggregate",
        "operator": "linear",
        "code": "C",
        "since": "2026-11-29T19:00:00+00:00",
        "until": "2026-11-29T19:05:00+00:00",
        "count": 3,
        "suppressed": 0,
    }
    rows = [{**row, name: wrong} for name in ("since", "until")]
    rows += [{**row, name: wrong} for name in ("count", "suppressed") if wrong != -1]
    assert _week([*rows, {"failure_id": "x", "ts": wrong}]).entries == ()


def test_counts_are_exact_over_a_real_journal_in_a_storm(tmp_path: Path) -> None:
    """Two thousand failures, ten lines a second, one row in five minutes: two thousand counted."""
    clock = ManualClock()
    settings = JournalSettings()
    path = tmp_path / "journal" / "failures-r0.jsonl"
    journal = Journal(path, counters=Counters(), settings=settings, clock=clock)
    for number in range(2000):
        journal.write(
            {
                **_line(f"{number:026d}", clock.wall_s()),
                "layer": "numerical",
                "check": "numerical.rms_range",
                "findings": [],
            }
        )
        clock.sleep(0.001)
    journal.close()
    made = make_digest(
        [records_in(path, rows=True)], clock.wall_s() - DAY_S, clock.wall_s() + DAY_S
    )
    (entry,) = made.entries
    assert entry.count == 2000
    assert entry.suppressed > 1900


def test_the_command_writes_both_files_and_refuses_nonsense(tmp_path: Path) -> None:
    """For cron: a folder in, two files out, one line where it is wrong."""
    place = tmp_path / "node"
    (place / "journal").mkdir(parents=True)
    digest(since="7d", folder=[place], out=tmp_path / "out")
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".html", ".md"]
    with pytest.raises(typer.Exit):
        digest(since="a week", folder=[place])
    with pytest.raises(typer.Exit):
        digest(since="7d", folder=[tmp_path / "none"])
