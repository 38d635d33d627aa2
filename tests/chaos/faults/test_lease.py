"""The lease: what is not renewed takes itself away, what broke is recorded, nothing hides."""

import re
from typing import Any

import pytest
import torch

from tocsin.chaos.contract import faults
from tocsin.core.faulting import Evidence, Order, OrderStatus


def _states(reports: list[OrderStatus]) -> list[str]:
    return [report.state for report in reports]


def test_an_order_waits_for_its_step(worker: Any) -> None:
    """The clock of a fault is the worker's step count, so a plan can be replayed."""
    worker.arm("weight.bitflip", after_step=2)
    worker.decode()
    worker.decode()
    assert worker.status().state == "armed"
    worker.decode()
    assert worker.status().state == "fired"
    assert worker.status().fired_step == 2


def test_a_lease_that_ends_before_the_fault_fires_disarms_it(worker: Any) -> None:
    """A dead controller's fault never fires late."""
    worker.arm("weight.bitflip", after_step=1, ttl_s=5.0)
    worker.decode()
    worker.clock.sleep(5.0)
    worker.decode()
    assert worker.status().state == "expired"
    worker.decode()
    assert _states(worker.reports) == ["armed", "expired"]
    assert worker.seams.listening == frozenset()


def test_a_lease_that_ends_after_the_fault_fired_heals_it(worker: Any) -> None:
    """The controller is killed (nobody renews): the damage goes away by itself."""
    weights = [parameter.detach().clone() for parameter in worker.model.parameters()]
    worker.arm("weight.bitflip", ttl_s=5.0)
    worker.decode()
    now = list(worker.model.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(weights, now, strict=True))
    worker.clock.sleep(5.0)
    worker.armoury.tick(worker.step)
    assert worker.status().state == "healed"
    assert all(torch.equal(a, b) for a, b in zip(weights, now, strict=True))


def test_an_idle_engine_expires_by_a_timer(worker: Any) -> None:
    """Without steps there are no ticks; `expire` ends leases all the same."""
    worker.arm("rope.table", ttl_s=5.0)
    worker.clock.sleep(4.9)
    worker.armoury.expire()
    assert worker.status().state == "armed"
    worker.clock.sleep(0.2)
    worker.armoury.expire()
    assert worker.status().state == "expired"


def test_renewing_keeps_every_order_alive(worker: Any) -> None:
    """Heartbeats of the controller move all deadlines."""
    worker.arm("rope.table", ttl_s=5.0, after_step=100)
    for _ in range(5):
        worker.clock.sleep(4.0)
        worker.armoury.renew(5.0)
        worker.armoury.expire()
    assert worker.status().state == "armed"


def test_a_repair_by_the_product_is_seen_without_healing(worker: Any) -> None:
    """The state becomes healed when the place reads right again, whoever repaired it."""
    weights = {name: p.detach().clone() for name, p in worker.model.named_parameters()}
    worker.arm("weight.bitflip")
    worker.decode()
    worker.armoury.tick(worker.step)
    assert worker.status().state == "fired"
    for name, parameter in worker.model.named_parameters():
        parameter.detach().copy_(weights[name])
    worker.clock.sleep(1.0)
    worker.armoury.tick(worker.step)
    assert worker.status().state == "healed"
    assert worker.status().healed_ns == worker.clock.now_ns()


def test_an_injector_that_does_nothing_is_seen_as_not_fired(worker: Any, substitute: Any) -> None:
    """The commonest false pass: a fault that changes nothing must never count as fired."""
    substitute("kv.bitflip", lambda call, target: Evidence("page 5", "0.5", "0.5"))
    worker.arm("kv.bitflip")
    worker.decode()
    worker.decode()
    status = worker.status()
    assert status.state == "armed"
    assert status.evidence is not None
    assert not status.evidence.fired
    assert "still reads 0.5" in status.error
    assert len(worker.reports) == 2


def test_a_call_that_does_not_offer_the_place_is_not_the_last(worker: Any, substitute: Any) -> None:
    """None means: not here, try the next call."""
    seen = []

    def third_time(call: object, target: object) -> Evidence | None:
        seen.append(call)
        return Evidence("x", "0", "1") if len(seen) == 3 else None

    substitute("kv.bitflip", third_time)
    worker.arm("kv.bitflip")
    for _ in range(5):
        worker.decode()
    assert worker.status().fired_step == 2
    assert len(seen) == 3


def test_a_broken_injector_is_recorded_and_does_not_break_serving(
    worker: Any, substitute: Any
) -> None:
    """An exception that is no part of the fault stays in the order's status."""

    def broken(call: object, target: object) -> Evidence:
        raise ZeroDivisionError("oops")

    substitute("kv.bitflip", broken)
    worker.arm("kv.bitflip")
    worker.decode()
    assert worker.status().state == "disarmed"
    assert "ZeroDivisionError: oops" in worker.status().error
    assert worker.errors == []


def test_an_injector_that_breaks_halfway_is_healed(worker: Any, substitute: Any) -> None:
    """What it changed before it broke is taken back too."""
    honest = faults()["kv.bitflip"].inject
    before = worker.pages.data.clone()

    def halfway(call: object, target: object) -> Evidence:
        honest(call, target)
        assert not torch.equal(worker.pages.data, before)
        raise ValueError("halfway")

    substitute("kv.bitflip", halfway)
    worker.arm("kv.bitflip", after_step=0)
    worker.decode()
    assert worker.status().state == "disarmed"
    assert worker.pages.verify(range(12)) == ()


def test_a_failing_heal_verify_leaves_the_order_unhealed(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that cannot be shown to be right is not called healed."""
    order = worker.arm("kv.bitflip")
    worker.decode()
    monkeypatch.setattr(faults()["kv.bitflip"], "verify_heal_with", lambda target: False)
    worker.armoury.disarm(order.occurrence)
    assert worker.status().state == "unhealed"
    monkeypatch.undo()
    worker.armoury.disarm(order.occurrence)
    assert worker.status().state == "healed"


def test_a_heal_that_raises_leaves_the_order_unhealed_with_the_reason(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is told why."""

    def broken(target: object) -> None:
        raise OSError("no way")

    order = worker.arm("kv.bitflip")
    worker.decode()
    monkeypatch.setattr(faults()["kv.bitflip"], "heal_with", broken)
    worker.armoury.disarm(order.occurrence)
    assert worker.status().state == "unhealed"
    assert "no way" in worker.status().error


def test_a_fault_of_several_calls_fires_that_often(worker: Any) -> None:
    """`times` counts the calls that are changed; afterwards the engine is left alone."""
    worker.arm("attn.backend_fail", times=3)
    for _ in range(5):
        worker.decode()
    assert len(worker.errors) == 3
    assert "(3 of 3" in str(worker.errors[-1])
    worker.armoury.tick(worker.step)
    assert worker.status().state == "healed"


def test_a_fallback_backend_is_left_alone(worker: Any) -> None:
    """Only the named backend fails: degradation must be possible."""
    worker.backend = "sdpa"
    worker.arm("attn.backend_fail")
    worker.decode()
    assert worker.errors == []
    assert worker.status().state == "armed"


@pytest.mark.parametrize(
    ("kind", "params", "ttl_s", "complaint"),
    [
        ("kv.no_such_fault", {}, 5.0, "kv.no_such_fault is no fault inside a worker"),
        ("actor.kill", {}, 5.0, "actor.kill is no fault inside a worker"),
        ("kv.bitflip", {"bits": 3}, 5.0, "params holds .'bits'."),
        ("kv.bitflip", {}, 0.0, "ttl_s is 0.0"),
        ("attn.backend_fail", {"times": 0}, 5.0, "times is 0"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused_in_words(
    worker: Any, kind: str, params: dict[str, Any], ttl_s: float, complaint: str
) -> None:
    """Refusal is a status that travels back, not an exception in the worker."""
    status = worker.armoury.arm(Order("x@0", kind, 1, 0, ttl_s, params))
    assert status.state == "disarmed"

    assert re.search(complaint, status.error)
    assert worker.reports == [status]
    assert worker.armoury.statuses() == (status,)


def test_an_occurrence_is_armed_once(worker: Any) -> None:
    """A repeated command (a retried message) does not repeat the fault."""
    order = worker.arm("weight.bitflip")
    worker.armoury.arm(order)
    worker.decode()
    worker.armoury.arm(order)
    worker.decode()
    assert _states(worker.reports) == ["armed", "fired"]


def test_an_occurrence_that_had_no_effect_may_be_ordered_again(worker: Any) -> None:
    """An expired order is over; the driver may try once more."""
    order = worker.arm("weight.bitflip", ttl_s=1.0)
    worker.clock.sleep(2.0)
    worker.armoury.expire()
    worker.armoury.arm(order)
    worker.decode()
    assert _states(worker.reports) == ["armed", "expired", "armed", "fired"]


def test_chaos_disable_refuses_and_takes_back(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment can switch chaos off at any time, for what is armed and what has fired."""
    worker.arm("weight.bitflip")
    worker.decode()
    monkeypatch.setenv("CHAOS_DISABLE", "1")
    worker.armoury.tick(worker.step)
    assert worker.status().state == "healed"
    refused = worker.armoury.arm(Order("late@0", "kv.bitflip", 1, 0, 5.0))
    assert refused.state == "disarmed"
    assert "CHAOS_DISABLE" in refused.error


@pytest.mark.parametrize("value", ["", "0", "no"])
def test_only_a_one_disables_chaos(
    worker: Any, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Other values neither disable nor enable anything."""
    monkeypatch.setenv("CHAOS_DISABLE", value)
    worker.arm("weight.bitflip")
    worker.decode()
    assert worker.status().state == "fired"


def test_disarm_all_empties_the_seams(worker: Any) -> None:
    """A draining worker leaves nothing behind."""
    worker.arm("weight.bitflip")
    worker.arm("kv.bitflip", after_step=9)
    worker.decode()
    worker.armoury.disarm_all()
    worker.armoury.expire()
    assert sorted(status.state for status in worker.armoury.statuses()) == ["disarmed", "healed"]
    assert worker.seams.listening == frozenset()


def test_disarming_the_unknown_is_no_error(worker: Any) -> None:
    """The driver takes back everything it ever ordered, also elsewhere."""
    worker.armoury.disarm("never@0")
    assert worker.reports == []
