"""The fault on pods, on a table of pods: what it deletes, what it shows, and when it is healed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tocsin.chaos.pod_striker import PodStriker, pod_of
from tocsin.core.clock import ManualClock
from tocsin.core.errors import ChaosForbidden, EnvironmentFault
from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.pods import Pod


class Table:
    """Implements `core.pods.Pods`."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = {pod.name: pod for pod in pods}
        self.deleted: list[tuple[str, int | None]] = []
        self.forbids = ""
        self.unwell = False
        self.on_delete: Callable[[Pod], None] = lambda pod: self.put(replace(pod, terminating=True))

    def put(self, pod: Pod) -> None:
        self.pods[pod.name] = pod

    def all(self) -> Sequence[Pod]:
        if self.unwell:
            raise EnvironmentFault("kubernetes: no answer, expected one; look at it")
        return tuple(self.pods.values())

    def get(self, name: str) -> Pod | None:
        return self.pods.get(name)

    def delete(self, pod: Pod, grace_s: int | None) -> None:
        if self.forbids:
            raise ChaosForbidden(self.forbids)
        self.deleted.append((pod.uid, grace_s))
        self.on_delete(pod)


def _pod(name: str, uid: str) -> Pod:
    return Pod(name, uid, node="n1", phase="Running", ready=True)


@pytest.fixture
def pods() -> Table:
    return Table(_pod("worker-a", "1"), _pod("worker-b", "2"))


@pytest.fixture
def reports() -> list[OrderStatus]:
    return []


@pytest.fixture
def striker(pods: Table, reports: list[OrderStatus]) -> PodStriker:
    return PodStriker(ManualClock(), reports.append, pods)


def _order(ttl_s: float = 30.0, **params: object) -> Order:
    return Order("gone@0", "pod.delete", 1, 0, ttl_s, dict(params))


def test_the_replicas_own_pod_is_deleted(
    striker: PodStriker, pods: Table, reports: list[OrderStatus]
) -> None:
    """The evidence is what the API shows of that uid, before and after."""
    status = striker.strike(_order(), "worker-b", lambda: False)
    assert pods.deleted == [("2", None)]
    assert status.state == "fired"
    assert status.evidence is not None
    assert status.evidence.place == "pod worker-b on node n1"
    assert status.evidence.before == "uid 2 running"
    assert status.evidence.after == "uid 2 terminating"
    assert reports == [status]


def test_a_uid_that_is_gone_is_evidence_too(striker: PodStriker, pods: Table) -> None:
    """Killed at once, a new pod may have taken the name already."""
    pods.on_delete = lambda pod: pods.put(replace(pod, uid="3"))
    status = striker.strike(_order(grace_s=0), "worker-a", lambda: False)
    assert pods.deleted == [("1", 0)]
    assert status.evidence is not None
    assert status.evidence.after == "uid 1 gone"


def test_a_deletion_that_does_nothing_has_not_fired(striker: PodStriker, pods: Table) -> None:
    """The API said yes and nothing happened: that is told, not counted."""
    pods.on_delete = lambda pod: None
    status = striker.strike(_order(), "worker-a", lambda: True)
    assert status.state == "disarmed"
    assert "still reads uid 1 running" in status.error


def test_it_is_healed_by_a_ready_pod_whose_replica_generates(
    striker: PodStriker, pods: Table
) -> None:
    """Not while the old one ends, not by a pod that is not ready, not before a token came."""
    generates = [False]
    striker.strike(_order(), "worker-a", lambda: generates[0])

    def state() -> str:
        striker.tick()
        return striker.statuses()[0].state

    assert state() == "fired"
    del pods.pods["worker-a"]
    generates[0] = True
    assert state() == "fired"  # too few pods
    pods.put(replace(_pod("worker-c", "3"), ready=False))
    assert state() == "fired"
    pods.put(_pod("worker-c", "3"))
    generates[0] = False
    assert state() == "fired"
    generates[0] = True
    pods.unwell = True
    assert state() == "fired"  # nobody can see it
    pods.unwell = False
    assert state() == "healed"


def test_a_pod_that_does_not_come_back_in_time_is_unhealed(pods: Table) -> None:
    """The lease ends, and nothing can be done from here."""
    clock = ManualClock()
    striker = PodStriker(clock, lambda status: None, pods)
    striker.strike(_order(ttl_s=5.0), "worker-a", lambda: True)
    striker.tick()
    clock.sleep(6.0)
    striker.tick()
    assert striker.statuses()[0].state == "unhealed"


@pytest.mark.parametrize(
    ("host", "params", "words"),
    [
        ("elsewhere", {}, "no worker pod of the release is host 'elsewhere'"),
        ("", {}, "is host ''"),
        ("worker-a", {"grace_s": -1}, "grace_s is -1"),
        ("worker-a", {"grace_s": True}, "grace_s is True"),
        ("worker-a", {"grace_s": "5"}, "grace_s is '5'"),
        ("worker-a", {"grace_s": 601}, "from 0 to 600"),
        ("worker-a", {"signal": 9}, "known are"),
    ],
)
def test_what_cannot_be_aimed_at_is_left_alone(
    striker: PodStriker, pods: Table, host: str, params: dict[str, object], words: str
) -> None:
    """Nothing is deleted by guess."""
    status = striker.strike(_order(**params), host, lambda: True)
    assert status.state == "disarmed"
    assert words in status.error
    assert not pods.deleted


def test_a_pod_that_must_not_be_deleted_is_told(striker: PodStriker, pods: Table) -> None:
    """Its owner has taken the label away since."""
    pods.forbids = "pod worker-a: label tocsin.dev/chaos-target is None"
    status = striker.strike(_order(), "worker-a", lambda: True)
    assert status.state == "disarmed"
    assert pods.forbids in status.error


def test_another_kind_and_a_machine_that_forbids_chaos_are_refused(
    striker: PodStriker, pods: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault on processes is none on pods."""
    other = replace(_order(), kind="actor.kill")
    assert "no fault on pods" in striker.strike(other, "worker-a", lambda: True).error
    monkeypatch.setenv("CHAOS_DISABLE", "1")
    again = replace(_order(), occurrence="gone@1")
    assert "CHAOS_DISABLE" in striker.strike(again, "worker-a", lambda: True).error
    assert not pods.deleted


def test_an_occurrence_strikes_once(striker: PodStriker, pods: Table) -> None:
    """Told twice, it deletes once."""
    striker.strike(_order(), "worker-a", lambda: False)
    striker.strike(_order(), "worker-a", lambda: False)
    assert len(pods.deleted) == 1


def test_an_order_that_was_taken_back_before_it_came_is_not_carried_out(
    striker: PodStriker, pods: Table
) -> None:
    """Two calls to a busy actor may arrive in any order."""
    striker.disarm("gone@0")
    status = striker.strike(_order(), "worker-a", lambda: False)
    assert status.state == "disarmed"
    assert "taken back" in status.error
    assert not pods.deleted


def test_a_host_name_is_its_pods_name_cut_at_63_characters() -> None:
    """And what would end in a dash there ends before it."""
    long = "a" * 61 + "--bcdef"
    assert pod_of("a" * 61, (_pod(long, "1"),)) is not None
    assert pod_of("worker-a", (_pod("worker-a", "1"),)) is not None
    assert pod_of("worker", (_pod("worker-a", "1"),)) is None
    assert pod_of("", (_pod("worker-a", "1"),)) is None
