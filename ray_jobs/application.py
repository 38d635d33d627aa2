"""The Serve application: board, workers and gateway, deployed and taken to readiness."""

import time
from dataclasses import dataclass
from typing import Any, cast

import httpx
import ray
import torch
from ray import serve
from ray.serve import Application, Deployment

from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.board_actor import ensure_board
from tocsin.ray_jobs.cluster import APPLICATION, check_port, make_room
from tocsin.ray_jobs.gateway import Gateway
from tocsin.ray_jobs.head import ON_HEAD
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.pager import paging_of_environment
from tocsin.ray_jobs.worker import Worker

_READY_S = 180.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running application."""

    url: str
    board: Any
    options: ServeOptions


def deploy(options: ServeOptions, *, host: str, port: int, token: str = "") -> Served:
    """Start everything and wait until a real token came out of it.

    Raises:
        EnvironmentFault: the port is taken, another application of ours serves on the cluster, or
            this one does not become ready.
    """
    check_port(host, port)
    make_room()
    board = ensure_board(paging_of_environment(f"http://{host}:{port}"))
    ray.get(board.deployed_by.remote(ray.get_runtime_context().get_job_id()))
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": host, "port": port, "request_timeout_s": None},
        logging_config={"log_level": "ERROR"},
    )
    gateway = bind(
        options, replicas=options.replicas, gpus_each=_gpus_each(options.replicas), token=token
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


def bind(
    options: ServeOptions,
    *,
    replicas: int,
    cpus_each: float = 1.0,
    gpus_each: float = 0.0,
    gateways: int = 1,
    gateway_placement: str = "head",
    token: str | None,
) -> Application:
    """Workers and gateway of one application; Serve is not asked for anything yet.

    Args:
        gateway_placement: `head`: beside the head's proxy, where losing any other node does not
            cut the clients off; `workers`: where there is a CPU.
        token: of `POST /health/checker_status`; None: the gateway's own environment says it.
    """
    worker = (
        cast("Deployment", Worker)
        .options(
            num_replicas=replicas,
            max_ongoing_requests=4 * options.slots,
            health_check_period_s=1.0,
            health_check_timeout_s=30.0,
            graceful_shutdown_timeout_s=2.0,
            ray_actor_options={"num_cpus": cpus_each, "num_gpus": gpus_each},
        )
        .bind(options)
    )
    on_head = {"num_cpus": 0, "resources": ON_HEAD}
    return (
        cast("Deployment", Gateway)
        .options(
            num_replicas=gateways,
            max_ongoing_requests=1000,
            graceful_shutdown_timeout_s=2.0,
            ray_actor_options=on_head if gateway_placement == "head" else {"num_cpus": 0.1},
        )
        .bind(options, worker, token)
    )


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
    if not torch.cuda.is_available():  # nobody here could use one
        return 0.0
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = resources.get("GPU", 0.0)
    return float(min(1.0, gpus / replicas)) if gpus else 0.0


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
