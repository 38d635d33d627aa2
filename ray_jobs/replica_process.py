"""What every process of Serve does first: it listens where it may, and no log line ends it."""

import logging
from typing import Any

import ray

_LOOPBACK = "127.0.0.1"
_EVERYWHERE = "[::]:0"


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
