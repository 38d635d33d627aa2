"""The Serve application: board, workers and gateway, deployed and taken to readiness."""

import time
from dataclasses import dataclass
from typing import Any, cast

import httpx
import ray
from ray import serve
from ray.serve import Deployment
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.board import BOARD, NAMESPACE, Board
from tocsin.ray_jobs.cluster import check_port, forget_board
from tocsin.ray_jobs.gateway import Gateway
from tocsin.ray_jobs.hub import ensure_hub, forget_hubs
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.pager import paging_of_environment
from tocsin.ray_jobs.worker import Worker

APPLICATION = "tocsin"
_READY_S = 180.0
_HEAD = "node:__internal_head__"


@dataclass(frozen=True, slots=True)
class Served:
    """A running application."""

    url: str
    board: Any
    options: ServeOptions


def deploy(options: ServeOptions, *, host: str, port: int, token: str = "") -> Served:
    """Start everything and wait until a real token came out of it.

    Raises:
        EnvironmentFault: the port is taken, or the application does not become ready.
    """
    check_port(host, port)
    forget_board()
    forget_hubs()
    node = ray.get_runtime_context().get_node_id()
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    board: Any = (
        ray.remote(Board)
        .options(
            name=BOARD,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_concurrency=1000,
            scheduling_strategy=here,
        )
        .remote()
    )
    board.watch.remote(node, paging_of_environment(f"http://{host}:{port}"))
    ensure_hub(node)
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": host, "port": port, "request_timeout_s": None},
        logging_config={"log_level": "ERROR"},
    )
    worker = (
        cast("Deployment", Worker)
        .options(
            num_replicas=options.replicas,
            max_ongoing_requests=4 * options.slots,
            health_check_period_s=1.0,
            health_check_timeout_s=30.0,
            graceful_shutdown_timeout_s=2.0,
            ray_actor_options={"num_cpus": 1, "num_gpus": _gpus_each(options.replicas)},
        )
        .bind(options)
    )
    gateway = (
        cast("Deployment", Gateway)
        .options(
            max_ongoing_requests=1000,
            graceful_shutdown_timeout_s=2.0,
            # Beside the proxy: losing any other node must not cut the clients off.
            ray_actor_options={"num_cpus": 0, "resources": {_HEAD: 0.001}},
        )
        .bind(options, worker, token)
    )
    try:
        serve.run(gateway, name=APPLICATION, route_prefix="/", blocking=False)
    except RuntimeError as error:
        raise EnvironmentFault(
            f"serve: the application did not start: {_last_line(error)}; the replicas' logs in "
            "the Ray session's folder say more"
        ) from error
    served = Served(f"http://{host}:{port}", board, options)
    _wait_until_ready(served)
    return served


def _wait_until_ready(served: Served) -> None:
    until_s = time.monotonic() + _READY_S
    last = "no answer"
    while time.monotonic() < until_s:
        try:
            answer = httpx.get(f"{served.url}/health", timeout=5.0)
            last = answer.text
            ready = answer.status_code == 200
            if ready and answer.json()["replicas"] >= served.options.replicas:
                return
        except httpx.HTTPError as error:
            last = str(error)
        time.sleep(0.2)
    raise EnvironmentFault(
        f"serve: {served.url}/health was not ok within {_READY_S:.0f} s (last: {last}), expected "
        f"{served.options.replicas} replicas that generate; look at the replicas' logs"
    )


def _gpus_each(replicas: int) -> float:
    """Share of the cluster's GPUs for one replica; whole ones where there are enough."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = resources.get("GPU", 0.0)
    return float(min(1.0, gpus / replicas)) if gpus else 0.0


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
