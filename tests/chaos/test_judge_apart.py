"""A property that dies in its own process costs the run that one verdict."""

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.bad_properties import BAD, STOP
from tests.chaos.histories import clean_case
from tocsin.chaos import judge_apart
from tocsin.chaos.case import Case, Conclusion
from tocsin.chaos.contract import Property, properties
from tocsin.chaos.examine import Examined, examine_all
from tocsin.chaos.judge import judge
from tocsin.chaos.judge_apart import TINY_TOKENS, Limits, examine_apart, examine_as_fits
from tocsin.core.history import Chunk

LIMITS = Limits(memory_bytes=2**28)
SHORT = Limits(memory_bytes=2**28, patience_s=0.5)
DEATHS = {
    "bad.raises": "ran out of memory",
    "bad.greedy": "ran out of memory",
    "bad.leaves": "exit code 3",
    "bad.exits": "SystemExit",
    "bad.late": "exit code 5",
}
_DYING = {name: unit for name, unit in BAD.items() if name != "bad.loops"}


@pytest.fixture(scope="module")
def apart() -> dict[str, Examined]:
    """Every bad property and the declared ones, each in a process of its own."""
    return examine_apart(clean_case(), {**_DYING, **properties()}, LIMITS)


@pytest.mark.parametrize("property_id", [*DEATHS])
def test_one_that_dies_is_unknown_and_says_how(
    apart: dict[str, Examined], property_id: str
) -> None:
    """By its memory, its exit, its time: never a lost run."""
    verdict = apart[property_id].verdict
    assert verdict.conclusion is Conclusion.UNKNOWN
    assert DEATHS[property_id] in verdict.reason


def test_one_that_never_ends_is_killed_when_its_time_is_over() -> None:
    """It says so; nothing is left behind."""
    found = examine_apart(clean_case(), {"bad.loops": BAD["bad.loops"]}, SHORT)
    assert found["bad.loops"].verdict.conclusion is Conclusion.UNKNOWN
    assert "did not end in 0.5 s" in found["bad.loops"].verdict.reason


def test_the_others_are_judged_as_in_one_process(apart: dict[str, Examined]) -> None:
    """Same verdicts, same objections to the planted sins, in the order in which they were given."""
    here = examine_all(clean_case(), properties())
    assert {name: apart[name] for name in here} == here
    assert [*apart] == [*_DYING, *properties()]
    assert apart["bad.well"].verdict.checked == 40


def test_one_that_dies_of_the_run_alone_has_shown_that_it_can_say_no(
    apart: dict[str, Examined],
) -> None:
    """Its self-test came first: the run is in doubt for it, and not invalid."""
    assert apart["bad.late"].objections
    assert not apart["bad.leaves"].objections


def test_a_run_with_a_dead_property_is_unknown_and_keeps_the_other_verdicts() -> None:
    """Exit 2: in doubt, with the reason."""
    units = {name: properties()[name] for name in ("golden.tokens", "lifecycle.no_lost")}
    units["bad.late"] = BAD["bad.late"]
    verdict = judge(clean_case(), units, lambda case, them: examine_apart(case, them, LIMITS))
    assert verdict.exit_code == 2
    assert [str(one.conclusion) for one in verdict.properties] == ["pass", "pass", "unknown"]
    assert "exit code 5" in " ".join(verdict.reasons)
    assert all(one.caught for one in verdict.self_test)


def test_when_the_judging_process_itself_dies_every_verdict_is_unknown() -> None:
    """A case that cannot be read back ends it before the first property."""

    class Unreadable:
        def __reduce__(self) -> tuple[Any, ...]:
            return (exit, (9,))

    case = replace(clean_case(), facts={"what": Unreadable()})
    found = examine_apart(case, {"bad.well": BAD["bad.well"]}, LIMITS)
    assert found["bad.well"].verdict.conclusion is Conclusion.UNKNOWN
    assert "exit code 9" in found["bad.well"].verdict.reason


def test_where_no_process_can_be_started_the_run_is_judged_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine has no room for one: serial, and still a verdict."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    found = examine_apart(clean_case(), {"bad.well": BAD["bad.well"]}, LIMITS)
    assert found["bad.well"].verdict.conclusion is Conclusion.PASS


@pytest.mark.parametrize(("tokens", "expected"), [(-1, "here"), (0, "apart")])
def test_only_a_tiny_history_is_judged_here(
    monkeypatch: pytest.MonkeyPatch, tokens: int, expected: str
) -> None:
    """The limit is a number of tokens."""

    def named(name: str) -> Any:
        return lambda case, units: name

    monkeypatch.setattr(judge_apart, "examine_all", named("here"))
    monkeypatch.setattr(judge_apart, "examine_apart", named("apart"))
    chunks = [Chunk(i, i, 1, "") for i in range(TINY_TOKENS + tokens)]
    record = replace(clean_case().records[0], chunks=chunks)
    assert examine_as_fits(clean_case(records=(record,)), {}) == expected


def test_a_judging_process_loads_no_tensor_library() -> None:
    """That would take longer than to judge a million requests."""
    code = (
        "import sys, tocsin.chaos.judge_apart; from tocsin.chaos.contract import properties; "
        "properties(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("property_id", ["bad.raises", "bad.exits"])
def test_in_one_process_too_one_that_breaks_is_unknown_for_itself(property_id: str) -> None:
    """Only memory and `os._exit` need a process of their own."""
    units: dict[str, Property] = {name: BAD[name] for name in (property_id, "bad.well")}
    found = examine_all(clean_case(), units)
    assert found[property_id].verdict.conclusion is Conclusion.UNKNOWN
    assert found["bad.well"].verdict.conclusion is Conclusion.PASS


def test_in_one_process_one_that_never_ends_is_left_behind() -> None:
    """Its thread cannot be killed, the run goes on without it."""
    try:
        found = examine_all(clean_case(), {"bad.loops": BAD["bad.loops"]}, patience_s=0.1)
    finally:
        STOP.set()
    assert "did not end in 0.1 s" in found["bad.loops"].verdict.reason


def test_a_case_is_the_same_on_the_other_side_of_a_pipe() -> None:
    """What is judged there is what was recorded here."""
    case: Case = pickle.loads(pickle.dumps(clean_case()))
    assert case == clean_case()
