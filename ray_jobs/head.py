"""The head node of a cluster: the one place that is there whatever becomes of the workers."""

from typing import Any

import ray

HEAD = "node:__internal_head__"
"""The resource that Ray gives to the head node alone."""
ON_HEAD = {HEAD: 0.001}


def head_node() -> dict[str, Any] | None:
    """The head as Ray describes it; None where there is none (any more)."""
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if node["Alive"] and HEAD in node["Resources"]:
            return dict(node)
    return None
