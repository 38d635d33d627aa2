"""One prompt, one answer, in whatever company."""

from dataclasses import replace

from tests.chaos.histories import clean_case, with_record
from tests.chaos.properties.told import CLEAN, conclusion, judge
from tocsin.chaos.case import Case
from tocsin.core.history import Outcome

ID = "isolation.metamorphic"


def _flipped(case: Case, place: int, index: int = 3) -> Case:
    chunks = list(case.records[place].chunks)
    chunks[index] = replace(chunks[index], token=chunks[index].token + 1)
    return with_record(case, place, chunks=chunks)


def test_the_one_that_differs_is_named_whoever_is_right() -> None:
    """Six of seven answers agree; the oracle is not asked."""
    wrong_oracle = {name: replace(a, tokens=a.tokens[:-1]) for name, a in CLEAN.golden.items()}
    verdict = judge(ID, _flipped(clean_case(golden=wrong_oracle), 6))
    assert [one.request_id for one in verdict.violations] == ["r00006"]
    assert verdict.violations[0].evidence["first_index"] == 3


def test_two_that_differ_are_settled_by_the_answer_given_alone() -> None:
    """One answer and the quiet engine's: the quiet one was in nobody's company."""
    case = _flipped(clean_case(records=CLEAN.records[:1], warmup=()), 0)
    assert [one.request_id for one in judge(ID, case).violations] == ["r00000"]


def test_labelled_and_unfinished_answers_are_not_compared() -> None:
    """They came from another kernel, or not at all."""
    case = _flipped(clean_case(), 0)
    assert conclusion(ID, case) == "fail"
    assert conclusion(ID, with_record(case, 0, degraded=("attention:sdpa",))) == "pass"
    assert conclusion(ID, with_record(case, 0, outcome=Outcome.CANCELLED)) == "pass"


def test_without_the_certificate_a_near_tie_may_turn_and_a_sure_token_may_not() -> None:
    """The margin of the quiet engine at the first difference decides."""
    vague = {"bit_exact": False, "tau": 1e-3}
    margins = {
        name: replace(answer, margins=(*answer.margins[:3], 5e-4, *answer.margins[4:]))
        for name, answer in CLEAN.golden.items()
    }
    near = clean_case(certificate=vague, golden=margins)
    assert conclusion(ID, _flipped(near, 0, 3)) == "pass"
    assert conclusion(ID, _flipped(near, 0, 4)) == "fail"
    assert conclusion(ID, _flipped(clean_case(golden=margins), 0, 3)) == "fail"


def test_a_prompt_that_was_answered_once_proves_nothing() -> None:
    """There is nothing to compare it with."""
    lone = clean_case(records=CLEAN.records[:1], warmup=(), golden={})
    assert conclusion(ID, lone) == "vacuous"


def test_the_company_is_told() -> None:
    """Answers that were always alone would prove little."""
    together = tuple(replace(one, t_invoke_ns=CLEAN.t_start_ns) for one in CLEAN.records)
    for records, company in ((CLEAN.records, "0 to 0"), (together, "39 to 39")):
        (note,) = judge(ID, clean_case(records=records, warmup=())).notes
        assert note == f"answers in the company of {company} other requests"
