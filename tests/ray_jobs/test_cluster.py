"""What a cluster, a port or an address that is not as expected ends in: one clear line."""

import socket

import pytest
import ray
from ray import serve

from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs import cluster
from tocsin.ray_jobs.cluster import Cluster, check_port, free_port


def test_a_busy_port_is_named_with_the_way_out() -> None:
    """Before anything is started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentFault, match=f"127.0.0.1:{port} .*--port") as caught:
            check_port("127.0.0.1", port)
    assert "\n" not in str(caught.value)


def test_a_free_port_passes() -> None:
    """The nearest miss; looking at it does not take it."""
    port = free_port()
    check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


@pytest.mark.parametrize("listening", [False, True], ids=["nobody", "no Ray"])
def test_an_address_without_a_cluster_is_named_and_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, listening: bool
) -> None:
    """Ray itself would try for minutes, and where something else listens even longer."""
    port = free_port()
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    monkeypatch.setattr(cluster, "_CONNECT_S", 0.5)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        if listening:
            other.listen()
        with pytest.raises(EnvironmentFault, match=f"no cluster at 127.0.0.1:{port}") as caught:
            Cluster(2)
    assert "unset RAY_ADDRESS" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # Ray's own, of things to come
def test_two_clusters_in_one_process_do_not_take_each_others_serve() -> None:
    """Both give this process the same job number, by which Serve tells its handles apart."""
    for _ in range(2):
        with Cluster(1):
            assert not serve.status().applications
            serve.start()
    assert not ray.is_initialized()


def test_a_client_server_that_dies_as_it_starts_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice; what is still refused says the server's last words too."""
    asked = []

    def init(**options: object) -> None:
        asked.append(options)
        if len(asked) < still_ill:
            raise ConnectionAbortedError("Initialization failure from server:\nTraceback\nEnd: x")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(cluster, "_answers", lambda target: True)
    monkeypatch.setattr(cluster, "_PAUSE_S", 0.0)
    still_ill = 3
    cluster._join("ray://127.0.0.1:1")
    assert len(asked) == 3
    still_ill = 99
    with pytest.raises(EnvironmentFault, match=r"Initialization failure from server: End: x"):
        cluster._join("ray://127.0.0.1:1")
    assert len(asked) == 6
