"""A replica that does not come up is told of: its own heartbeats never begin."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import ray

from tocsin.core.history import Event, EventKind
from tocsin.ray_jobs.board_actor import ensure_board
from tocsin.ray_jobs.clocks import stamp
from tocsin.ray_jobs.wire import event_to_wire

_TELL_S = 5.0
_WORDS_MOST = 300


@contextmanager
def start_told(replica: str) -> Iterator[None]:
    """Within it a replica is built; what it raises goes to the board, and on to Serve."""
    try:
        yield
    except Exception as error:
        with suppress(ray.exceptions.RayError):  # without a board nobody listens
            sent = stamp()
            event = Event(EventKind.START_FAILED, sent["sent_ns"], replica, data=_data(error))
            told = ensure_board().put_event.remote(event_to_wire(event), sent)
            ray.get(told, timeout=_TELL_S)
        raise


def _data(error: Exception) -> dict[str, object]:
    words = f"{type(error).__name__}: {error}".splitlines()[0][:_WORDS_MOST]
    return {"error": words, "pid": os.getpid()}
