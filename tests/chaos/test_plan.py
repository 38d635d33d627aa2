"""Plans: the same from the same seed, and each occurrence independent of all others."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.experiments import small
from tocsin.chaos.plan import as_json, from_json, make_plan, plan_table
from tocsin.chaos.spec_file import load_experiment, parse_experiment
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope


def _fault(name: str, **when: Any) -> dict[str, Any]:
    return {
        "id": name,
        "kind": "weight.bitflip",
        "when": {"clock": "decode_step", **when},
    }


@given(seed=st.integers(0, 2**40), removed=st.integers(0, 3))
def test_removing_a_fault_leaves_all_others_as_they_were(seed: int, removed: int) -> None:
    """So a plan can be shrunk to the occurrences that matter."""
    faults = [
        _fault(f"f{i}", every=7 + i, start=i, count=5, probability=0.7, jitter=3) for i in range(4)
    ]
    try:
        whole = make_plan(parse_experiment(small(seed=seed, faults=faults)))
        rest = make_plan(
            parse_experiment(small(seed=seed, faults=faults[:removed] + faults[removed + 1 :]))
        )
    except SpecError:  # all five occurrences of a fault were thrown out by their probability
        return
    kept = [as_json(one) for one in whole.occurrences if one.fault != f"f{removed}"]
    assert [as_json(one) for one in rest.occurrences] == kept


def test_the_same_seed_gives_the_same_digest_and_another_seed_another() -> None:
    """The digest names the run's folder."""
    one, two = load_experiment("first-light"), load_experiment("first-light")
    assert make_plan(one).digest == make_plan(two).digest
    other = make_plan(load_experiment("first-light", seed=1))
    assert other.digest != make_plan(one).digest


def test_the_profile_is_not_part_of_the_plan() -> None:
    """The same plan is run with checks on and off."""
    on, off = load_experiment("smoke"), load_experiment("smoke", profile="off")
    assert make_plan(on).digest == make_plan(off).digest


def test_each_replica_gets_its_own_occurrence_where_each_is_wanted() -> None:
    """`each` on two replicas doubles the ticks; the private seeds differ."""
    fault = {**_fault("f", at=[3, 9]), "target": {"replica": "each"}}
    plan = make_plan(parse_experiment(small(faults=[fault])))
    assert [(one.at, one.replica) for one in plan.occurrences] == [(3, 0), (3, 1), (9, 0), (9, 1)]
    assert len({one.seed for one in plan.occurrences}) == 4
    assert [one.id for one in plan.occurrences] == ["f@0", "f@1", "f@2", "f@3"]


@pytest.mark.parametrize(
    ("when", "ticks"),
    [
        ({"every": 10, "start": 5, "stop": 25}, [5, 15, 25]),
        ({"every": 10, "count": 3}, [0, 10, 20]),
        ({"every": 10, "start": 5, "stop": 100, "count": 2}, [5, 15]),
        ({"at": [9, 3]}, [3, 9]),
    ],
)
def test_series_and_lists_of_ticks(when: dict[str, Any], ticks: list[int]) -> None:
    """`stop` is a tick that may still be hit."""
    plan = make_plan(parse_experiment(small(faults=[_fault("f", **when)])))
    assert [one.at for one in plan.occurrences] == ticks


def test_jitter_stays_within_its_bounds_and_moves_something() -> None:
    """A hundred ticks, each within three of where it was meant."""
    fault = _fault("f", every=100, start=100, count=100, jitter=3)
    plan = make_plan(parse_experiment(small(faults=[fault])))
    shifts = [one.at - 100 * (one.n + 1) for one in plan.occurrences]
    assert set(shifts) == {-3, -2, -1, 0, 1, 2, 3}


def test_a_fault_without_an_occurrence_is_refused() -> None:
    """It could never fire, and the run would always be invalid."""
    with pytest.raises(SpecError, match="no occurrence"):
        make_plan(parse_experiment(small(faults=[_fault("f", at=[1], probability=0.0)])))


def test_occurrences_survive_the_manifest() -> None:
    """JSON and back."""
    for one in make_plan(load_experiment("first-light")).occurrences:
        assert from_json(as_json(one)) == one


def test_requests_that_a_client_sends_have_no_replica() -> None:
    """Malformed requests go to the front door."""
    plan = make_plan(load_experiment("first-light"))
    assert {one.replica for one in plan.occurrences if one.scope is Scope.CLIENT} == {0}


def test_the_table_names_every_occurrence_and_the_digest() -> None:
    """What `tocsin chaos plan` prints."""
    plan = make_plan(load_experiment("first-light"))
    table = plan_table(plan)
    assert plan.digest[:12] in table
    for one in plan.occurrences:
        assert one.id in table
