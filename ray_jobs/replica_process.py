"""What every process of Serve does first; and the end of one whose engine is gone."""

import logging
import os
import threading
from typing import Any

import ray

_LOOPBACK = "127.0.0.1"
_EVERYWHERE = "[::]:0"
_LEAVE_S = 0.3
_LOG = logging.getLogger("tocsin.worker")


def prepare() -> None:
    """Call it in a deployment's constructor, before anything else."""
    never_raise()
    stay_on_loopback()


def never_raise() -> None:
    """Let no log line of this process end anything, whatever its handlers meet.

    Where a handler fails (the disk is full), `logging` prints the traceback to `sys.stderr`. Serve
    makes that a logger with the same handlers: the line goes round and round until Python raises a
    RecursionError into whoever logged it, and that was the thread that steps the engine.
    `logging.raiseExceptions` is the standard library's own switch for production.
    """
    logging.raiseExceptions = False


def stay_on_loopback() -> None:
    """Bind the replica's own gRPC port to 127.0.0.1 where its node has that address.

    Serve (2.60) binds it to every interface, and it unpickles what it is sent: on a laptop that is
    a door to the whole network. It must be called before the port is opened.
    A version of Ray that has moved the function keeps its own ways.
    """
    here: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if here != _LOOPBACK:
        return
    from ray.serve._private import replica

    module: Any = replica
    bind = getattr(module, "add_port_to_grpc_server", None)
    if bind is None:
        return

    def bind_here(server: Any, address: str) -> int:
        here = f"{_LOOPBACK}:0" if address == _EVERYWHERE else address
        return int(bind(server, here))

    module.add_port_to_grpc_server = bind_here


def end_soon(why: str, after_s: float = _LEAVE_S) -> None:
    """End this process in a moment: the endings of its requests leave, its last words are logged.

    A router prefers who has least to do, which is a replica whose engine is gone. Serve (2.60)
    takes it out at the third bad answer to its question for health, seconds later; a process that
    has ended gets no request, and another is started in its place.
    """
    _LOG.error("%s; this process ends", why)
    leaving = threading.Timer(after_s, os._exit, (1,))
    leaving.daemon = True
    leaving.start()
