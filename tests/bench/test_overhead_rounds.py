"""The loop: pairs within a round, a new order each time, exact ratios, whole rounds only."""

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tocsin.bench.overhead.rounds import Rounds, Samples, Variant


@dataclass
class Machine:
    """A machine whose steps take as long as is said; load slows everything of a round alike."""

    now_s: float = 0.0
    load: float = 1.0
    log: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def variant(self, name: str, cost_s: float) -> Variant:
        def run() -> None:
            self.log.append(name)
            self.now_s += cost_s * self.load

        def prepare() -> None:
            self.log.append(f"prepare {name}")
            self.now_s += 100.0

        return Variant(name, "p", run, prepare)


def _rounds(machine: Machine, collect: Callable[[], object] = lambda: None) -> Rounds:
    return Rounds(random.Random(1), machine.clock, machine.clock, collect)


def _until(pairs: int) -> Callable[[Samples], bool]:
    return lambda samples: samples.pairs >= pairs


def test_the_ratio_is_to_the_bare_step_of_the_same_round() -> None:
    """A machine that gets slower from round to round changes no ratio."""
    machine = Machine()
    variants = [machine.variant("bare", 2.0), machine.variant("checked", 3.0)]

    def slower() -> None:
        machine.load *= 1.7

    samples = _rounds(machine, slower).run(variants, _until(7))
    assert samples.quartiles(1) == pytest.approx((1.5, 1.5, 1.5))
    assert samples.wall_median(1) == pytest.approx(1.5)
    assert samples.pairs == 7


def test_preparing_a_step_is_not_timed() -> None:
    """Setting the cache back takes a hundred seconds here, and the bare step two."""
    machine = Machine()
    samples = _rounds(machine).run([machine.variant("bare", 2.0)], _until(3))
    assert samples.bare_s() == pytest.approx((2.0, 2.0))


def test_a_round_begins_with_an_untimed_step() -> None:
    """Whoever comes first would else pay for the collection's cold caches."""
    machine = Machine()

    def settle() -> None:
        machine.log.append("settle")
        machine.now_s += 50.0

    rounds = _rounds(machine)
    samples = rounds.run([machine.variant("bare", 2.0)], _until(2), settle=settle)
    assert machine.log == ["settle", "prepare bare", "bare"] * 2
    assert samples.bare_s() == pytest.approx((2.0, 2.0))


def test_every_variant_runs_once_a_round_in_a_new_order() -> None:
    """No variant always follows the same one; the same seed gives the same orders."""

    def orders(seed: int) -> list[list[str]]:
        machine = Machine()
        names = ["a", "b", "c", "d"]
        rounds = Rounds(random.Random(seed), machine.clock, machine.clock, lambda: None)
        rounds.run([machine.variant(name, 1.0) for name in names], _until(12))
        ran = [word for word in machine.log if not word.startswith("prepare")]
        return [ran[i : i + 4] for i in range(0, len(ran), 4)]

    found = orders(1)
    assert all(sorted(order) == ["a", "b", "c", "d"] for order in found)
    assert len({tuple(order) for order in found}) > 6
    assert found == orders(1) != orders(2)


def test_an_interrupt_leaves_whole_rounds_only() -> None:
    """Each round that is kept has every variant, also when the last one was cut."""
    machine = Machine()
    bare = machine.variant("bare", 1.0)

    def interrupted() -> None:
        if machine.log.count("cut") == 3:
            raise KeyboardInterrupt
        machine.log.append("cut")
        machine.now_s += 2.0

    rounds = _rounds(machine)
    with pytest.raises(KeyboardInterrupt):
        rounds.run([bare, Variant("cut", "p", interrupted, lambda: None)], _until(9))
    assert rounds.samples.pairs == 3
    assert rounds.samples.quartiles(1) == pytest.approx((2.0, 2.0, 2.0))


def test_the_collector_rests_inside_a_round_and_works_between_two() -> None:
    """A collection in the middle of a step would be charged to whoever ran then."""
    machine = Machine()
    seen: list[bool] = []
    variant = Variant("bare", "p", lambda: seen.append(gc.isenabled()), lambda: None)
    collected: list[int] = []

    def tick() -> float:
        machine.now_s += 1.0
        return machine.now_s

    rounds = Rounds(random.Random(1), tick, tick, lambda: collected.append(1))
    assert gc.isenabled()
    rounds.run([variant], _until(4))
    assert seen == [False] * 4
    assert len(collected) == 4
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("costs", "resolved"),
    [((1.10, 1.11, 1.12, 1.13), True), ((0.98, 1.0, 1.02, 1.04), False), ((0.7, 0.8), True)],
)
def test_a_row_is_resolved_when_its_quartiles_are_closer_than_its_effect(
    costs: tuple[float, ...], resolved: bool
) -> None:
    """The width must be below the distance of the median from 1, on either side."""
    samples = Samples([[(1.0, 1.0), (cost, cost)] for cost in costs])
    assert samples.resolved(1) is resolved


def test_quartiles_are_those_of_the_rounds() -> None:
    """1, 2, 3, 4, 5 has the quartiles 2, 3 and 4; one round is all three."""
    samples = Samples([[(2.0, 1.0), (2.0 * k, 1.0)] for k in (5, 1, 4, 2, 3)])
    assert samples.quartiles(1) == (2.0, 3.0, 4.0)
    assert Samples([[(2.0, 1.0), (3.0, 1.0)]]).quartiles(1) == (1.5, 1.5, 1.5)
