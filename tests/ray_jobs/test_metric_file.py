"""A process's numbers outlive it: written through, archived once, never lower than before."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tocsin.core.clock import ManualClock
from tocsin.core.metrics import (
    CHAOS_RUNNING,
    CHECKS,
    KV_USAGE,
    REPLICA_UP,
    REQUESTS,
    TIME_TO_FIRST_TOKEN,
    TOKENS,
)
from tocsin.ray_jobs import metric_file as module
from tocsin.ray_jobs.metric_file import SUM, MetricFile, metric_key, started_ticks
from tocsin.ray_jobs.node_files import LOST_S, STEPS_S, NodeFiles
from tocsin.ray_jobs.places import metrics_folder

TOKENS_KEY = metric_key(TOKENS.name, "", ("m",))
UP_KEY = metric_key(REPLICA_UP.name, "", ("m", "r"))

WRITER = """
import sys
from pathlib import Path
from tocsin.core.metrics import CHECKS, REPLICA_UP, TOKENS
from tocsin.ray_jobs.metric_file import MetricFile
file = MetricFile(Path(sys.argv[1]), "worker")
file.prepare(CHECKS, model=("m",), operator=("rope",), layer=("numerical",))
file.set(REPLICA_UP, ("m", sys.argv[2]), 1.0)
count = 0
while True:
    file.inc(TOKENS, ("m",))
    count += 1
    sys.stdout.write(f"{count}\\n")
    sys.stdout.flush()
"""


def start_writer(folder: Path, replica: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), replica], stdout=subprocess.PIPE, text=True
    )


def kill_after(writer: subprocess.Popen[str], lines: int) -> int:
    """Kill a writer in full swing; returns what it said it had counted."""
    with writer:
        assert writer.stdout is not None
        for _ in range(lines):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        rest = [line for line in writer.stdout.read().split("\n")[:-1] if line]
    return int(rest[-1]) if rest else lines


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_kills_lose_no_count(tmp_path: Path) -> None:
    """What a writer said it had counted is on the page, of the dead and of the living together."""
    files, said, before = NodeFiles(tmp_path, ManualClock()), 0, 0.0
    chance = random.Random(7)
    for round_ in range(50):
        said += kill_after(start_writer(tmp_path, f"r{round_}"), chance.randrange(1, 200))
        total = files.read().values[TOKENS_KEY]
        # One more may be in the file than its writer had time to say.
        assert said <= total <= said + round_ + 1
        assert total >= before
        before = total
    assert files.read().values[TOKENS_KEY] == before
    files.close()
    assert NodeFiles(tmp_path, ManualClock()).read().values[TOKENS_KEY] == before
    assert list(metrics_folder(tmp_path).glob("*.db")) == []


def dead_file(folder: Path, pid: int, *, tokens: int, closed: bool = False) -> Path:
    """A file as a process that is gone has left it."""
    file = MetricFile(folder, "worker", clock=ManualClock())
    file.inc(TOKENS, ("m",), tokens)
    file.set(REPLICA_UP, ("m", "r"), 1.0)
    file.set(KV_USAGE, ("m", "r"), 0.5)
    assert file.path is not None
    path = file.path.with_name(f"worker-{pid}-1.db")
    if closed:
        file.close()
    return file.path.rename(path)


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_dead_count_on_and_their_gauges_end(tmp_path: Path, dead_pid: int) -> None:
    """A gauge of the dead would stand still for ever; that it is down is said for a while."""
    clock = ManualClock(10**12)
    path = dead_file(tmp_path, dead_pid, tokens=7)
    files = NodeFiles(tmp_path, clock)
    values = files.read().values
    assert values[TOKENS_KEY] == 7
    assert values[UP_KEY] == 0
    assert metric_key(KV_USAGE.name, "", ("m", "r")) not in values
    assert not path.exists()
    clock.sleep(LOST_S + 1)
    assert UP_KEY not in files.read().values
    assert files.read().values[TOKENS_KEY] == 7


def test_a_replica_that_was_taken_down_is_not_a_lost_one(tmp_path: Path, dead_pid: int) -> None:
    """A deployment that shrinks must not raise an alarm."""
    dead_file(tmp_path, dead_pid, tokens=2, closed=True)
    values = NodeFiles(tmp_path, ManualClock()).read().values
    assert UP_KEY not in values
    assert values[TOKENS_KEY] == 2


def test_a_pid_that_was_given_again_does_not_keep_the_dead_alive(tmp_path: Path) -> None:
    """The file names the start of its process as well."""
    dead_file(tmp_path, os.getpid(), tokens=1)
    assert started_ticks(os.getpid()) != 1
    assert NodeFiles(tmp_path, ManualClock()).read().values[UP_KEY] == 0


def test_a_hub_that_dies_between_archive_and_deletion_counts_nothing_twice(
    tmp_path: Path, dead_pid: int
) -> None:
    """The archive says which files are in it."""
    path = dead_file(tmp_path, dead_pid, tokens=5)
    kept = path.read_bytes()
    first = NodeFiles(tmp_path, ManualClock())
    first.read()
    first.close()
    path.write_bytes(kept)  # as if it had not been deleted yet
    second = NodeFiles(tmp_path, ManualClock())
    assert second.read().values[TOKENS_KEY] == 5
    assert not path.exists()
    second.close()
    again = dead_file(tmp_path, dead_pid + 1, tokens=5)
    assert NodeFiles(tmp_path, ManualClock()).read().values[TOKENS_KEY] == 10
    assert not again.exists()


def test_a_disk_that_takes_no_archive_doubles_and_loses_nothing(
    tmp_path: Path, dead_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the dead stays until its counts are safe."""
    path = dead_file(tmp_path, dead_pid, tokens=5)
    files = NodeFiles(tmp_path, ManualClock())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert [files.read().values[TOKENS_KEY] for _ in range(3)] == [5, 5, 5]
        assert path.exists()
    assert files.read().values[TOKENS_KEY] == 5
    assert not path.exists()


def test_one_hub_of_a_machine_reads_and_the_next_takes_over(tmp_path: Path) -> None:
    """Two nodes simulated on one machine must not show every count twice."""
    file = MetricFile(tmp_path, "worker", clock=ManualClock())
    file.inc(TOKENS, ("m",), 3)
    first, second = (NodeFiles(tmp_path, ManualClock()) for _ in range(2))
    assert first.read().values[TOKENS_KEY] == 3
    assert second.read().values == {}
    first.close()
    assert second.read().values[TOKENS_KEY] == 3


def test_a_replica_that_does_not_step_is_not_up(tmp_path: Path) -> None:
    """Its process lives, and serves nobody."""
    clock = ManualClock(10**12)
    file = MetricFile(tmp_path, "worker", clock=clock)
    file.set(REPLICA_UP, ("m", "r"), 1.0)
    files = NodeFiles(tmp_path, clock)
    assert files.read().values[UP_KEY] == 1
    clock.sleep(STEPS_S + 1)
    assert files.read().values[UP_KEY] == 0


def test_a_label_set_stands_at_zero_before_its_first_count(tmp_path: Path) -> None:
    """A rate needs a first value; values that nobody knows are asked for."""
    file = MetricFile(tmp_path, "gateway", clock=ManualClock())
    file.prepare(REQUESTS, model=("m",))
    values = NodeFiles(tmp_path, ManualClock()).read().values
    assert values[metric_key(REQUESTS.name, "", ("m", "aborted"))] == 0
    with pytest.raises(ValueError, match=r"found no values of \['model', 'operator', 'layer'\]"):
        file.prepare(CHECKS)
    with pytest.raises(ValueError, match="found 1 label values"):
        file.inc(REQUESTS, ("m",))


def test_a_value_on_an_edge_is_within_the_bucket(tmp_path: Path) -> None:
    """`le` means less or equal; what is above all edges is in the last bucket."""
    file = MetricFile(tmp_path, "gateway", clock=ManualClock())
    for value in (2.0, 2.001, 1e9):
        file.observe(TIME_TO_FIRST_TOKEN, ("m",), value)
    values = NodeFiles(tmp_path, ManualClock()).read().values

    def part(name: str) -> float:
        return values[metric_key(TIME_TO_FIRST_TOKEN.name, name, ("m",))]

    assert (part("2.0"), part("5.0"), part("+Inf"), part("0.01")) == (1, 1, 1, 0)
    assert part(SUM) == pytest.approx(4.001 + 1e9)


def test_the_exemplar_of_a_time_reaches_the_page(tmp_path: Path) -> None:
    """Written on a flush, at most once a second."""
    clock = ManualClock(10**12)
    file = MetricFile(tmp_path, "gateway", clock=clock)
    file.observe(TIME_TO_FIRST_TOKEN, ("m",), 1.5, {"trace_id": "abc"})
    file.flush()
    files = NodeFiles(tmp_path, clock)
    (exemplar,) = files.read().exemplars.values()
    assert (dict(exemplar.labels), exemplar.value) == ({"trace_id": "abc"}, 1.5)


def test_a_file_that_outgrows_its_pages_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader maps it anew."""
    monkeypatch.setattr(module, "_FILE_BYTES", 4096)
    file = MetricFile(tmp_path, "worker", clock=ManualClock())
    files = NodeFiles(tmp_path, ManualClock())
    file.inc(TOKENS, ("m0",))
    files.read()
    for number in range(300):
        file.inc(TOKENS, (f"m{number}",))
    values = files.read().values
    assert values[metric_key(TOKENS.name, "", ("m0",))] == 2
    assert values[metric_key(TOKENS.name, "", ("m299",))] == 1


def test_without_disk_a_process_counts_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk costs numbers, never an answer."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    file = MetricFile(tmp_path, "worker")
    file.inc(TOKENS, ("m",))
    file.observe(TIME_TO_FIRST_TOKEN, ("m",), 1.0, {"trace_id": "a"})
    file.flush()
    file.close()
    assert file.path is None
    assert "free the disk" in caplog.text


def test_a_bound_series_writes_only_what_has_changed(tmp_path: Path) -> None:
    """A step that changes nothing writes nothing."""
    clock = ManualClock(10**12)
    file = MetricFile(tmp_path, "worker", clock=clock)
    running = file.bind(CHAOS_RUNNING)
    running.to(1.0)
    written = json.dumps(sorted(file._kept))
    clock.sleep(5)
    running.to(1.0)
    reader = NodeFiles(tmp_path, clock)
    reader.read()
    ((_, written_s),) = [one for one in next(iter(reader._readers.values())).values.values()]
    assert written_s == 1000.0
    assert json.dumps(sorted(file._kept)) == written
    running.inc()
    assert reader.read().values[metric_key(CHAOS_RUNNING.name, "", ())] == 2.0
