"""A Ray cluster: started here on loopback, or joined where RAY_ADDRESS says."""

import logging
import os
import socket
import warnings
from types import TracebackType

import ray
from ray import serve

from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.board import BOARD, NAMESPACE
from tocsin.ray_jobs.hub import forget_hubs
from tocsin.ray_jobs.places import is_read, node_folder

_CONNECT_S = 5.0
_OBJECT_STORE_BYTES = 256 << 20
_FRAME_TYPE, _SETTINGS = 3, 4
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
"""RFC 9113, section 3.4: what a client says first, with an empty settings frame."""


class Cluster:
    """A connection to Ray; as a context manager it stops what it started and leaves the rest."""

    def __init__(self, replicas: int, address: str | None = None) -> None:
        """Join `address` (or RAY_ADDRESS), or start a cluster of this process's own.

        Raises:
            EnvironmentFault: nobody answers there, or Ray does not start.
        """
        address = address or os.environ.get("RAY_ADDRESS") or None
        self.started = address is None
        self._own_state = ""
        for name in ("ray", "ray.serve"):
            logging.getLogger(name).setLevel(logging.ERROR)
        os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
        # Ray imports of its own raise these; a person who serves a model can do nothing about it.
        warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
        # A worker's death is told by our own events; Ray would print it into the progress display.
        ray._private.worker._worker_logs_enabled = False
        self._connected = not ray.is_initialized()
        if not self._connected:
            self.started = False
        elif address is None:
            self._start(replicas)
        else:
            _join(address)

    def _start(self, replicas: int) -> None:
        # Two clusters of one machine do not share a node folder: each hub reads one.
        if not os.environ.get("TOCSIN_STATE") and is_read(node_folder()):
            self._own_state = str(node_folder().with_name(f"node-{os.getpid()}"))
            os.environ["TOCSIN_STATE"] = self._own_state
        # Ray is modest by default; a replica that serves must not wait behind everything else.
        os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, replicas),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace=NAMESPACE,
                object_store_memory=_OBJECT_STORE_BYTES,
                _node_ip_address="127.0.0.1",
            )
        except Exception as error:  # Ray raises plain ones, for instance when its start takes long
            self._leave_own_state()
            raise EnvironmentFault(
                f"ray: no local cluster started ({error}), expected one; free memory and disk in "
                "the temporary folder, or set RAY_ADDRESS to a running cluster"
            ) from error

    def close(self) -> None:
        """Take our application out; stop the cluster if it is ours."""
        self._leave_own_state()
        if not ray.is_initialized():
            return
        if not self.started:
            serve.delete("tocsin")
            forget_board()
            forget_hubs()
            if not serve.status().applications:  # nobody else's: its proxy would keep our port
                serve.shutdown()  # type: ignore[no-untyped-call]
        if self._connected:
            ray.shutdown()

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


def forget_board() -> None:
    """End the board that an earlier run may have left behind."""
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
    try:
        ray.init(
            address=address, log_to_driver=False, logging_level=logging.ERROR, namespace=NAMESPACE
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise unreachable from error


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
