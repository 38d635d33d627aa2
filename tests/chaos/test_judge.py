"""The verdict of a run, and the oracle's test of itself."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.chaos.histories import clean_case, clean_record, with_occurrence, with_record
from tocsin.chaos.case import Case, Conclusion, PropertyVerdict
from tocsin.chaos.contract import properties
from tocsin.chaos.judge import judge
from tocsin.chaos.junit import write_junit
from tocsin.chaos.selftest import clean_copy, self_test
from tocsin.chaos.sins import SINS
from tocsin.chaos.spec import CheckSpec
from tocsin.chaos.verdict import SinResult, exit_code_of, worst
from tocsin.core.history import Outcome


def test_every_sin_is_named_by_a_property_and_every_name_is_a_sin() -> None:
    """Sins and properties mirror each other."""
    named = {sin for unit in properties().values() for sin in unit.sins}
    assert named == set(SINS)
    assert len(SINS) >= 12


@cache
def _tested() -> dict[str, SinResult]:
    return {one.sin: one for one in self_test(clean_case(), properties())}


@pytest.mark.parametrize("sin", [*SINS])
def test_every_sin_is_caught_by_those_who_name_it_and_by_no_other(sin: str) -> None:
    """Planted in a copy of a clean run."""
    assert _tested()[sin].caught, _tested()[sin]
    assert _tested()[sin].meaning


def test_a_conditional_property_is_not_asked_where_it_says_nothing() -> None:
    """Without the certificate of bits logits are not compared; everything else still is."""
    vague = clean_case(certificate={"bit_exact": False, "tau": 1e-3})
    results = {one.sin: one for one in self_test(vague, properties())}
    assert set(SINS) - set(results) == {"wrong_logits"}
    assert all(one.caught for one in results.values())


def test_a_sin_that_finds_no_place_is_not_caught() -> None:
    """Every answer is to one prompt, so none can be given to another: that must be seen."""
    records = tuple(clean_record(i, 10**12 + i * 10**8, "p0") for i in range(40))
    results = {one.sin: one for one in self_test(clean_case(records=records), properties())}
    assert not results["replace_answer"].caught
    assert results["swap_token"].caught


def test_a_vacuous_conditional_property_counts_only_if_the_experiment_names_it() -> None:
    """A system without health pages is not red for it, unless somebody asks."""
    case = clean_case(spec=clean_case().spec.model_copy(update={"checks": ()}))
    units = {name: properties()[name] for name in ("golden.tokens", "health.honesty")}
    verdict = judge(case, units)
    assert [str(one.conclusion) for one in verdict.properties] == ["pass", "vacuous"]
    assert verdict.conclusion is Conclusion.PASS
    asked = case.spec.model_copy(update={"checks": (CheckSpec(id="health.honesty"),)})
    named = judge(replace(case, spec=asked), units)
    assert named.conclusion is Conclusion.VACUOUS
    assert "health.honesty is vacuous" in " ".join(named.reasons)
    quiet = replace(case, occurrences=())
    assert judge(quiet, {"recovery.bound": properties()["recovery.bound"]}).exit_code == 2


def test_conditional_properties_that_cannot_tell_count() -> None:
    """What the system offers and nobody recorded is unknown, and that is not green."""
    case = clean_case(facts={"observes": ["health"]})
    units = {name: properties()[name] for name in ("golden.tokens", "health.honesty")}
    assert judge(case, units).conclusion is Conclusion.UNKNOWN


@pytest.mark.parametrize("property_id", [*properties()])
def test_a_property_made_blind_makes_the_run_invalid(property_id: str) -> None:
    """It passes everything, so it is caught passing what it must not."""

    def blind(case: Case) -> PropertyVerdict:
        return PropertyVerdict(property_id, Conclusion.PASS, 1)

    units = dict(properties())
    units[property_id] = replace(units[property_id], judge=blind)
    verdict = judge(clean_case(), units)
    assert verdict.conclusion is Conclusion.INVALID
    assert verdict.exit_code == 3
    missed = {one.sin for one in verdict.self_test if not one.caught}
    assert missed == set(units[property_id].sins)


def test_a_property_that_flags_everything_is_no_oracle_either() -> None:
    """The clean copy must be found clean."""
    paranoid = dict(properties())
    unit = paranoid["kv.conservation"]
    sinful = unit.judge(replace(clean_case(), events=()))
    always = replace(
        sinful,
        conclusion=Conclusion.FAIL,
        violations=unit.judge(SINS["leak_page"].commit(_copy())).violations,
    )
    paranoid["kv.conservation"] = replace(unit, judge=lambda case: always)
    assert not any(one.caught for one in self_test(clean_case(), paranoid))


def test_a_property_that_breaks_is_unknown_for_itself_only() -> None:
    """One bug in a property does not cost the run its other verdicts."""

    def broken(case: Case) -> PropertyVerdict:
        raise ZeroDivisionError

    units = dict(properties())
    units["isolation.canary"] = replace(units["isolation.canary"], judge=broken)
    verdict = judge(clean_case(), units)
    by_id = {one.id: one.conclusion for one in verdict.properties}
    assert by_id["isolation.canary"] is Conclusion.UNKNOWN
    assert by_id["golden.tokens"] is Conclusion.PASS
    assert verdict.conclusion is Conclusion.INVALID


def test_the_self_test_works_on_a_run_in_which_much_went_wrong() -> None:
    """Sins are planted in those answers that are clean."""
    case = clean_case()
    for i in range(0, 40, 2):
        case = with_record(case, i, chunks=case.records[i].chunks[:3])
    verdict = judge(case)
    assert verdict.conclusion is Conclusion.FAIL
    assert verdict.silent_corruptions == 20
    assert verdict.to_json()["divergences"] == {
        "tie_flip": 0,
        "confident_flip": 0,
        "foreign": 0,
        "structural": 20,
    }
    assert all(one.caught for one in verdict.self_test)


def test_without_clean_answers_the_oracle_cannot_be_tested() -> None:
    """Nothing caught is nothing shown."""
    case = clean_case(records=clean_case().records[:4])
    assert not any(one.caught for one in self_test(case, properties()))


def test_a_run_whose_load_was_not_applied_is_invalid() -> None:
    """Half the requests were never sent."""
    verdict = judge(clean_case(records=clean_case().records[:20]))
    assert "load was not applied" in " ".join(verdict.reasons)
    assert verdict.exit_code == 3


def test_the_budget_lets_pass_what_it_allows_and_the_count_stays_true() -> None:
    """`silent_corruption: 1` with one corruption: no violation, but it is counted and noted."""
    case = clean_case()
    case = with_record(case, 0, chunks=case.records[0].chunks[:3], usage_tokens=3, text="")
    budget = case.spec.budget.model_copy(update={"silent_corruption": 1})
    allowed = judge(replace(case, spec=case.spec.model_copy(update={"budget": budget})))
    assert allowed.silent_corruptions == 1
    golden = next(one for one in allowed.properties if one.id == "golden.tokens")
    assert golden.conclusion is Conclusion.PASS
    assert "the budget allows 1" in golden.notes[0]
    strict = judge(case)
    assert strict.conclusion is Conclusion.FAIL


@pytest.mark.parametrize(
    ("conclusion", "aborted", "unhealed", "code"),
    [
        (Conclusion.PASS, False, False, 0),
        (Conclusion.FAIL, False, False, 1),
        (Conclusion.UNKNOWN, False, False, 2),
        (Conclusion.VACUOUS, False, False, 2),
        (Conclusion.INVALID, False, False, 3),
        (Conclusion.PASS, True, False, 4),
        (Conclusion.FAIL, True, True, 5),
        (Conclusion.PASS, False, True, 5),
    ],
)
def test_exit_codes(conclusion: Conclusion, aborted: bool, unhealed: bool, code: int) -> None:
    """What may still be broken comes first, then why the run stopped, then the verdict."""
    assert exit_code_of(conclusion, aborted=aborted, unhealed=unhealed) == code


def test_the_worst_conclusion_wins_and_nothing_is_vacuous() -> None:
    """fail > invalid > unknown > vacuous > pass."""
    order = ["fail", "invalid", "unknown", "vacuous", "pass"]
    for i, name in enumerate(order):
        assert worst([Conclusion(one) for one in order[i:]]) == name
    assert worst([]) is Conclusion.VACUOUS


def test_the_verdict_has_the_promised_keys() -> None:
    """design: verdict.json."""
    document = judge(clean_case()).to_json()
    assert {
        "verdict", "exit_code", "seed", "plan_digest", "engine", "model", "profile", "requests",
        "tokens", "silent_corruptions", "lost", "duplicated", "properties", "faults",
        "oracle_self_test",
    } <= set(document)  # fmt: skip
    assert {"id", "verdict", "checked", "violations"} <= set(document["properties"][0])
    assert {
        "id", "kind", "planned", "fired", "verified", "detected", "healed", "detectors",
        "mttd_ms_p99",
    } <= set(document["faults"][0])  # fmt: skip
    assert document["faults"][0]["detectors"] == ["state.weight_sum"]
    assert document["faults"][0]["mttd_ms_p99"] == pytest.approx(20.0)


def test_junit_fails_where_the_run_fails_and_skips_what_is_unknown(tmp_path: Path) -> None:
    """A green JUnit file means exit code 0."""
    lost = with_record(clean_case(), 0, outcome=Outcome.OPEN, error="\x00bad\x1btext")
    unhealed = with_occurrence(lost, state="unhealed", healed_ns=0, error="\x00")
    verdict = judge(unhealed)
    write_junit(tmp_path / "junit.xml", unhealed, verdict, "tocsin chaos run small --seed 5")
    suite = ET.parse(tmp_path / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert {"lifecycle.no_lost", "weights@0", "verdict"} <= failed
    skipped = {case.get("name") for case in suite if case.find("skipped") is not None}
    assert skipped <= {one.id for one in verdict.properties}
    assert suite.get("failures") == str(len(failed))


def _copy() -> Case:
    copy = clean_copy(clean_case())
    assert copy is not None
    return copy
