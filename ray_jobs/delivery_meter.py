"""Deliveries of alerts, counted where the node's hub finds them."""

from collections.abc import Callable

from tocsin.core.metrics import DELIVERIES
from tocsin.ray_jobs.metric_file import MetricFile
from tocsin.ray_jobs.places import node_folder


def delivery_counter(role: str) -> Callable[[str, str], None]:
    """A function that counts one delivery by receiver and result; its label sets begin at 0.

    Args:
        role: what the process does; stands in the name of its file.
    """
    file = MetricFile(node_folder(), role)
    file.prepare(DELIVERIES)
    return lambda receiver, result: file.inc(DELIVERIES, (receiver, result))
