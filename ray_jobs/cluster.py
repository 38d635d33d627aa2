"""A Ray cluster: started here on loopback, or joined where RAY_ADDRESS says."""

import logging
import os
import socket
import time
import warnings
from types import TracebackType
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster as Nodes

from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.board import BOARD, NAMESPACE
from tocsin.ray_jobs.hub import forget_hubs
from tocsin.ray_jobs.places import is_read, node_folder

APPLICATION = "tocsin"
"""What Serve calls ours."""
_SERVING = ("RUNNING", "DEPLOYING", "UNHEALTHY")
_deploying: set[str] = set()
"""Ray jobs of this process that have deployed an application; only these end one."""
_CONNECT_S = 5.0
_TRIES, _PAUSE_S = 3, 1.0
_STILLBORN = "Initialization failure from server"
_OBJECT_STORE_BYTES = 256 << 20
_LOOPBACK = "127.0.0.1"
_FRAME_TYPE, _SETTINGS = 3, 4
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
"""RFC 9113, section 3.4: what a client says first, with an empty settings frame."""


class Cluster:
    """A connection to Ray; as a context manager it stops what it started and leaves the rest."""

    def __init__(
        self, replicas: int, address: str | None = None, *, visits: bool = False, nodes: int = 1
    ) -> None:
        """Join `address` (or RAY_ADDRESS), or start a cluster of this process's own.

        Args:
            visits: look for a cluster of this machine where no address is given, and start none.
            nodes: that serve, of a cluster of its own; with more than one, the head serves nothing.

        Raises:
            EnvironmentFault: nobody answers there, or Ray does not start.
        """
        address = address or os.environ.get("RAY_ADDRESS") or ("auto" if visits else None)
        self.started = address is None
        self._own_state = ""
        self._nodes: Nodes | None = None
        for name in ("ray", "ray.serve"):
            logging.getLogger(name).setLevel(logging.ERROR)
        os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
        # Ray imports of its own raise these; a person who serves a model can do nothing about it.
        warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
        # A worker's death is told by our own events; Ray would print it into the progress display.
        ray._private.worker._worker_logs_enabled = False
        self._connected = not ray.is_initialized()
        if self._connected:
            _deploying.clear()  # another cluster may count its jobs in the same way
        if not self._connected:
            self.started = False
        elif address is None:
            self._start(replicas, nodes)
        else:
            _join(address)
        # Serve keeps its handle over a disconnect, and takes it for this cluster's where the
        # number of our job is the same; the first job of each cluster has the same number.
        serve.context._set_global_client(None)  # type: ignore[no-untyped-call]

    def _start(self, replicas: int, nodes: int) -> None:
        # Two clusters of one machine do not share a node folder: each hub reads one.
        if not os.environ.get("TOCSIN_STATE") and is_read(node_folder()):
            self._own_state = str(node_folder().with_name(f"node-{os.getpid()}"))
            os.environ["TOCSIN_STATE"] = self._own_state
        # Ray is modest by default; a replica that serves must not wait behind everything else.
        os.environ.setdefault("RAY_worker_niceness", "0")
        quiet: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "namespace": NAMESPACE,
        }
        try:
            if nodes > 1:
                self._nodes = Nodes(shutdown_at_exit=True)
                _several(self._nodes, replicas, nodes, quiet)
                return
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, replicas),
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _node_ip_address=_LOOPBACK,
                **quiet,
            )
        except Exception as error:  # Ray raises plain ones, for instance when its start takes long
            self._leave_own_state()
            ray.shutdown()
            self._end_nodes()
            raise EnvironmentFault(
                f"ray: no local cluster started ({error}), expected one; free memory and disk in "
                "the temporary folder, or set RAY_ADDRESS to a running cluster"
            ) from error

    def close(self) -> None:
        """Take out the application that this process deployed; stop the cluster if it is ours."""
        self._leave_own_state()
        if not ray.is_initialized():
            self._end_nodes()
            return
        if not self.started and ray.get_runtime_context().get_job_id() in _deploying:
            forget_application()
        if self._connected:
            ray.shutdown()
        self._end_nodes()

    def leave(self) -> None:
        """Disconnect from a cluster that was joined; what runs there goes on."""
        if self._connected and not self.started:
            ray.shutdown()

    def _end_nodes(self) -> None:
        if self._nodes is not None:
            self._nodes.shutdown()  # type: ignore[no-untyped-call]
            self._nodes = None

    def _leave_own_state(self) -> None:
        if self._own_state and os.environ.get("TOCSIN_STATE") == self._own_state:
            del os.environ["TOCSIN_STATE"]

    def __enter__(self) -> "Cluster":
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def _several(started: Nodes, replicas: int, nodes: int, quiet: dict[str, Any]) -> None:
    """A head that serves nothing and nodes that do, all on loopback: each could take all replicas.

    They end with this process, however it ends. It belongs to the head's node: with several of
    one address Ray chooses for itself, so it connects while there is only the head.
    """
    common: dict[str, Any] = {
        "node_ip_address": _LOOPBACK,
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES // 2,
    }
    started.add_node(num_cpus=0, **common)
    ray.init(address=started.address, **quiet)
    for _ in range(nodes):
        started.add_node(num_cpus=replicas, **common)


def make_room() -> None:
    """End what a killed run left serving here; it would go on at that run's port.

    Raises:
        EnvironmentFault: what serves is not left behind, so that it must not be ended here.
    """
    overview = serve.status().applications.get(APPLICATION)
    if overview is not None and overview.status in _SERVING and not _left_behind():
        raise EnvironmentFault(
            f"ray: an application {APPLICATION!r} serves on this cluster ({overview.status}), "
            "expected none; attack it with tocsin chaos run --on URL, or end it first (serve "
            "shutdown)"
        )
    forget_application()
    _deploying.add(ray.get_runtime_context().get_job_id())


def forget_application() -> None:
    """End what serves here under our name, with its board and hubs; nothing where nothing does.

    Serve itself ends too where it serves nobody else: its proxy would keep our port.
    """
    if APPLICATION in serve.status().applications:
        serve.delete(APPLICATION)
    if not serve.status().applications:
        serve.shutdown()  # type: ignore[no-untyped-call]
    _forget_board()
    forget_hubs()


def _left_behind() -> bool:
    try:
        board = ray.get_actor(BOARD, namespace=NAMESPACE)
        return bool(ray.get(board.left_behind.remote(), timeout=_CONNECT_S))
    except (ValueError, ray.exceptions.RayError):
        return False  # nobody knows: then it is somebody's


def _forget_board() -> None:
    try:
        ray.kill(ray.get_actor(BOARD, namespace=NAMESPACE))
    except ValueError:
        return


def _join(address: str) -> None:
    """Connect to a running cluster, after a look whether anybody listens there."""
    unreachable = EnvironmentFault(
        f"ray: found no cluster at {address} within {_CONNECT_S:.0f} s, expected one that answers; "
        "start it (ray start --head) or unset RAY_ADDRESS to use a cluster of its own"
    )
    target = address.removeprefix("ray://")
    if target.rpartition(":")[2].isdigit() and not _answers(target):
        raise unreachable
    for left in reversed(range(_TRIES)):
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace=NAMESPACE,
            )
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            if not address.startswith("ray://"):
                raise unreachable from error
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            # Each client gets a server process of its own, and now and then one dies as it starts.
            if left and lines and _STILLBORN in lines[0]:
                time.sleep(_PAUSE_S)
                continue
            said = " ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else type(error).__name__
            raise EnvironmentFault(
                f"ray: {address} answers and lets nobody in ({said}), expected the client port of "
                "a cluster; where it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            ) from error
        return


def _answers(target: str) -> bool:
    """Whether an HTTP/2 server greets us, as gRPC's do; Ray itself would wait for minutes."""
    host, _, port = target.rpartition(":")
    greeting = b""
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as peer:
            peer.sendall(_HTTP2_PREFACE)
            while len(greeting) <= _FRAME_TYPE and (more := peer.recv(9)):
                greeting += more
    except OSError:
        return False
    return len(greeting) > _FRAME_TYPE and greeting[_FRAME_TYPE] == _SETTINGS


def check_port(host: str, port: int, *, command: str = "serve", option: str = "--port") -> None:
    """Make sure that a port can be listened on.

    Args:
        command, option: whose port it is and how another is chosen, for the message.

    Raises:
        EnvironmentFault: somebody else listens there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise EnvironmentFault(
                f"{command}: {host}:{port} cannot be listened on ({error.strerror}), expected a "
                f"free port; stop the other server or choose another with {option}"
            ) from error


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
