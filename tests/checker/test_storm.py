"""A storm of failures: few lines, every failure accounted for, little disk, little memory."""

import json
import math
import os
from bisect import bisect_left
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.checker.journal import Journal, JournalSettings, records_in
from tocsin.checker.journal.limiter import OTHER, ROWS_MAX, Limiter
from tocsin.core.clock import ManualClock
from tocsin.core.ids import new_ulid

OPERATORS = ("attention", "linear", "rope", "kv_read")
CODES = ("numerical.finite", "numerical.checksum", "state.kv_page_sum")

_failures = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 50, 400, 1000, 40_000, 299_999, 300_000]),  # ms since the last
        st.sampled_from(OPERATORS),
        st.sampled_from(CODES),
    ),
    max_size=120,
)


def record(operator: str, code: str, failure_id: str, wall_s: float) -> dict[str, Any]:
    """A record of the usual size."""
    statistics = {"elements": 4608, "nan": 1, "inf": 0, "min": -1.25, "max": 3.5, "mean": 0.01}
    fields = ("q", "k", "v", "mask", "output", "lse")
    finding = {"check": code, "operator": operator, "message": "m" * 180, "impact": "i" * 90}
    return {
        "ts": datetime.fromtimestamp(wall_s).astimezone().isoformat(timespec="milliseconds"),
        "row": "failure",
        "failure_id": failure_id,
        "operator": operator,
        "code": code,
        "check": code,
        "request_ids": ["r" * 26],
        "shapes": {name: [8, 9, 1, 64] for name in fields},
        "tensors": {name: {**statistics, "first": [0.125] * 8} for name in fields},
        "findings": [finding] * 12,
        "environment": {"slots": 8, "threads": 1, "build": "tocsin 0.1.0, torch 2.13.0"},
    }


def accounted(rows: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """Failures by (operator, code) as the merged rows tell them."""
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        found[row["operator"], row["code"]] += row["count"]
    return found


def most_within(times: list[float], span_s: float) -> int:
    """The largest number of times within any half-open span."""
    times = sorted(times)
    return max(
        (bisect_left(times, start + span_s - 1e-9) - index for index, start in enumerate(times)),
        default=0,
    )


def test_five_thousand_a_second_for_a_minute(tmp_path: Path) -> None:
    """Proves the goal: ≤ 10 lines a second, counts exact, ≤ 5 MB of disk, ≤ 20 MB of memory."""
    clock = ManualClock(ns=1_800_000_000_000_000_000)
    journal = Journal(tmp_path / "failures-r1.jsonl", clock=clock)
    journal.write(record("rope", "x", "warm", 1.8e9))
    before = _rss_bytes()
    template = record("attention", "numerical.finite", "", 1.8e9)
    told: Counter[tuple[str, str]] = Counter({("rope", "x"): 1})
    times: dict[str, list[float]] = {}
    for number in range(300_000):
        clock.ns += 200_000  # 5,000 a second
        operator, code = OPERATORS[number % 2], CODES[number % 3]
        told[operator, code] += 1
        failure_id = f"{number:026}"
        admission = journal.admit(operator, code, failure_id)
        if admission.written:
            times.setdefault(operator, []).append(clock.wall_s())
        journal.write(
            {
                **template,
                "failure_id": failure_id,
                "operator": operator,
                "code": code,
                "suppressed_since_last": admission.suppressed,
            },
            admission,
        )
    grown = _rss_bytes() - before
    journal.close()
    rows = [one for one in records_in(tmp_path, rows=True) if one["row"] == "aggregate"]
    written = list(records_in(tmp_path))
    assert accounted(rows) == told
    assert len(written) + sum(row["suppressed"] for row in rows) == 300_001
    suppressed_told = sum(one["suppressed_since_last"] for one in written)
    assert 300_001 - len(written) - suppressed_told <= 5_000  # only the last second is not told yet
    for operator in OPERATORS[:2]:
        assert most_within(times[operator], 1.0) <= 10
        assert len(times[operator]) >= 590  # and the limit is used
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 5_000_000
    assert grown <= 20 << 20
    counters = journal.counters.log_records
    assert sum(counters.values()) == 300_001
    full = sum(count for (_, kind), count in counters.items() if kind == "sampled_full")
    assert full >= 7  # the first of each pair, and one in a hundred of the lines


@settings(max_examples=200, deadline=None)
@given(failures=_failures)
def test_every_failure_is_in_exactly_one_row(failures: list[tuple[int, str, str]]) -> None:
    """Proves exact accounting for any order and spacing of failures."""
    limiter, now_s = Limiter(), 0.0
    told: Counter[tuple[str, str]] = Counter()
    lines = 0
    rows: list[dict[str, Any]] = []
    for number, (ms, operator, code) in enumerate(failures):
        now_s += ms / 1000
        told[operator, code] += 1
        lines += limiter.admit(operator, code, f"F{number}", now_s).written
        rows += [row for row, _ in limiter.closed(now_s)]
    rows += [row for row, _ in limiter.closed(now_s, all_rows=True)]
    assert accounted(rows) == told
    assert sum(row["written"] for row in rows) == lines
    assert all(row["until_s"] - row["since_s"] < 300 for row in rows)
    assert limiter.closed(now_s, all_rows=True) == []


@settings(max_examples=200, deadline=None)
@given(failures=_failures, lines_max=st.integers(1, 4))
def test_no_second_holds_more_lines_than_allowed(
    failures: list[tuple[int, str, str]], lines_max: int
) -> None:
    """Proves the rate for records and merged rows together, wherever the second begins."""
    limiter, now_s = Limiter(lines_max=lines_max), 0.0
    times: dict[str, list[float]] = {operator: [] for operator in OPERATORS}
    for number, (ms, operator, code) in enumerate(failures):
        now_s += ms / 1000
        admission = limiter.admit(operator, code, f"F{number}", now_s)
        if admission.written:
            assert now_s <= admission.not_before_s < math.inf
            times[operator].append(admission.not_before_s)
        for row, free_s in limiter.closed(now_s):
            times[row["operator"]].append(free_s)
    for one in times.values():
        assert most_within(one, 1.0) <= lines_max


@settings(max_examples=200, deadline=None)
@given(failures=_failures)
def test_the_first_of_each_check_is_always_full(failures: list[tuple[int, str, str]]) -> None:
    """Proves that no rate keeps the first of an (operator, check) in five minutes from its line."""
    limiter, now_s = Limiter(lines_max=1, full_share=0.0), 0.0
    last: dict[tuple[str, str], float] = {}
    for number, (ms, operator, code) in enumerate(failures):
        now_s += ms / 1000
        admission = limiter.admit(operator, code, f"F{number}", now_s)
        is_first = now_s - last.get((operator, code), -math.inf) >= 300
        assert admission.full == is_first
        if is_first:
            assert admission.written
            last[operator, code] = now_s


@settings(max_examples=40, deadline=None)
@given(failures=_failures, stop=st.integers(0, 120))
def test_a_killed_writer_has_told_all_but_its_last_second(
    failures: list[tuple[int, str, str]], stop: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Proves that without any end the lines account for what came before the last of each."""
    folder, clock = tmp_path_factory.mktemp("storm"), ManualClock()
    journal = Journal(
        folder / "failures.jsonl", clock=clock, settings=JournalSettings(lines_per_s_max=2)
    )
    told: Counter[str] = Counter()
    since: Counter[str] = Counter()
    owed: Counter[str] = Counter()
    for number, (ms, operator, code) in enumerate(failures[:stop]):
        clock.sleep(ms / 1000)
        told[operator] += 1
        admission = journal.admit(operator, code, f"F{number}")
        one = record(operator, code, f"F{number}", clock.wall_s())
        journal.write({**one, "suppressed_since_last": admission.suppressed}, admission)
        since[operator] = 0 if admission.written else since[operator] + 1
        owed[operator] += admission.written and admission.not_before_s > clock.now_ns() / 1e9
    found: Counter[str] = Counter()  # no close: as after a kill
    waiting = {one[2].get("failure_id") for one in journal._owed}
    for line in records_in(folder):
        found[line["operator"]] += 1 + line["suppressed_since_last"]
    for _, _, line in journal._owed:
        if line["row"] == "failure":
            found[line["operator"]] += 1 + line["suppressed_since_last"]
    assert not waiting or sum(owed.values())
    for operator, count in told.items():
        assert found[operator] + since[operator] == count


def test_one_in_a_hundred_is_full_and_the_same_on_every_replica() -> None:
    """Proves the share, and that the choice is the id's alone."""
    ids = [new_ulid(number, number.to_bytes(10, "big")) for number in range(20_000)]
    chosen = []
    for _ in range(2):
        limiter = Limiter(lines_max=1)
        limiter.admit("rope", "c", "first", 0.0)
        full = [
            one
            for number, one in enumerate(ids)
            if limiter.admit("rope", "c", one, 2.0 + number).full
        ]
        chosen.append(full)
    assert chosen[0] == chosen[1]
    firsts = 20_000 // 300 + 1
    assert 150 <= len(chosen[0]) - firsts <= 260


def test_a_line_that_had_to_wait_is_written_by_time(tmp_path: Path) -> None:
    """Proves that the first of a second check goes out, one second late and not before."""
    clock = ManualClock()
    journal = Journal(
        tmp_path / "f.jsonl", clock=clock, settings=JournalSettings(lines_per_s_max=1)
    )
    for code in CODES:
        journal.write({"failure_id": code, "operator": "rope", "code": code, "row": "failure"})
    assert [one["failure_id"] for one in records_in(tmp_path)] == [CODES[0]]
    clock.sleep(1.0)
    journal._tick()
    assert [one["failure_id"] for one in records_in(tmp_path)] == [CODES[1], CODES[0]]
    clock.sleep(1.0)
    journal._tick()
    assert len(list(records_in(tmp_path))) == 3


def test_merged_rows_come_by_themselves(tmp_path: Path) -> None:
    """Proves that five quiet minutes end a row, with its times and first and last failure."""
    clock = ManualClock(ns=1_800_000_000_000_000_000)
    journal = Journal(tmp_path / "f.jsonl", clock=clock)
    for number in range(30):
        journal.write({"failure_id": f"F{number}", "operator": "rope", "code": "c"})
        clock.sleep(0.01)
    clock.sleep(300)
    journal._tick()
    row = next(one for one in records_in(tmp_path, rows=True) if one.get("row") == "aggregate")
    assert (row["count"], row["written"], row["suppressed"]) == (30, 10, 20)
    assert (row["first_failure_id"], row["last_failure_id"]) == ("F0", "F29")
    assert row["since"] == "2027-01-15T08:00:00.000+00:00"
    assert row["until"] == "2027-01-15T08:00:00.290+00:00"
    json.dumps(row, allow_nan=False)


def test_codes_without_end_share_a_row() -> None:
    """Proves that memory is bounded whatever exceptions are called, and nothing is lost."""
    limiter = Limiter()
    for number in range(ROWS_MAX + 50):
        limiter.admit("rope", f"Error{number}", "F", 1.0)
    rows = [row for row, _ in limiter.closed(1.0, all_rows=True)]
    assert sum(row["count"] for row in rows) == ROWS_MAX + 50
    assert next(row["count"] for row in rows if row["code"] == OTHER) == 50


def test_a_line_in_a_storm_is_short_and_a_calm_one_whole(tmp_path: Path) -> None:
    """Proves where the bytes go: all findings once, then only what tells the failure apart."""
    clock = ManualClock()
    journal = Journal(tmp_path / "f.jsonl", clock=clock, settings=JournalSettings(full_share=0))
    for number in range(30):
        clock.sleep(0.05)
        journal.write(record("rope", "c", f"F{number}", clock.wall_s()))
    lines = list(records_in(tmp_path))
    assert len(lines[-1]["findings"]) == 8
    assert lines[-1]["findings_total"] == 12
    assert "tensors" in lines[-1]
    stormy = next(one for one in lines if one["suppressed_since_last"])
    assert "tensors" not in stormy
    assert len(stormy["findings"]) == 1
    found = journal.find("F3")
    assert found is not None
    assert len(found["findings"]) == 12  # the ring has the whole


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
