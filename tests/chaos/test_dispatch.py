"""The order in which faults happen: apart on one replica, alone on a process, none lost."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.experiments import small
from tests.chaos.fake_system import FakeSystem
from tocsin.chaos.case import Case
from tocsin.chaos.run import run
from tocsin.chaos.spec_file import parse_experiment
from tocsin.chaos.store import load_case
from tocsin.core.faulting import Order, OrderStatus

EXPECT = {"within": "300ms", "recover_within": "5s"}


def _fault(name: str, kind: str, at: list[int], **more: Any) -> dict[str, Any]:
    clock = "request" if kind.startswith("actor") else "decode_step"
    return {
        "id": name,
        "kind": kind,
        "when": {"clock": clock, "at": at},
        "expect": EXPECT,
        **more,
    }


def _run(tmp_path: Path, system: FakeSystem, **changes: Any) -> tuple[int, Case]:
    code = run(parse_experiment(small(**changes)), system, tmp_path)
    return code, load_case((tmp_path / "latest").resolve())


def test_faults_of_one_replica_follow_one_another(tmp_path: Path) -> None:
    """All are due at once; each begins only after the one before was healed."""
    faults = [
        _fault(f"f{i}", kind, [5], target={"replica": 0})
        for i, kind in enumerate(("weight.bitflip", "kv.bitflip", "rope.table"))
    ]
    code, case = _run(tmp_path, FakeSystem(), faults=faults)
    assert code == 0
    in_order = sorted(case.occurrences, key=lambda one: one.fired_ns)
    for before, after in pairwise(in_order):
        assert after.ordered_ns > before.healed_ns


def test_a_fault_on_a_process_is_alone_and_leaves_enough_alive(tmp_path: Path) -> None:
    """Nothing else is open while a replica is killed, and the two kills are not at once."""
    faults = [
        _fault("each", "weight.bitflip", [5, 15, 25], target={"replica": "each"}),
        _fault("kill", "actor.kill", [5, 6], target={"replica": "each"}),
    ]
    code, case = _run(tmp_path, FakeSystem(), faults=faults, workload={"requests": 600})
    assert code == 0
    spans = [(one.planned.kind, one.ordered_ns, one.healed_ns) for one in case.occurrences]
    for kind, begin, end in spans:
        if kind == "actor.kill":
            others = [span for span in spans if span != (kind, begin, end)]
            assert not any(begin < other[2] and other[1] < end for other in others)


def test_no_more_faults_are_open_than_safety_allows(tmp_path: Path) -> None:
    """One at a time, although two replicas are free."""
    faults = [_fault("each", "weight.bitflip", [5], target={"replica": "each"})]
    safety = {"max_concurrent_faults": 1}
    code, case = _run(tmp_path, FakeSystem(), faults=faults, safety=safety)
    assert code == 0
    first, second = sorted(case.occurrences, key=lambda one: one.ordered_ns)
    assert second.ordered_ns > first.healed_ns


def test_a_node_is_not_killed_under_all_replicas_that_are_left(tmp_path: Path) -> None:
    """With it go all that are on it: where no other node has one, nothing keeps serving."""
    node_kill = _fault("node", "node.kill", [5]) | {"when": {"clock": "request", "at": [5]}}
    faults = [node_kill, _fault("other", "weight.bitflip", [5])]
    safety = {"scope": "cluster_destructive", "keep_alive": 1}
    experiment = small(faults=faults, safety=safety, system={"nodes": 2})
    for node, orders in (("another", 1), ("node", 0)):
        system = FakeSystem()
        system.fleet[1].node = node
        run(parse_experiment(experiment), system, tmp_path)
        case = load_case((tmp_path / "latest").resolve())
        found = {one.planned.fault: one.orders for one in case.occurrences}
        assert found == {"node": orders, "other": 1}  # who must wait for ever is in nobody's way


@dataclass(slots=True)
class Dying(FakeSystem):
    """The first replica that is given an order dies before it can carry it out."""

    died: str = ""

    def arm(self, replica: str, order: Order) -> None:
        FakeSystem.arm(self, replica, order)
        with self._lock:
            if not self.died:
                self.died = replica
                next(one for one in self.fleet if one.replica == replica).alive = False
                self._bear()


def test_a_fault_whose_replica_died_first_is_aimed_at_another_one(tmp_path: Path) -> None:
    """It fires there, and the record says where it was meant to."""
    system = Dying()
    code, case = _run(tmp_path, system, faults=[_fault("w", "weight.bitflip", [10])])
    assert code == 0
    one = case.occurrences[0]
    assert one.retargeted_from == system.died
    assert one.replica != system.died
    assert one.verified
    assert one.orders == 2


@dataclass(slots=True)
class Sticky(FakeSystem):
    """A fault stays until it is taken back: nobody repairs anything."""

    heal_after_ns: int = 2**62  # never by itself

    def disarm(self, occurrence: str) -> None:
        status = self.book[occurrence]
        if status.state == "fired":
            self.book[occurrence] = replace(status, state="healed", healed_ns=self.clock.now_ns())


@pytest.mark.parametrize(
    ("other", "most"),
    [
        pytest.param("weight.bitflip", 1, id="one-at-a-time-means-clients-too"),
        pytest.param("actor.kill", 4, id="what-must-be-alone-has-no-clients-beside-it"),
    ],
)
def test_a_fault_of_the_clients_is_a_fault_as_any_other(
    tmp_path: Path, other: str, most: int
) -> None:
    """A crowd does not come while another fault lasts: whose doing a loss was could not be told."""
    crowd = _fault("crowd", "load.thundering_herd", [], when={"clock": "request", "at": [60]})
    faults = [_fault("other", other, [2], expect=EXPECT | {"within": "3s"}), crowd]
    safety, slow = {"max_concurrent_faults": most}, FakeSystem(heal_after_ns=1_500_000_000)
    _, case = _run(tmp_path, slow, faults=faults, safety=safety, workload={"requests": 600})
    first, second = sorted(case.occurrences, key=lambda one: one.ordered_ns)
    assert first.healed_ns
    assert second.ordered_ns > first.healed_ns


def test_a_fault_that_nobody_repairs_is_taken_back_when_its_time_is_over(tmp_path: Path) -> None:
    """So that the next one on that replica gets its turn, also with checks off."""
    faults = [_fault(f"f{i}", "weight.bitflip", [5], target={"replica": 0}) for i in range(2)]
    code, case = _run(tmp_path, Sticky(), faults=faults)
    assert code == 0
    assert all(one.healed for one in case.occurrences)


def test_a_dead_process_takes_its_fault_with_it(tmp_path: Path) -> None:
    """Fired and then gone: there is nothing left to heal."""

    @dataclass(slots=True)
    class DiesOfIt(FakeSystem):
        def _fire(self, occurrence: str) -> None:
            FakeSystem._fire(self, occurrence)
            name, _ = self.given[occurrence]
            next(one for one in self.fleet if one.replica == name).alive = False
            self._bear()

        def _advance(self) -> None:
            if any(status.state == "fired" for status in self.book.values()):
                return
            FakeSystem._advance(self)

    code, case = _run(tmp_path, DiesOfIt(), faults=[_fault("w", "weight.bitflip", [5])])
    assert code == 0
    assert case.occurrences[0].state == "healed"
    assert "its process ended" in case.occurrences[0].error


def test_an_order_whose_answer_was_lost_is_taken_back(tmp_path: Path) -> None:
    """It got through and its fault is in force, although the controller was told otherwise."""

    @dataclass(slots=True)
    class Deaf(Sticky):
        def arm(self, replica: str, order: Order) -> None:
            FakeSystem.arm(self, replica, order)
            self._fire(order.occurrence)
            raise OSError("the answer was lost")

    system = Deaf()
    _, case = _run(tmp_path, system, faults=[_fault("w", "weight.bitflip", [5])])
    assert {one.state for one in system.book.values()} == {"healed"}
    assert case.occurrences[0].error == "the answer was lost"


def test_readings_that_raise_do_not_keep_a_fault_from_being_taken_back(tmp_path: Path) -> None:
    """The run breaks, and what it cannot look at it still takes back."""

    @dataclass(slots=True)
    class Blind(Sticky):
        def orders(self) -> dict[str, OrderStatus]:
            if any(one.state == "fired" for one in self.book.values()):
                raise RuntimeError("the board does not answer")
            return FakeSystem.orders(self)

    system = Blind()
    code, _ = _run(tmp_path, system, faults=[_fault("w", "weight.bitflip", [5])])
    assert code == 4
    assert {one.state for one in system.book.values()} == {"healed"}


def test_taking_back_is_tried_again_until_it_gets_through(tmp_path: Path) -> None:
    """The first two tries meet a line that is down."""
    tries = []

    @dataclass(slots=True)
    class Flaky(Sticky):
        def disarm(self, occurrence: str) -> None:
            tries.append(occurrence)
            if len(tries) < 3:
                raise OSError("the line is down")
            Sticky.disarm(self, occurrence)

    system = Flaky()
    code, case = _run(tmp_path, system, faults=[_fault("w", "weight.bitflip", [5])])
    assert len(tries) == 3
    assert case.occurrences[0].healed
    assert code == 0
