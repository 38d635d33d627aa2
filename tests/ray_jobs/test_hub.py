"""Hubs on a real Ray: found by Prometheus, alive again after a kill, taken down with the rest."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray.cluster_utils import Cluster as Nodes

from tests.ray_jobs.served import wait_until
from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.core.clock import SystemClock
from tocsin.core.metrics import FAILURES_WINDOW, TOKENS
from tocsin.core.terms import Profile
from tocsin.ray_jobs.application import Served, deploy
from tocsin.ray_jobs.board import NAMESPACE
from tocsin.ray_jobs.cluster import Cluster, free_port
from tocsin.ray_jobs.hub import HUB, TARGETS
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.places import metrics_folder
from tocsin.ray_jobs.ticks import TickRing

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tmp_path_factory.mktemp("head"), tmp_path_factory.mktemp("second")


@pytest.fixture(scope="module")
def served(places: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two nodes with a folder each, as on two machines; one replica on either."""
    path = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    options = ServeOptions(
        path=str(path), model=str(path), profile=Profile.FULL, slots=4, pages=64, max_length=256
    )
    nodes = Nodes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOCSIN_METRICS_PORT", "0")
        for folder in places:
            patch.setenv("TOCSIN_STATE", str(folder))
            nodes.add_node(num_cpus=1, include_dashboard=False, object_store_memory=128 << 20)
        patch.setenv("TOCSIN_STATE", str(places[0]))
        patch.setenv("RAY_ADDRESS", nodes.address)
        with Cluster(options.replicas):
            yield deploy(options, host="127.0.0.1", port=free_port())
            assert named_hubs()
        ray.init(address=nodes.address, namespace=NAMESPACE, logging_level="ERROR")
        wait_until(lambda: not named_hubs(), "no hub")
        ray.shutdown()
        nodes.shutdown()


def named_hubs() -> list[str]:
    return [name for name in ray.util.list_named_actors() if name.startswith(HUB)]


def targets(served: Served) -> list[str]:
    """What the service discovery of the first hub says."""
    hubs = ray.get(served.board.hubs.remote(), timeout=15.0)
    if not hubs:
        return []
    first = next(iter(hubs.values()))["address"]
    found = httpx.get(f"http://{first}/sd", timeout=10.0).json()
    return [address for one in found for address in one["targets"]]


def total(page: str, name: str, **labels: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def scrape(address: str) -> str:
    return httpx.get(f"http://{address}/metrics", timeout=10.0).text


def gateway_page(served: Served) -> str:
    return httpx.get(f"{served.url}/metrics", timeout=10.0).text


def ask(served: Served, tokens: int) -> None:
    body = {
        "model": served.options.served_name,
        "prompt": "Ring the bell",
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60.0)
    assert answer.status_code == 200, answer.text


def test_two_nodes_are_two_targets_and_the_gateway_is_their_sum(
    served: Served, places: tuple[Path, Path]
) -> None:
    """Over HTTP and in a file; a replica is on the page of its own node."""
    wait_until(lambda: len(targets(served)) == 2, "two targets")
    for _ in range(6):
        ask(served, 8)
    pages = [scrape(address) for address in targets(served)]
    ups = [total(page, "tocsin_replica_up") for page in pages]
    assert sum(ups) == 2
    assert total(gateway_page(served), "tocsin_replica_up") == 2

    def agree() -> bool:
        each = [total(scrape(address), TOKENS.name) for address in targets(served)]
        return total(gateway_page(served), TOKENS.name) == sum(each) >= 48

    wait_until(agree, "the gateway's sum")
    file = metrics_folder(places[0]) / TARGETS
    wait_until(file.exists, "the file for file_sd")
    assert sorted(one["targets"][0] for one in json.loads(file.read_text())) == sorted(
        targets(served)
    )


def test_a_hub_that_is_killed_comes_back_and_no_counter_falls(served: Served) -> None:
    """Its files were there all the time; Prometheus finds its new port."""
    wait_until(lambda: len(targets(served)) == 2, "two targets")
    before = total(gateway_page(served), TOKENS.name)
    old = set(targets(served))
    name = named_hubs()[0]
    pid = ray.get(ray.get_actor(name, namespace=NAMESPACE).pid.remote(), timeout=15.0)
    os.kill(pid, signal.SIGKILL)
    ask(served, 8)

    def back() -> bool:
        try:
            pages = [scrape(address) for address in targets(served)]
        except httpx.HTTPError:
            return False  # the old port is still in the list
        return sum(total(page, TOKENS.name) for page in pages) >= before + 8

    least = before
    until_s = time.monotonic() + 60.0
    while not back():
        now = total(gateway_page(served), TOKENS.name)
        assert now >= least
        least = now
        assert time.monotonic() < until_s
    assert set(targets(served)) != old


def test_eleven_failures_of_two_nodes_are_a_crossing_of_the_fleet_and_ten_are_not(
    served: Served, places: tuple[Path, Path]
) -> None:
    """Six on one and four on the other, then one more."""
    rings = [TickRing(folder, "m", SystemClock()) for folder in places]
    for ring, count in zip(rings, (6, 4), strict=True):
        for _ in range(count):
            ring.tick("swiglu")

    def fleet() -> float:
        labels = {"operator": "swiglu", "scope": "fleet"}
        return total(gateway_page(served), FAILURES_WINDOW.name, **labels)

    wait_until(lambda: fleet() == 10, "ten in the fleet's window")
    crossings: Any = served.board.crossings
    assert ("m", "swiglu") not in ray.get(crossings.remote(), timeout=15.0)
    rings[1].tick("swiglu")
    wait_until(lambda: ("m", "swiglu") in ray.get(crossings.remote()), "the crossing")
    wait_until(lambda: fleet() == 11, "eleven in the fleet's window")
    orders = ray.get(served.board.degradations.remote(), timeout=15.0)["orders"]
    assert [one["order"]["operator"] for one in orders] == ["swiglu"]
