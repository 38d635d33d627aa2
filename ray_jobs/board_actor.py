"""The board's actor: found, or made on the head node by whoever comes first."""

from typing import Any

import ray

from tocsin.ray_jobs.board import BOARD, NAMESPACE, Board
from tocsin.ray_jobs.head import ON_HEAD, head_node
from tocsin.ray_jobs.hub import ensure_hub
from tocsin.ray_jobs.pager import Paging, paging_of_environment


def ensure_board(paging: Paging | None = None) -> Any:
    """The board of this cluster, looking after heartbeats, and the hub of its node.

    Ray starts both anew when they die. They take no CPU, so a head that offers none can have them,
    and they are detached: a new version of the application finds the same ones.

    Args:
        paging: who is told directly of what pages; None: as this process's environment says,
            or as it is where that says nothing.
    """
    found = paging_of_environment()
    paging = paging or (found if found.alertmanagers else None)
    board: Any = (
        ray.remote(Board)
        .options(
            name=BOARD,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=1000,
            resources=ON_HEAD,
        )
        .remote(paging)
    )
    board.watch.remote(paging)
    head = head_node()
    if head is not None:
        ensure_hub(head["NodeID"])
    return board
