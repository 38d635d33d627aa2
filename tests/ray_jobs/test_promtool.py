"""The page of a busy node as Prometheus' own tool judges it."""

import shutil
import subprocess

import pytest
import torch

from tests.ray_jobs.test_worker_meter import NODE_SERIES_MAX, Replica
from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.core.clock import ManualClock
from tocsin.ray_jobs.chaos_file import ChaosFile
from tocsin.ray_jobs.exposition import page
from tocsin.ray_jobs.gateway_meter import GatewayMeter
from tocsin.ray_jobs.node_page import NodePage

pytestmark = pytest.mark.live

_PROMTOOL = shutil.which("promtool") or "promtool"


def check(text: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [_PROMTOOL, "check", "metrics", *options], input=text, capture_output=True, check=False
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Two replicas with failures, the gateway and a chaos run."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("node")
    model = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    gateway, chaos = GatewayMeter(folder, "m"), ChaosFile(folder)
    chaos.injected("kv.bitflip")
    gateway.ended("ok")
    for name in ("r1", "r2"):
        replica = Replica(folder, model, name)
        replica.spoil(2)
        replica.serve(3)
    node = NodePage(folder, ManualClock(10**18))
    node.ticks()
    return page(node.numbers())[0]


def test_promtool_has_nothing_to_say_about_the_page(text: bytes) -> None:
    """Names, types, units and help texts follow Prometheus' rules."""
    answer = check(text)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, b"", b"")


def test_promtool_counts_no_more_series_than_the_budget(text: bytes) -> None:
    """Its own table of cardinality; a metric without any series is not in it."""
    answer = check(text, "--extended")
    rows = [line.split() for line in answer.stdout.decode().splitlines()[1:] if line.strip()]
    counts = {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
    assert "tocsin_check_failures_total" in counts
    assert sum(counts.values()) <= NODE_SERIES_MAX


def test_promtool_would_speak_up(text: bytes) -> None:
    """The check can fail: a counter that does not end in _total is named."""
    broken = text.replace(b"tocsin_requests_total", b"tocsin_requests_made")
    assert b"tocsin_requests_made" in check(broken).stderr
