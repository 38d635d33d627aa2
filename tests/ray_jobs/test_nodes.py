"""Three Ray nodes on loopback, one of them lost while it serves: the answers go on."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as Nodes

from tests.ray_jobs.served import Serving, wait_until
from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.core.history import EventKind, Outcome
from tocsin.core.terms import Profile
from tocsin.ray_jobs.application import deploy
from tocsin.ray_jobs.cluster import Cluster, free_port
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.system import RaySystem

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A head and two more, one CPU each: a lost node's replica has a place to go."""
    started = Nodes()
    for _ in range(3):
        started.add_node(num_cpus=1, include_dashboard=False, object_store_memory=128 << 20)
    yield started
    started.shutdown()


async def test_a_lost_node_loses_and_repeats_no_token(
    nodes: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster was there before us and is there afterwards; what we put on it is gone."""
    path = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    options = ServeOptions(
        path=str(path), model=str(path), profile=Profile.FULL, slots=4, pages=64, max_length=256
    )
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    with Cluster(options.replicas) as cluster:
        assert not cluster.started
        served = deploy(options, host="127.0.0.1", port=free_port())
        system = RaySystem(served, tmp_path_factory.mktemp("cache"))
        serving = Serving(served.url, options.served_name, system)
        wait_until(lambda: len(serving.alive()) == 2, "two replicas")
        assert len({replica.node for replica in serving.alive()}) == 2
        golden = await serving.answer()
        lost = await lose_a_node_while_it_serves(nodes, serving)
        assert lost.outcome is Outcome.OK
        assert lost.tokens == golden.tokens
        assert lost.terminals == 1
        wait_until(lambda: bool(serving.events(EventKind.REPLICA_DOWN)), "the alarm", 90.0)
        wait_until(lambda: len(serving.alive()) == 2, "a replacement", 90.0)
        assert (await serving.answer()).tokens == golden.tokens
        system.close()
    assert not ray.is_initialized()
    assert nodes.head_node.all_processes  # what was joined is still there


async def lose_a_node_while_it_serves(nodes: Any, serving: Serving) -> Any:
    """Ask until an answer is made on a worker node, then kill the whole node."""
    homes = {replica.replica: replica.node for replica in serving.alive()}
    own = ray.get_runtime_context().get_node_id()
    others = {node.node_id: node for node in nodes.worker_nodes if node.node_id != own}
    for _ in range(40):
        record, killed = None, False
        async for record in serving.stream():
            home = homes[record.attempts[0]]
            if len(record.chunks) == 5 and home in others and not killed:
                killed = True
                await asyncio.to_thread(nodes.remove_node, others[home], allow_graceful=False)
        if killed:
            assert record is not None
            assert len(record.attempts) >= 2
            return record
    raise AssertionError("no answer was made on a worker node")
