"""The driver's own numbers, where its pod is scraped."""

import fcntl
from pathlib import Path

import httpx

from tocsin.ray_jobs.chaos_file import ChaosFile
from tocsin.ray_jobs.driver_page import driver_page, read_folder
from tocsin.ray_jobs.places import HUB_LOCK, metrics_folder, node_folder

SETTINGS = {"TOCSIN_METRICS_HOST": "127.0.0.1", "TOCSIN_METRICS_PORT": "0"}


def test_a_driver_serves_its_numbers_as_long_as_it_runs(tmp_path: Path) -> None:
    """Scraped while the experiment is on; closed with it."""
    folder = node_folder(tmp_path / "node")
    with driver_page(folder, SETTINGS) as address:
        meter = ChaosFile(folder)
        meter.running(True)
        meter.injected("kv.bitflip")
        text = httpx.get(f"http://{address}/metrics").text
        assert "tocsin_chaos_running 1" in text
        assert 'tocsin_chaos_faults_injected_total{fault="kv.bitflip"} 1' in text
        assert 'tocsin_chaos_faults_injected_total{fault="pod.delete"} 0' in text
        assert httpx.get(f"http://{address}/healthz").text == "ok\n"
        assert httpx.get(f"http://{address}/other").status_code == 404
        meter.close()
    try:
        httpx.get(f"http://{address}/healthz")
    except httpx.ConnectError:
        return
    raise AssertionError("the page is still served")


def test_on_one_machine_the_nodes_hub_serves_already(tmp_path: Path) -> None:
    """Without the variable nothing listens."""
    with driver_page(tmp_path, {"TOCSIN_METRICS_PORT": "0"}) as address:
        assert address == ""


def test_a_driver_on_a_node_that_serves_leaves_its_numbers_to_the_nodes_hub(
    tmp_path: Path,
) -> None:
    """As a RayJob in the head's pod: the hub there holds the port and must not tell them twice."""
    own, node = node_folder(tmp_path / "run"), node_folder(tmp_path / "node")
    assert read_folder("", own, node) == own
    with (metrics_folder(node) / HUB_LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_folder("", own, node) == node
        assert read_folder("127.0.0.1:9464", own, node) == own
