"""Failures of several processes on one line: exact over replicas, kills, restarts and repeats."""

import json
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tocsin.checker.window import HOLD_S
from tocsin.core.clock import ManualClock
from tocsin.core.metrics import FAILURES_WINDOW, INCIDENTS
from tocsin.ray_jobs.fleet_window import FleetWindow
from tocsin.ray_jobs.metric_file import MetricFile, metric_key
from tocsin.ray_jobs.node_page import NodePage
from tocsin.ray_jobs.places import journal_folder, metrics_folder
from tocsin.ray_jobs.ticks import RING_MAX, Tick, TickReader, TickRing

ROPE = ("m", "rope")
DIES = """
import os, signal, sys
from pathlib import Path
from tocsin.core.clock import SystemClock
from tocsin.ray_jobs.ticks import TickRing
ring = TickRing(Path(sys.argv[1]), "m", SystemClock())
for _ in range(int(sys.argv[2])):
    ring.tick("rope")
os.kill(os.getpid(), signal.SIGKILL)
"""


def tick(source: str, serial: int, wall_s: float) -> Tick:
    return Tick(source, *ROPE, serial, wall_s)


@given(
    st.lists(
        st.tuples(st.sampled_from(("a", "b")), st.integers(0, 300_000)), min_size=1, max_size=40
    ).map(lambda ticks: sorted(ticks, key=lambda one: one[1])),
    st.randoms(use_true_random=False),
)
def test_replicas_together_cross_exactly_when_one_line_would(
    told: list[tuple[str, int]], chance: object
) -> None:
    """Two replicas, ticks told twice after a hub's restart, late and out of order by a little."""
    window, serials, crossed = FleetWindow(), {"a": 0, "b": 0}, False
    times: list[int] = []
    sent: list[Tick] = []
    for source, time_ms in told:
        one = tick(source, serials[source], time_ms / 1000)
        serials[source] += 1
        sent.append(one)
        times.append(time_ms)
        repeated = sent if chance.random() < 0.1 else [one]  # type: ignore[attr-defined]
        crossings = window.take(repeated, time_ms / 1000)
        over = sum(time_ms - 60_000 < each <= time_ms for each in times) > 10
        assert not crossings or over
        crossed = crossed or bool(crossings)
    most = max(sum(at - 60_000 < each <= at for each in times) for at in times)
    assert crossed == (most > 10)


def test_a_crossing_that_lasts_is_told_again_after_a_while() -> None:
    """The order that was given for the first one runs out."""
    window, told = FleetWindow(), []
    for number in range(1000):
        if window.take([tick("a", number, number * 1.0)], number * 1.0):
            told.append(number)
    assert told == [10, 311, 612, 913]


def test_a_window_is_held_for_a_minute_and_ends(tmp_path: Path) -> None:
    """Two minutes after the last failure nothing is left of it."""
    window = FleetWindow()
    window.take([tick("a", number, 100.0 + number) for number in range(11)], 110.0)
    assert window.worst(110.0)[ROPE] == 11
    assert window.worst(100.0 + HOLD_S - 1)[ROPE] == 11
    assert window.worst(100.0 + HOLD_S + 1)[ROPE] < 11
    assert window.worst(110.0 + HOLD_S)[ROPE] == 0


def test_ticks_of_a_killed_process_are_counted(tmp_path: Path) -> None:
    """Five of the dead and six of the living are eleven."""
    for count in (5, 6):
        subprocess.run([sys.executable, "-c", DIES, str(tmp_path), str(count)], check=False)
    page = NodePage(tmp_path)
    assert len(page.ticks()) == 11
    assert page.ticks() == []
    key = metric_key(FAILURES_WINDOW.name, "", (*ROPE, "node"))
    assert page.numbers().values[key] == 11
    page.close()
    again = NodePage(tmp_path)
    assert len(again.ticks()) == 11  # a new hub tells all of it; the board knows the numbers
    assert again.numbers().values[key] == 11


def test_rings_of_the_dead_go_when_their_failures_are_long_ago(tmp_path: Path) -> None:
    """A node that lives for years keeps no file of each process that ever died on it."""
    subprocess.run([sys.executable, "-c", DIES, str(tmp_path), "3"], check=False)
    clock = ManualClock(2 * 10**18)  # long after
    page = NodePage(tmp_path, clock)
    assert len(page.ticks()) == 3
    page.ticks()
    assert list(metrics_folder(tmp_path).glob("*.ticks")) == []


def test_every_operator_stands_at_zero_before_its_first_failure(tmp_path: Path) -> None:
    """A rule on a series that is not there is silent; on 0 it is silent for a reason."""
    TickRing(tmp_path, "m", ManualClock())
    page = NodePage(tmp_path, ManualClock())
    page.ticks()
    page.set_fleet([("m", "rope", 4)])
    values = page.numbers().values
    assert values[metric_key(FAILURES_WINDOW.name, "", ("m", "linear", "node"))] == 0
    assert values[metric_key(FAILURES_WINDOW.name, "", ("m", "linear", "fleet"))] == 0
    assert values[metric_key(FAILURES_WINDOW.name, "", ("m", "rope", "fleet"))] == 4


def test_a_storm_overwrites_only_its_own_operator(tmp_path: Path) -> None:
    """The ring of another one keeps its eleven."""
    ring = TickRing(tmp_path, "m", ManualClock())
    for _ in range(11):
        ring.tick("rope")
    for _ in range(5 * RING_MAX):
        ring.tick("linear")
    found = list(TickReader(ring.path).news())
    assert sum(one.operator == "rope" for one in found) == 11
    assert sum(one.operator == "linear" for one in found) == RING_MAX
    assert found[-1].serial != found[0].serial


def test_the_newest_failure_is_the_exemplar_of_its_counter(tmp_path: Path) -> None:
    """From the tail of the journal, also when lines are added and a line is half written."""
    file = MetricFile(tmp_path, "worker")
    file.inc(INCIDENTS, (*ROPE, "P0"))
    page = NodePage(tmp_path)
    key = metric_key(INCIDENTS.name, "", (*ROPE, "P0"))
    path = journal_folder(tmp_path) / "failures-r.jsonl"

    def line(failure_id: str) -> str:
        record = {
            "ts": "2026-11-29T18:00:00.000+00:00",
            "model": "m",
            "operator": "rope",
            "priority": "P0",
            "failure_id": failure_id,
            "trace_id": "f" * 32,
            "findings": [],
        }
        return json.dumps(record) + "\n"

    path.write_text(line("one"))
    assert page.numbers().exemplars[key].labels["failure_id"] == "one"
    with path.open("a") as journal:
        journal.write(line("two") + line("three")[:20])
    assert page.numbers().exemplars[key].labels == {"failure_id": "two", "trace_id": "f" * 32}
    with path.open("a") as journal:
        journal.write(line("three")[20:])
    assert page.numbers().exemplars[key].labels["failure_id"] == "three"
