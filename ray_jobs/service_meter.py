"""What serving notices about itself, counted where the node's hub finds it."""

from collections.abc import Callable

from tocsin.core.history import NOTICED_BY, EventKind
from tocsin.core.metrics import SERVICE_INCIDENTS
from tocsin.ray_jobs.metric_file import MetricFile
from tocsin.ray_jobs.places import node_folder


def incident_counter() -> Callable[[str], None]:
    """A function that counts an event by its kind, if serving notices by it; all begin at 0."""
    file = MetricFile(node_folder(), "board")
    file.prepare(SERVICE_INCIDENTS)

    def count(kind: str) -> None:
        if kind in NOTICED_BY:
            file.inc(SERVICE_INCIDENTS, (NOTICED_BY[EventKind(kind)],))

    return count
