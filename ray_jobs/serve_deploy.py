"""A serve config goes onto a cluster, new or changed, and is waited for until it generates."""

import os
import time
from pathlib import Path
from typing import Any

import httpx
from ray import serve
from ray.serve.schema import ApplicationStatusOverview

from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.ray_jobs.cluster import APPLICATION
from tocsin.ray_jobs.head import head_node
from tocsin.ray_jobs.serve_file import ServeFile

READY_S = 900.0
"""A large model is read from a network volume, by every replica."""
_LOOK_S = 0.5
_INSIDE_A_POD = Path("/tmp/ray/ray_current_cluster")


def cluster_address() -> str | None:
    """The cluster to join: what RAY_ADDRESS says, or in a pod of a Ray cluster that one.

    Raises:
        SpecError: the address is of the job server, which takes no application.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith(("http://", "https://")):
        raise SpecError(
            f"RAY_ADDRESS: found {address}, expected host:port, ray://host:port or auto; "
            "submit `tocsin serve --config … --detach` there as a job"
        )
    if not address and os.environ.get("KUBERNETES_SERVICE_HOST") and _INSIDE_A_POD.exists():
        return "auto"
    return address or None


def deploy_file(file: ServeFile) -> str:
    """Deploy a config on the cluster that this process is connected to; returns the URL.

    The same config again changes nothing; another `deployments` is applied in place.

    Raises:
        EnvironmentFault: it does not become healthy; Serve's own words are in it.
    """
    serve.start(
        proxy_location=file.schema.proxy_location,
        http_options=file.schema.http_options.model_dump(),
        logging_config={"log_level": "ERROR"},
    )
    client: Any = serve.context._get_global_client()
    client.deploy_apps(file.schema)
    head = head_node() or {"NodeManagerAddress": "127.0.0.1"}
    url = f"http://{file.host or head['NodeManagerAddress']}:{file.port}"
    _wait_until_healthy(url, file.replicas)
    return url


def _wait_until_healthy(url: str, replicas: int) -> None:
    until_s = time.monotonic() + READY_S
    last = "nothing"
    while time.monotonic() < until_s:
        overview = serve.status().applications.get(APPLICATION)
        if overview is not None:
            last = f"{overview.status}: {reason_of(overview)}"
            if overview.status == "DEPLOY_FAILED":
                break
            if overview.status == "RUNNING" and (last := _complaint(url, replicas)) == "":
                return
        time.sleep(_LOOK_S)
    raise EnvironmentFault(
        f"serve: {APPLICATION} did not become healthy, last heard: {last}; correct the config and "
        "deploy it again, the replicas' logs say more"
    )


def _complaint(url: str, replicas: int) -> str:
    """What `/health` still lacks; empty once enough replicas generate."""
    try:
        answer = httpx.get(f"{url}/health", timeout=5.0)
        serving = int(answer.json()["replicas"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        return f"{url}/health: {error}"
    if answer.status_code == 200 and serving >= replicas:
        return ""
    return f"{url}/health: {answer.status_code}, {serving} of {replicas} replicas"


def reason_of(overview: ApplicationStatusOverview) -> str:
    """The last line of what Serve says of an application, of its worst deployment if need be."""
    texts = [one.message for one in overview.deployments.values() if one.status != "HEALTHY"]
    for text in (*texts, overview.message):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines:
            return lines[-1]
    return "no word"
