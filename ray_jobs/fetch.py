"""What the replicas of other hosts left on disk during a run, brought into the run's folder."""

import io
import tarfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tocsin.ray_jobs.places import node_folder

BYTES_MAX = 32 << 20
"""Of one node: a run's failures are snapshots of single calls; what is beyond is told, not sent."""
_TAKEN = ("journal", "spans")
_ANSWER_S = 30.0
"""For all nodes together."""


def packed(age_s: float, bytes_max: int = BYTES_MAX, folder: Path | None = None) -> dict[str, Any]:
    """Journals, snapshots and spans of this node that were written lately.

    Ages travel, not times: the clocks of two hosts differ.

    Args:
        age_s: how long ago the run began.
        bytes_max: the newest files up to so much.
        folder: the node folder; None: this node's own.

    Returns:
        `tar` (gzip) with paths below the node folder, and `left_out`: how many did not fit.
    """
    root = node_folder(folder)
    files = [
        (path.stat().st_mtime, path)
        for name in _TAKEN
        for path in (root / name).rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.parts[-2:])
    ]
    now_s = time.time()
    left, left_out, out = bytes_max, 0, io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for written_s, path in sorted(files, reverse=True):
            if written_s < now_s - age_s:
                break
            size = path.stat().st_size
            if size > left:
                left_out += 1
                continue
            left -= size
            tar.add(path, arcname=str(path.relative_to(root)))
    return {"tar": out.getvalue(), "left_out": left_out}


def unpack(answer: bytes, state: Path) -> int:
    """Put what a node sent into a node folder; returns the number of files.

    Files of two nodes have different names: they carry the replica or the process.
    """
    with tarfile.open(fileobj=io.BytesIO(answer), mode="r:gz") as tar:
        members = [one for one in tar.getmembers() if one.isfile()]
        tar.extractall(state, members=members, filter="data")
    return len(members)


def fetch(nodes: Iterable[str], age_s: float, state: Path, say: Callable[[str], None]) -> None:
    """Ask each node for what its replicas left; one that gives nothing takes no other with it.

    Args:
        nodes: ids of Ray nodes.
        age_s: how long ago the run began.
        state: node folder of this run, from which its evidence is collected.
        say: hears what could not be had.
    """
    task: Any = ray.remote(packed)
    asked = {}
    for node in sorted(set(nodes)):
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        asked[node] = task.options(num_cpus=0, max_retries=0, scheduling_strategy=here).remote(
            age_s
        )
    until_s = time.monotonic() + _ANSWER_S
    for node, answer in asked.items():
        try:
            told = ray.get(answer, timeout=max(0.1, until_s - time.monotonic()))
            unpack(told["tar"], state)
        except (ray.exceptions.RayError, ConnectionError, tarfile.TarError) as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(f"evidence of node {node[:8]} did not come ({said}); its disk has it")
            continue
        if told["left_out"]:
            say(f"evidence of node {node[:8]}: {told['left_out']} files were too large to be sent")
