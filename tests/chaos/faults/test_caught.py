"""With checks on each fault inside a worker is seen by a detector that it names, and repaired.

The same requests, model and faults as in `test_effect`, where the answers come out wrong.
"""

from typing import Any

import pytest

from tests.chaos.faults.serving import AFTER_STEP, Served, right, serve
from tests.chaos.faults.test_effect import VARIANTS
from tocsin.chaos.contract import faults
from tocsin.core.faulting import Scope
from tocsin.core.requests import Finish
from tocsin.core.terms import Profile

pytestmark = pytest.mark.slow

WORKER_FAULTS = [unit.id for unit in faults().values() if unit.scope is Scope.WORKER]


LATER = {
    "kv.leak_refcount": 32,  # the audit's turn
    "kv.prefix_hash_collision": 40,  # the next request that begins like an earlier one
    "kv.eviction_storm": 64,
    "actor.slow": 12,
    "actor.gil_lock": 12,
    "clock.jump": 1,
    "clock.skew": 12,
}
"""Steps after which a fault is seen that nothing in its own step can show."""


@pytest.fixture(scope="module")
def clean() -> Served:
    """The right answers, by the engine with checks off."""
    return right()


def _assert_contained(clean: Served, served: Served, kind: str) -> None:
    """Seen in the step in which it fired, nothing wrong released, nothing left behind."""
    assert served.status is not None
    assert served.status.fired_step >= AFTER_STEP
    seen = {
        name: step for name, step in served.detectors().items() if name in faults()[kind].expect
    }
    assert seen
    # The engine counts a step before it runs it, the order's clock is the count before.
    delay = min(seen.values()) - served.status.fired_step - 1
    assert 0 <= delay <= LATER.get(kind, 0)
    assert served.unverified == 0
    assert served.answers == clean.answers
    assert set(served.finishes.values()) == {Finish.LENGTH}
    assert served.wrong_pages == ()
    assert served.problems == []
    assert served.status.state == "healed", served.status.error


def test_checks_are_silent_where_there_is_no_fault_and_change_no_token(clean: Served) -> None:
    """The nearest miss: the same run without a fault."""
    served = serve(profile=Profile.FULL)
    assert served.detectors() == {}
    assert served.unverified == 0
    assert served.answers == clean.answers


@pytest.mark.parametrize("kind", WORKER_FAULTS)
def test_a_fault_is_seen_in_its_step_and_no_wrong_token_leaves(kind: str) -> None:
    """Detected by a detector that it names, repaired without the driver, answers bit-identical."""
    _assert_contained(right(kind), serve(kind, profile=Profile.FULL), kind)


@pytest.mark.parametrize(("kind", "params"), VARIANTS)
def test_its_other_kinds_are_seen_too(clean: Served, kind: str, params: dict[str, Any]) -> None:
    """Each kind that an experiment may ask for."""
    _assert_contained(clean, serve(kind, profile=Profile.FULL, **params), kind)


@pytest.mark.parametrize("bit", [0, 22, 31])
@pytest.mark.parametrize("tensor", ["k", "v"])
def test_any_bit_of_a_stored_key_or_value_is_seen(clean: Served, tensor: str, bit: int) -> None:
    """Also those that no token shows: a content sum has no blind bit."""
    served = serve("kv.bitflip", profile=Profile.FULL, tensor=tensor, bit=bit)
    _assert_contained(clean, served, "kv.bitflip")


@pytest.mark.parametrize(
    "kind",
    [
        "kv.page_alias",
        "kv.poisoned_page",
        "kv.prefix_hash_collision",
        "kv.write_race",
        "kv.leak_refcount",
        "batch.oob_token",
    ],
)
def test_faults_of_state_are_seen_under_the_guard_profile(kind: str) -> None:
    """The light profile keeps the checks that need no arithmetic."""
    _assert_contained(right(kind), serve(kind, profile=Profile.GUARD), kind)
