"""Starts that fail and memory that is refused: notes hold for their time, and once each."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tocsin.chaos import notes
from tocsin.chaos.notes import START, memory_answer, memory_note
from tocsin.chaos.process import Striker, look
from tocsin.chaos.suffering import run_out_of_memory, start
from tocsin.core.clock import SystemClock
from tocsin.core.errors import EnvironmentFault
from tocsin.core.faulting import Order

MIB = 1 << 20


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps; killed at the end, whatever became of it."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A folder as a model's: a weight file of three MiB, and another file."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"w": torch.ones(3 * MIB // 4)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def node(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    return folder


def _order(fault: str, **params: object) -> Order:
    return Order(f"{fault}@0", fault, 1, 0, 30.0, dict(params))


def _striker(node: Path) -> Striker:
    return Striker(SystemClock(), lambda status: None, node)


def _load(node: Path, weights: Path) -> int:
    """A start as a worker makes it; how many numbers it loaded."""
    with start(node, weights) as found:
        assert (found / "config.json").read_text() == "{}"
        return int(load_file(found / "model.safetensors")["w"].numel())


def _gone(pid: int) -> bool:
    reading = look(pid)
    return reading is None or reading.dead


def test_without_a_note_a_start_takes_the_weights_where_they_are(node: Path, weights: Path) -> None:
    """Nothing is copied, nothing is left in the node's folder."""
    with start(node, weights) as found:
        assert found == weights
    assert list(node.iterdir()) == []


def test_a_cut_off_weight_file_fails_as_in_earnest_and_only_as_often_as_said(
    node: Path, weights: Path
) -> None:
    """The loader itself says what is wrong; the copy goes, and the model is untouched."""
    notes.leave(node, START, {"kind": "weights", "times": 2}, 60.0)
    for _ in range(2):
        with pytest.raises(SafetensorError):
            _load(node, weights)
        assert not list(node.glob("truncated-*"))
    assert _load(node, weights) == 3 * MIB // 4


def test_a_note_that_says_raise_says_why(node: Path, weights: Path) -> None:
    """Whoever reads the log must not look for a broken disk."""
    notes.leave(node, START, {"kind": "raise", "times": 1}, 60.0)
    with pytest.raises(EnvironmentFault, match=r"actor\.init_fail"), start(node, weights):
        pass


def test_a_note_whose_time_is_over_is_nothing(node: Path, weights: Path) -> None:
    """Whoever left it may be gone."""
    notes.leave(node, START, {"kind": "raise", "times": 5}, -1.0)
    with start(node, weights) as found:
        assert found == weights
    assert notes.read(node, START) is None


def test_two_starts_at_once_take_two_times(node: Path) -> None:
    """Under a lock: none is counted twice."""
    notes.leave(node, START, {"kind": "raise", "times": 20}, 60.0)
    taken: list[int] = []

    def take() -> None:
        while (note := notes.spend(node, START)) is not None:
            taken.append(note["times"])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 21))


def test_a_damaged_note_is_nothing(node: Path) -> None:
    """A full disk must not keep a replica from starting."""
    notes.leave(node, START, {"times": 1}, 60.0)
    next((node / "suffer").glob("start.json")).write_text('{"times": 1')
    assert notes.spend(node, START) is None


def test_init_fail_kills_and_is_healed_once_the_starts_have_failed(
    node: Path, weights: Path, child: subprocess.Popen[bytes]
) -> None:
    """A replacement alone is not enough while the next start would still fail."""
    striker = _striker(node)
    order = _order("actor.init_fail", times=1)
    status = striker.strike(order, child.pid, replacement=lambda: 0)
    assert status.state == "fired", status.error
    assert _gone(child.pid)
    striker.tick()
    assert striker.statuses()[0].state == "fired"
    with pytest.raises(SafetensorError):
        _load(node, weights)
    striker.tick()
    assert striker.statuses()[0].state == "healed"


def test_init_fail_taken_back_lets_the_next_start_go_well(
    node: Path, weights: Path, child: subprocess.Popen[bytes]
) -> None:
    """The note is gone with the order."""
    striker = _striker(node)
    striker.strike(_order("actor.init_fail", times=5), child.pid, replacement=lambda: 0)
    striker.disarm("actor.init_fail@0")
    assert striker.statuses()[0].state == "healed"
    with start(node, weights) as found:
        assert found == weights


def _serve(node: Path, process: "subprocess.Popen[bytes]", suffer: Callable[..., None]) -> None:
    """What a serving process does with its note, in a thread: suffer, then end."""
    for _ in range(1000):
        note = notes.read(node, memory_note(process.pid))
        if note is not None:
            try:
                suffer(node, process.pid, note)
            except RuntimeError:
                process.kill()
            return
        threading.Event().wait(0.01)


def test_memory_is_refused_by_a_limit_of_its_own_and_the_limit_is_lifted(
    node: Path, child: subprocess.Popen[bytes]
) -> None:
    """The allocator's own words are the evidence; afterwards the same allocation goes well."""
    serving = threading.Thread(target=_serve, args=(node, child, run_out_of_memory))
    serving.start()
    striker = _striker(node)
    status = striker.strike(_order("actor.oom"), child.pid, replacement=lambda: None)
    serving.join()
    assert status.state == "fired", status.error
    assert status.evidence is not None
    assert "refused at" in status.evidence.after
    assert "memory" in status.evidence.after
    assert torch.empty(1 << 30, dtype=torch.uint8).numel() == 1 << 30
    striker.tick()
    assert striker.statuses()[0].state == "fired"
    striker.disarm("actor.oom@0")
    assert notes.read(node, memory_answer(child.pid)) is None


def test_memory_that_is_given_is_no_evidence(node: Path, child: subprocess.Popen[bytes]) -> None:
    """A host that does not keep to limits: the fault did not fire, and the process lives."""

    def given(folder: Path, pid: int, note: object) -> None:
        notes.leave(folder, memory_answer(pid), {"said": "1 bytes were given"}, 60.0)

    serving = threading.Thread(target=_serve, args=(node, child, given))
    serving.start()
    status = _striker(node).strike(_order("actor.oom"), child.pid)
    serving.join()
    assert status.state == "disarmed"
    assert "nothing was refused" in status.error
    assert child.poll() is None


@pytest.mark.parametrize(
    ("kind", "params", "complaint"),
    [
        ("actor.init_fail", {"kind": "disk"}, "weights, raise"),
        ("actor.init_fail", {"times": 100}, "1 to 5"),
        ("actor.oom", {"bytes": 1}, "more bytes than headroom"),
        ("actor.oom", {"headroom_bytes": "much"}, "whole numbers"),
    ],
)
def test_a_wrong_order_is_refused_before_anything_happens(
    node: Path,
    child: subprocess.Popen[bytes],
    kind: str,
    params: dict[str, object],
    complaint: str,
) -> None:
    """No note, no signal."""
    status = _striker(node).strike(_order(kind, **params), child.pid)
    assert status.state == "disarmed"
    assert complaint in status.error
    assert child.poll() is None
    assert list(node.iterdir()) == []


@pytest.mark.parametrize("kind", ["actor.init_fail", "actor.oom"])
def test_a_process_that_reads_no_notes_is_not_struck(
    kind: str, child: subprocess.Popen[bytes]
) -> None:
    """Without a folder nobody would hear."""
    status = Striker(SystemClock(), lambda status: None).strike(_order(kind), child.pid)
    assert status.state == "disarmed"
    assert "no folder for notes" in status.error
    assert child.poll() is None


def test_a_note_is_a_file_that_a_person_can_read(node: Path) -> None:
    """JSON, for whoever wonders why a replica does not start."""
    notes.leave(node, START, {"kind": "raise", "times": 1}, 60.0)
    (file,) = (node / "suffer").glob("*.json")
    assert json.loads(file.read_text())["times"] == 1
