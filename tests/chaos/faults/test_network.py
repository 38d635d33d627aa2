"""Faults on the network, on a real road to a service that echoes: each fires, and each ends."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tocsin.chaos.contract import faults
from tocsin.chaos.road import HOST
from tocsin.chaos.road_striker import RoadStriker
from tocsin.chaos.road_thread import RoadThread
from tocsin.core.clock import ManualClock, SystemClock
from tocsin.core.errors import EnvironmentFault
from tocsin.core.faulting import Order, OrderStatus, Scope

KINDS = [unit.id for unit in faults().values() if unit.scope is Scope.NETWORK]
LASTING = [kind for kind in KINDS if "duration_s" in faults()[kind].params]


class Echo:
    """A service that says everything back."""

    def __init__(self) -> None:
        self._server = socket.create_server((HOST, 0))
        self.port = self._server.getsockname()[1]
        self._peers: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        for one in (self._server, *self._peers):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            self._peers.append(peer)
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        try:
            while data := peer.recv(4096):
                peer.sendall(data)
        except OSError:
            return


class Talk:
    """A load: asks for the same again and again, on a new connection when one has broken."""

    def __init__(self, port: int) -> None:
        self.broken = 0
        self._ended = threading.Event()
        self._port = port
        self._thread = threading.Thread(target=self._talk)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _talk(self) -> None:
        while not self._ended.is_set():
            try:
                with socket.create_connection((HOST, self._port), timeout=0.5) as peer:
                    while not self._ended.wait(0.002):
                        peer.sendall(b"token")
                        if not peer.recv(64):
                            break
            except ConnectionError:
                self.broken += 1
            except TimeoutError:
                continue


@pytest.fixture
def road() -> Iterator[RoadThread]:
    echo = Echo()
    one = RoadThread(HOST, echo.port)
    yield one
    one.close()
    echo.close()


@pytest.fixture
def talk(road: RoadThread) -> Iterator[Talk]:
    one = Talk(road.port)
    yield one
    one.close()


@pytest.fixture
def reports() -> list[OrderStatus]:
    return []


@pytest.fixture
def striker(road: RoadThread, reports: list[OrderStatus]) -> RoadStriker:
    return RoadStriker(SystemClock(), reports.append, road)


def _order(kind: str, ttl_s: float = 30.0, **params: object) -> Order:
    return Order(f"{kind}@0", kind, 1, 0, ttl_s, dict(params))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_on_the_network_fires_on_traffic_and_is_healed_when_taken_back(
    kind: str, striker: RoadStriker, road: RoadThread, talk: Talk, reports: list[OrderStatus]
) -> None:
    """The evidence counts bytes or connections; after the disarm nothing is in force."""
    lasts = {"duration_s": 20.0} if kind in LASTING else {}
    status = striker.strike(_order(kind, **lasts))
    assert status.state == "fired", status.error
    assert status.evidence is not None
    assert status.evidence.before.startswith("0 ")
    assert road.is_clear() is (kind not in LASTING)
    striker.tick()
    assert striker.statuses()[0].state == ("fired" if kind in LASTING else "healed")
    striker.disarm(f"{kind}@0")
    assert striker.statuses()[0].state == "healed"
    assert road.is_clear()
    assert [report.state for report in reports] == ["fired", "healed"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_traffic_nothing_fires_and_nothing_stays(kind: str, road: RoadThread) -> None:
    """A fault that met nobody is no pass; it does not wait for the next one either."""
    striker = RoadStriker(ManualClock(), lambda status: None, road)
    status = striker.strike(_order(kind))
    assert status.state == "disarmed"
    assert "still reads 0 " in status.error
    assert road.is_clear()


@pytest.mark.parametrize("kind", LASTING)
def test_a_fault_on_the_network_ends_by_itself(
    kind: str, striker: RoadStriker, road: RoadThread, talk: Talk
) -> None:
    """Nobody disarms, renews or ticks: who ordered it may be gone."""
    assert striker.strike(_order(kind, duration_s=0.2)).state == "fired"
    ended = threading.Event()
    for _ in range(500):
        if road.is_clear():
            break
        ended.wait(0.02)
    striker.tick()
    assert striker.statuses()[0].state == "healed"


def test_a_lease_that_ends_clears_the_road(road: RoadThread, talk: Talk) -> None:
    """No renewal within the lease: the striker takes the toxin away before its time."""
    clock = ManualClock(SystemClock().now_ns())
    striker = RoadStriker(clock, lambda status: None, road)
    striker.strike(_order("net.delay", ttl_s=5.0, duration_s=30.0))
    striker.renew(5.0)
    clock.sleep(4.0)
    striker.tick()
    assert not road.is_clear()
    clock.sleep(2.0)
    striker.tick()
    assert road.is_clear()


def test_a_reset_breaks_connections_and_new_ones_stay(
    striker: RoadStriker, road: RoadThread, talk: Talk
) -> None:
    """The client sees it, comes back, and is served."""
    striker.strike(_order("net.reset", share=1.0))
    waiting = threading.Event()
    for _ in range(500):
        if talk.broken and road.reading().connections > 1:
            break
        waiting.wait(0.02)
    assert talk.broken == 1
    assert road.reading().connections == 2


@pytest.mark.parametrize(
    ("kind", "params", "complaint"),
    [
        ("net.delay", {"latency_ms": 0}, "latency_ms is 0"),
        ("net.delay", {"direction": "up"}, "to, from, both"),
        ("net.partition", {"duration_s": 600}, "from 0.05 to 30"),
        ("net.partition", {"half_open": "yes"}, "true or false"),
        ("net.bandwidth", {"rate_bytes_s": -1}, "rate_bytes_s is -1"),
        ("net.reset", {"share": 1.5}, "share is 1.5"),
        ("actor.kill", {}, "no fault on the network"),
    ],
)
def test_a_wrong_order_is_refused_in_words_and_touches_nothing(
    striker: RoadStriker, road: RoadThread, kind: str, params: dict[str, object], complaint: str
) -> None:
    """Before anything is put in force."""
    status = striker.strike(_order(kind, **params))
    assert status.state == "disarmed"
    assert complaint in status.error
    assert road.is_clear()


def test_a_closed_road_says_that_it_is_closed(road: RoadThread) -> None:
    """Closing twice is no mistake, asking afterwards is one."""
    road.close()
    road.close()
    with pytest.raises(EnvironmentFault, match="is closed"):
        road.reading()
