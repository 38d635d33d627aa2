"""The application as a serve config names it: `import_path: tocsin.ray_jobs.serve_app:build`."""

from typing import Any

from ray.serve import Application
from ray.serve.exceptions import RayServeException

from tocsin.core.errors import TocsinError
from tocsin.ray_jobs.application import bind
from tocsin.ray_jobs.board_actor import ensure_board
from tocsin.ray_jobs.serve_arguments import arguments_of

IMPORT_PATH = "tocsin.ray_jobs.serve_app:build"


def build(arguments: dict[str, Any]) -> Application:
    """Board, workers and gateway of one application.

    Args:
        arguments: of `serve_arguments.ServeArguments`. (Ray would turn them into the model itself,
            were it named here, and answer a wrong one with a traceback.)

    Raises:
        RayServeException: something in them is wrong; Serve shows its one line as the status.
    """
    try:
        given = arguments_of(arguments)
        ensure_board()
        return bind(
            given.options(),
            replicas=given.replicas,
            cpus_each=given.cpus_per_replica,
            gpus_each=given.gpus_per_replica,
            gateways=given.gateway_replicas,
            gateway_placement=given.gateway_placement,
            token=None,
        )
    except TocsinError as error:
        raise RayServeException(f"serve config: {error}") from error
