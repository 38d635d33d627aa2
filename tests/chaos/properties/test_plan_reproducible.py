"""A seed is an experiment."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.experiments import small
from tests.chaos.histories import clean_case
from tests.chaos.properties.told import CLEAN, conclusion, first, judge
from tocsin.chaos.case import Case
from tocsin.chaos.plan import make_plan, redraw
from tocsin.chaos.spec_file import parse_experiment

ID = "plan.reproducible"


def _planned(**changes: Any) -> Case:
    one = replace(CLEAN.plan.occurrences[0], **changes)
    return clean_case(plan=replace(CLEAN.plan, occurrences=(one,)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 1}, "its seed is 1, the seed draws"),
        ({"replica": 7}, "its replica is 7"),
        ({"at": 99}, "its at is 99"),
        ({"id": "weights@9"}, "the seed does not draw it"),
    ],
)
def test_a_plan_is_what_its_seed_draws(changes: dict[str, Any], words: str) -> None:
    """Any change of a drawn value shows."""
    assert words in first(ID, _planned(**changes))


def test_what_the_plan_says_beside_the_draws_may_have_been_filled_in() -> None:
    """Expectations and parameters come from the catalogue of that time."""
    assert conclusion(ID, _planned(params={"bit": 3})) == "pass"


def test_a_plan_that_was_cut_down_passes_and_is_noted() -> None:
    """Delta debugging takes occurrences away and moves none."""
    faults = small()["faults"]
    faults[0]["when"] = {"clock": "decode_step", "at": [10, 20, 30], "jitter": 5}
    spec = parse_experiment(small(faults=faults))
    plan = make_plan(spec)
    cut = replace(plan, occurrences=plan.occurrences[1:2])
    verdict = judge(ID, clean_case(spec=spec, plan=cut))
    assert str(verdict.conclusion) == "pass"
    assert "2 drawn occurrences are not in the plan" in verdict.notes[0]
    drawn = redraw(spec, plan.occurrences)
    assert {one.id: one for one in drawn} == {one.id: one for one in plan.occurrences}


def _twice(**second: Any) -> Case:
    one = {"plan_digest": "p", "history_digest": "h", "outcomes": {"weights@0": "healed"}}
    return clean_case(facts={"second_run": {"first": one, "second": {**one, **second}}})


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"plan_digest": "q"}, "another plan digest"),
        ({"history_digest": "i"}, "another history digest"),
        ({"outcomes": {"weights@0": "unhealed"}}, "weights@0: ended healed in the first run"),
        ({"outcomes": {}}, "ended healed in the first run, None in the second"),
    ],
)
def test_a_second_run_must_be_the_same(second: dict[str, Any], words: str) -> None:
    """Plan, outcomes and, where it is told, the whole history."""
    assert words in first(ID, _twice(**second))


def test_two_equal_runs_pass_and_nothing_planned_is_vacuous() -> None:
    """Only one run was made: then only its plan is judged."""
    assert judge(ID, _twice()).checked == judge(ID, clean_case()).checked + 1
    assert conclusion(ID, _twice()) == "pass"
    assert conclusion(ID, clean_case(plan=replace(CLEAN.plan, occurrences=()))) == "vacuous"
