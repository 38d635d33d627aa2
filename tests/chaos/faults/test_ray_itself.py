"""Faults on Ray itself, on processes that are called as Ray's are; nobody else's are struck."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tocsin.chaos.process import look
from tocsin.chaos.ray_session import RaySession
from tocsin.chaos.ray_striker import RayStriker
from tocsin.core.clock import ManualClock, SystemClock
from tocsin.core.errors import EnvironmentFault
from tocsin.core.faulting import Order

SESSION = f"session_{os.getpid()}"
HEAD, NODE = f"head{os.getpid()}", f"node{os.getpid()}"
Start = Callable[..., int]


@pytest.fixture
def started() -> Iterator[Start]:
    """Starts a process of Ray's names and options that only waits; returns its pid."""
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *options: str) -> int:
        words = [f"/opt/ray/{name}", "-c", "read word", "sh", *options]
        running.append(subprocess.Popen(words, executable="/bin/sh", stdin=subprocess.PIPE))
        return running[-1].pid

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def cluster(started: Start, tmp_path: Path) -> dict[str, int]:
    """A head and one more node of our session, and a control plane of somebody else's."""
    common = (f"--session-name={SESSION}", f"--log_dir={tmp_path}")
    return {
        "other": started("gcs_server", "--session-name=session_of_another_run"),
        "gcs": started("gcs_server", *common),
        "head": started("raylet", f"--node_id={HEAD}", *common),
        "node": started("raylet", f"--node_id={NODE}", *common),
    }


def _session() -> RaySession:
    return RaySession.of_head(HEAD)


def _order(kind: str, ttl_s: float = 30.0, **params: object) -> Order:
    return Order(f"{kind}@0", kind, 1, 0, ttl_s, dict(params))


def _until(condition: Callable[[], bool]) -> bool:
    """Wait for the kernel or another process; there is no clock to turn by hand there."""
    deadline_s = time.monotonic() + 10.0
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


def _state(pid: int) -> str:
    reading = look(pid)
    return "gone" if reading is None or reading.dead else reading.state


def test_a_session_is_read_from_the_command_lines_of_its_processes(
    cluster: dict[str, int], tmp_path: Path
) -> None:
    """Name, logs and pids; another run's processes do not belong to it."""
    session = _session()
    assert (session.name, session.logs, session.head) == (SESSION, tmp_path, HEAD)
    assert session.gcs() == cluster["gcs"]
    assert session.raylet(NODE) == cluster["node"]
    assert session.raylet("nobody") is None


def test_a_node_that_is_not_here_has_no_session() -> None:
    """Whoever strikes Ray itself must be where its processes can be seen."""
    with pytest.raises(EnvironmentFault, match="no raylet"):
        RaySession.of_head("nobody")


def test_an_outage_stops_our_control_plane_alone_until_it_is_healed(
    cluster: dict[str, int],
) -> None:
    """State T while it lasts; the heal does not wait for the guardian."""
    striker = RayStriker(SystemClock(), lambda status: None)
    status = striker.strike(_order("gcs.outage", duration_s=15.0), _session)
    assert status.state == "fired", status.error
    assert _state(cluster["gcs"]) == "T"
    assert _state(cluster["other"]) != "T"
    striker.tick()
    assert striker.statuses()[0].state == "fired"
    striker.disarm("gcs.outage@0")
    assert striker.statuses()[0].state == "healed"
    assert _state(cluster["gcs"]) != "T"


def test_an_outage_ends_although_its_striker_was_killed(cluster: dict[str, int]) -> None:
    """SIGKILL to the process that stopped it, and to its group, leaves nothing stopped."""
    script = (
        "import sys, time\n"
        "from tocsin.chaos.ray_session import RaySession\n"
        "from tocsin.chaos.ray_striker import RayStriker\n"
        "from tocsin.core.clock import SystemClock\n"
        "from tocsin.core.faulting import Order\n"
        "order = Order('g@0', 'gcs.outage', 1, 0, 30.0, {'duration_s': 1.0})\n"
        "striker = RayStriker(SystemClock(), lambda status: None)\n"
        "session = lambda: RaySession.of_head(sys.argv[1])\n"
        "print(striker.strike(order, session).state, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, HEAD],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as actor:
        assert actor.stdout is not None
        assert actor.stdout.readline() == "fired\n"
        os.killpg(actor.pid, signal.SIGKILL)
    assert _until(lambda: _state(cluster["gcs"]) != "T")
    assert _state(cluster["gcs"]) != "gone"


def test_a_lost_control_plane_is_not_healed(cluster: dict[str, int]) -> None:
    """Gone is not going on."""
    striker = RayStriker(SystemClock(), lambda status: None)
    striker.strike(_order("gcs.outage", duration_s=15.0), _session)
    os.kill(cluster["gcs"], signal.SIGKILL)
    assert _until(lambda: _state(cluster["gcs"]) == "gone")
    striker.disarm("gcs.outage@0")
    assert striker.statuses()[0].state == "unhealed"


def test_a_killed_node_is_gone_and_healed_by_a_replacement(cluster: dict[str, int]) -> None:
    """Its raylet alone dies; a replica elsewhere that lives is the healing."""
    serving: list[int | None] = [None]
    striker = RayStriker(SystemClock(), lambda status: None)
    status = striker.strike(_order("node.kill"), _session, NODE, lambda: serving[0])
    assert status.state == "fired", status.error
    assert _state(cluster["node"]) == "gone"
    assert all(_state(cluster[name]) != "gone" for name in ("gcs", "head", "other"))
    striker.tick()
    assert striker.statuses()[0].state == "fired"
    serving[0] = os.getpid()
    striker.tick()
    assert striker.statuses()[0].state == "healed"


@pytest.mark.parametrize(
    ("kind", "node", "params", "complaint"),
    [
        ("node.kill", HEAD, {}, "is on the head"),
        ("node.kill", "nobody", {}, "no raylet"),
        ("node.kill", "", {}, "no fault on Ray itself"),
        ("gcs.outage", NODE, {}, "no fault on Ray nodes"),
        ("gcs.outage", "", {"duration_s": 60.0}, "at most 15"),
        ("gcs.outage", "", {"duration_s": 0.0}, "more than 0"),
    ],
    ids=["head", "unknown", "no node", "wrong kind", "too long", "no time"],
)
def test_a_wrong_order_is_refused_and_strikes_nobody(
    cluster: dict[str, int], kind: str, node: str, params: dict[str, object], complaint: str
) -> None:
    """The head, nodes that are not here, and outages from which Ray would not come back."""
    striker = RayStriker(ManualClock(), lambda status: None)
    status = striker.strike(_order(kind, **params), _session, node)
    assert status.state == "disarmed"
    assert complaint in status.error
    assert all(_state(pid) not in ("T", "gone") for pid in cluster.values())
