"""A head that offers no CPU and two workers, each with a folder of its own, as in Kubernetes."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray import serve
from ray.cluster_utils import Cluster as Nodes

from tests.ray_jobs.served import Serving, wait_until
from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.core.history import Outcome
from tocsin.ray_jobs.application import Served
from tocsin.ray_jobs.board import BOARD, NAMESPACE
from tocsin.ray_jobs.board_actor import ensure_board
from tocsin.ray_jobs.cluster import APPLICATION, Cluster, free_port
from tocsin.ray_jobs.fleet import GATEWAY, WORKER
from tocsin.ray_jobs.head import HEAD
from tocsin.ray_jobs.hub import HUB, Linger
from tocsin.ray_jobs.serve_deploy import deploy_file
from tocsin.ray_jobs.serve_file import parse_serve_config
from tocsin.ray_jobs.system import RaySystem

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TOKEN = "of a secret"
PODS = 3


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Each node has what a pod has of its own: a state folder, and environment of its own."""
    started = Nodes()
    for number in range(PODS):
        state = tmp_path_factory.mktemp(f"pod{number}")
        started.add_node(
            num_cpus=2 if number else 0,
            include_dashboard=False,
            object_store_memory=100 << 20,
            env_vars={
                "TOCSIN_STATE": str(state),
                "TOCSIN_METRICS_PORT": "0",
                "TOCSIN_TOKEN": TOKEN,
                "TOCSIN_HUB_LINGER_S": "4",
            },
        )
    yield started
    started.shutdown()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "127.0.0.1", "port": free_port()},
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": "tocsin.ray_jobs.serve_app:build",
                "args": {
                    "model": str(model),
                    "name": "tiny",
                    "slots": 4,
                    "pages": 64,
                    "max_length": 256,
                    "gateway_placement": "workers",
                },
                "deployments": [
                    {"name": WORKER, "num_replicas": 2, "max_replicas_per_node": 1},
                    {"name": GATEWAY, "num_replicas": 2},
                ],
            }
        ],
    }


@pytest.fixture(scope="module")
def serving(
    nodes: Nodes, config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", nodes.address)
        with Cluster(2):
            file = parse_serve_config(yaml.safe_dump(config))
            url = deploy_file(file)
            served = Served(url, ensure_board(), file.arguments.options())
            system = RaySystem(served, tmp_path_factory.mktemp("cache"))
            yield Serving(url, "tiny", system)
            system.close()


def nodes_by_role() -> tuple[str, set[str]]:
    """Ids of the head and of the workers."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    head = next(node["NodeID"] for node in alive if HEAD in node["Resources"])
    return head, {node["NodeID"] for node in alive} - {head}


async def test_the_board_is_on_the_head_and_the_rest_is_not(serving: Serving) -> None:
    """The head has no CPU to give, and needs none; a replica on either worker."""
    head, workers = nodes_by_role()
    board = ray.get_actor(BOARD, namespace=NAMESPACE)
    assert ray._private.state.actors(board._actor_id.hex())["Address"]["NodeID"] == head
    assert {one.node for one in serving.alive()} == workers
    answer = await serving.answer()
    assert answer.outcome is Outcome.OK
    status = serving.get("/health/checker_status").json()
    assert {one["node"] for one in status["replicas"].values()} == workers
    assert status["served"]["options"]["replicas"] == 2
    hubs = ray.get(board.hubs.remote())
    assert set(hubs) == {head, *workers}


def answered(serving: Serving) -> float:
    """Requests that ended well, counted by all gateways together."""
    text = serving.get("/metrics").text
    found = re.search(r'^tocsin_requests_total{.*outcome="ok".*} (\S+)', text, re.MULTILINE)
    assert found is not None
    return float(found[1])


async def test_two_gateways_say_the_same(serving: Serving) -> None:
    """Health, metrics, the live page and the switchboard are right whichever is asked."""
    await asyncio.gather(*(serving.answer(max_tokens=8) for _ in range(12)))
    gateways = serve.status().applications[APPLICATION].deployments[GATEWAY]
    assert gateways.replica_states == {"RUNNING": 2}
    counted = set()
    for _ in range(8):
        health = serving.get("/health").json()
        assert health["status"] == "ok"
        assert health["replicas"] == health["replicas_expected"] == 2
        state = serving.get("/live/state.json").json()
        assert len(state["replicas"]) == 2
        counted.add(answered(serving))
    assert len(counted) == 1
    assert counted.pop() >= 12
    order = {"profile": "guard", "ttl_s": 60.0, "reason": "two gateways"}
    path = "/health/checker_status"
    assert serving.post(path, order, authorization=f"Bearer {TOKEN}").status_code == 200
    seen = []
    wait_until(
        lambda: (
            seen.append(serving.get(path).json()["orders"])  # type: ignore[func-returns-value]
            or (len(seen) >= 8 and all(orders for orders in seen[-8:]))
        ),
        "the order, whichever gateway is asked",
    )
    assert {orders[0]["reason"] for orders in seen[-8:]} == {"two gateways"}


def test_the_command_deploys_again_and_leaves(
    serving: Serving, nodes: Nodes, config: dict[str, Any], tmp_path: Path
) -> None:
    """As a job does after an upgrade: the same file is applied in place, and it goes on after."""
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    pids = {one.pid for one in serving.alive()}
    words = [Path(sys.executable).parent / "tocsin", "serve", "--config", path, "--detach"]
    ended = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, "RAY_ADDRESS": nodes.address},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "it goes on without this command" in ended.stdout
    assert {one.pid for one in serving.alive()} == pids
    assert serving.get("/health").status_code == 200


def test_a_hub_leaves_only_when_nobody_has_counted_for_its_time() -> None:
    """A process that comes back begins the time anew; 0 is for ever."""
    linger = Linger(10.0)
    assert not linger.over(0.0, living=0)
    assert not linger.over(9.0, living=0)
    assert not linger.over(9.5, living=1)
    assert not linger.over(19.0, living=0)
    assert linger.over(19.5, living=0)
    assert not Linger(0.0).over(1e9, living=0)


def test_a_worker_without_replicas_is_left_to_the_autoscaler(
    serving: Serving, config: dict[str, Any]
) -> None:
    """Scaled down to one, the other node has no actor of ours; the head keeps its hub."""
    head, _ = nodes_by_role()
    ours = config["applications"][0]
    less = [{**one, "num_replicas": 1} for one in ours["deployments"]]
    deploy_file(
        parse_serve_config(
            yaml.safe_dump({**config, "applications": [{**ours, "deployments": less}]})
        )
    )
    wait_until(lambda: serving.get("/health").json()["replicas_expected"] == 1, "one expected")
    wait_until(lambda: len(nodes_with_hubs()) == 2, "one worker's hub gone", 60.0)
    assert head in nodes_with_hubs()


def nodes_with_hubs() -> set[str]:
    """Ids of the nodes whose hub lives."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return {one["name"].removeprefix(HUB) for one in named if one["name"].startswith(HUB)}
