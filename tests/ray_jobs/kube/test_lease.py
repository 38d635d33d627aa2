"""One chaos run at a time: a Lease is taken, kept, lost and given back."""

from collections.abc import Callable

import pytest

from tests.ray_jobs.kube.fake_api import LEASE, NAMESPACE, FakeApi
from tocsin.core.clock import ManualClock
from tocsin.core.errors import ChaosForbidden
from tocsin.ray_jobs.kube.api import KubeApi
from tocsin.ray_jobs.kube.lease import DURATION_S, KubeLease

NOW_S = 1_700_000_000.0
RECENTLY, LONG_AGO = "2023-11-14T22:13:10.000000Z", "2023-11-14T12:00:00.000000Z"


class Clock(ManualClock):
    """A clock that may do something while somebody sleeps."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.meanwhile()

    def wall_s(self) -> float:
        return NOW_S + self.now_ns() / 1e9


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(client: KubeApi, server: FakeApi, clock: Clock) -> KubeLease:
    server.lease()
    return KubeLease(client, NAMESPACE, LEASE, "driver/1", clock)


def _spec(server: FakeApi) -> dict[str, object]:
    return dict(server.leases[LEASE]["spec"])


def test_a_free_lease_is_taken_and_given_back(lease: KubeLease, server: FakeApi) -> None:
    """The chart's object stays; only who holds it changes."""
    lease.acquire()
    assert _spec(server) == {
        "holderIdentity": "driver/1",
        "leaseDurationSeconds": DURATION_S,
        "renewTime": "2023-11-14T22:13:20.000000Z",
        "acquireTime": "2023-11-14T22:13:20.000000Z",
        "leaseTransitions": 1,
    }
    assert not lease.why_not()
    lease.release()
    assert "holderIdentity" not in _spec(server)
    assert {method for method, path in server.asked} == {"GET", "PUT"}


def test_a_lease_that_is_not_there_is_made(lease: KubeLease, server: FakeApi) -> None:
    """Without the chart's object the verb `create` is needed, and its lack is told."""
    server.leases.clear()
    server.fail("POST", "/apis", (403, {"message": "cannot create resource leases"}))
    with pytest.raises(ChaosForbidden, match="cannot create resource leases"):
        lease.acquire()
    lease.acquire()
    assert _spec(server)["holderIdentity"] == "driver/1"


def test_a_lease_that_somebody_renews_is_not_taken(
    lease: KubeLease, server: FakeApi, clock: Clock
) -> None:
    """He is seen to be alive, whatever his clock says."""
    server.lease(holderIdentity="other/2", leaseDurationSeconds=30, renewTime=RECENTLY)

    def renews() -> None:
        server.leases[LEASE]["spec"]["renewTime"] = "2023-11-14T22:13:22.000000Z"

    clock.meanwhile = renews
    with pytest.raises(ChaosForbidden, match="held by other/2, who renews it"):
        lease.acquire()
    assert _spec(server)["holderIdentity"] == "other/2"


def test_a_lease_that_nobody_renews_is_taken_after_its_time(
    lease: KubeLease, server: FakeApi, clock: Clock
) -> None:
    """Its holder was killed: it is watched for its whole time by our clock alone."""
    server.lease(holderIdentity="other/2", leaseDurationSeconds=30, renewTime=RECENTLY)
    lease.acquire()
    assert 30 <= clock.now_ns() / 1e9 <= 32
    assert _spec(server)["holderIdentity"] == "driver/1"


def test_a_lease_of_long_ago_is_taken_at_once(
    lease: KubeLease, server: FakeApi, clock: Clock
) -> None:
    """Ten hours are more than any two clocks differ by."""
    server.lease(holderIdentity="other/2", leaseDurationSeconds=30, renewTime=LONG_AGO)
    lease.acquire()
    assert clock.now_ns() == 0


def test_of_two_that_take_it_at_once_one_has_it(lease: KubeLease, server: FakeApi) -> None:
    """The version that was read is written over, no other one."""
    server.fail("PUT", "/apis", (409, {"message": "the object has been modified"}))
    with pytest.raises(ChaosForbidden, match="another run was quicker"):
        lease.acquire()


def test_renewals_keep_it(lease: KubeLease, server: FakeApi, clock: Clock) -> None:
    """For as long as the run lasts."""
    lease.acquire()
    for _ in range(10):
        clock.sleep(10.0)
        lease.renew()
        assert not lease.why_not()
    assert _spec(server)["renewTime"] == "2023-11-14T22:15:00.000000Z"
    assert _spec(server)["leaseTransitions"] == 1


def test_who_cannot_renew_stops_before_another_may_begin(
    lease: KubeLease, server: FakeApi, clock: Clock
) -> None:
    """One failed renewal is nothing; near the end of its time the run gives up, and says why."""
    lease.acquire()
    server.fail("GET", "/apis", *[(500, {"message": "etcd is gone"})] * 3)
    clock.sleep(10.0)
    lease.renew()
    assert not lease.why_not()
    clock.sleep(13.0)
    lease.renew()
    reason = lease.why_not()
    assert "not renewed for 23 s" in reason
    assert "etcd is gone" in reason
    assert clock.now_ns() / 1e9 < DURATION_S


@pytest.mark.parametrize(("taker", "said"), [("other/2", "other/2"), ("", "nobody")])
def test_a_lease_that_another_one_took_is_lost_for_good(
    lease: KubeLease, server: FakeApi, taker: str, said: str
) -> None:
    """It is not written over, also not when it is given back."""
    lease.acquire()
    server.leases[LEASE]["spec"]["holderIdentity"] = taker
    lease.renew()
    assert f"now held by {said}" in lease.why_not()
    lease.release()
    assert server.leases[LEASE]["spec"]["holderIdentity"] == taker
