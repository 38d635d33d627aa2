"""On a cluster that lives on loopback, Serve's replicas listen on loopback too."""

from typing import Any

import ray

_LOOPBACK = "127.0.0.1"
_EVERYWHERE = "[::]:0"


def stay_on_loopback() -> None:
    """Bind the replica's own gRPC port to 127.0.0.1 where its node has that address.

    Serve (2.60) binds it to every interface, and it unpickles what it is sent: on a laptop that is
    a door to the whole network. Call it in a deployment's constructor, before the port is opened.
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
