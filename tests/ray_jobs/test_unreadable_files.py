"""A node's files that nobody can read stop no hub; two clusters of a machine do not share one."""

import os
import random
from pathlib import Path

import pytest

from tocsin.core.clock import SystemClock
from tocsin.core.metrics import TOKENS
from tocsin.ray_jobs.metric_file import MetricFile, metric_key
from tocsin.ray_jobs.node_page import NodePage
from tocsin.ray_jobs.places import is_read, metrics_folder, node_folder
from tocsin.ray_jobs.ticks import TickRing

KEY = metric_key(TOKENS.name, "", ("m",))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"values": {}}', '{"merged": 1, "values": [], "lost": {}}']
)
def test_an_archive_of_another_version_is_set_aside_and_counting_goes_on(
    tmp_path: Path, text: str
) -> None:
    """The page holds what the living count; the old file is kept for a person."""
    archive = metrics_folder(tmp_path) / "archive.json"
    archive.write_text(text)
    file = MetricFile(tmp_path, "worker")
    file.inc(TOKENS, ("m",), 3)
    page = NodePage(tmp_path)
    assert page.numbers().values[KEY] == 3.0
    page.close()
    assert archive.with_name("archive.json.unreadable").read_text() == text


@pytest.mark.parametrize("header", [b'{"model": "m", "operators": []}', b"[1]", b"\xff\xfe", b"{"])
def test_a_ring_of_another_version_is_set_aside_and_others_are_followed(
    tmp_path: Path, header: bytes
) -> None:
    """One bad file took all failures of the node with it once: the thread that read it ended."""
    bad = metrics_folder(tmp_path) / "worker-1-1.ticks"
    bad.write_bytes(header.ljust(4096, b"\0"))
    fresh = bad.with_name("worker-3-3.ticks")
    fresh.write_bytes(bad.read_bytes())
    then = bad.stat().st_mtime - 60
    os.utime(bad, (then, then))
    (metrics_folder(tmp_path) / "worker-2-2.ticks").touch()  # one that has only begun
    ring = TickRing(tmp_path, "m", SystemClock())
    page = NodePage(tmp_path)
    page.ticks()
    ring.tick("rope")
    assert [tick.operator for tick in page.ticks()] == ["rope"]
    page.close()
    assert bad.with_name(f"{bad.name}.unreadable").exists()
    assert fresh.exists()  # its writer may just be at it


def test_a_folder_is_known_to_be_read_while_its_hub_lives(tmp_path: Path) -> None:
    """A second cluster of the machine then takes a folder of its own."""
    folder = node_folder(tmp_path / "node")
    assert not is_read(folder)
    page = NodePage(folder)
    page.numbers()
    assert is_read(folder)
    page.close()
    assert not is_read(folder)


def _damaged(whole: bytes, seed: int) -> bytes:
    """A file as a crash or a disk leaves it: cut, or with some bytes that are wrong."""
    chance = random.Random(seed)
    if seed % 3 == 0:
        return whole[: chance.randrange(1, 200)]
    torn = bytearray(whole)
    for _ in range(chance.randrange(1, 6)):
        torn[chance.randrange(4, 400)] = chance.randrange(256)
    return bytes(torn)


@pytest.mark.parametrize("living", [True, False])
def test_a_damaged_metric_file_takes_no_other_process_from_the_page(
    tmp_path: Path, living: bool
) -> None:
    """Its own last good numbers stay; of a dead process the file is set aside for a person."""
    good = MetricFile(tmp_path, "gateway")
    good.inc(TOKENS, ("m",), 5)
    made = MetricFile(tmp_path / "elsewhere", "worker")
    made.inc(TOKENS, ("m",), 1)
    whole = made.path.read_bytes()
    page = NodePage(tmp_path)
    for seed in range(200):
        name = made.path.name if living else f"worker-4194399-{seed}.db"
        bad = metrics_folder(tmp_path) / name
        bad.write_bytes(_damaged(whole, seed))
        assert KEY in page.numbers().values
        page.close()
        bad.unlink(missing_ok=True)
        page = NodePage(tmp_path)
    page.close()
    assert bool(list(metrics_folder(tmp_path).glob("*.unreadable*"))) is not living
