"""Two recorded runs: what changed is told, and only that; text, JSON and page say the same."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin.chaos.compare.comparing import compare_runs
from tocsin.chaos.compare.model import Change
from tocsin.chaos.compare.render import render_comparison
from tocsin.chaos.compare.text import comparison_text
from tocsin.core.errors import SpecError

Runs = dict[str, Path]


def test_a_run_compared_with_itself_is_the_same_in_everything(made: Runs) -> None:
    """No change, no worsening, every paired ratio exactly one."""
    found = compare_runs(made["clean"], made["clean"])
    assert found.same_plan
    assert (found.worse, found.differences) == ((), ())
    changes = {one.change for one in (*found.properties, *found.faults)}
    assert changes == {Change.SAME}
    ratios = [one for one in found.paired if one.phase == "whole run"]
    assert [one.measure for one in ratios] == ["first token", "between tokens", "whole answer"]
    for one in ratios:
        assert one.ratio == one.low == one.high == pytest.approx(1.0)


def test_a_run_with_wrong_answers_is_worse_and_says_in_what(made: Runs) -> None:
    """Verdict, properties, harm and the fault that nobody saw: each once, gravest first."""
    found = compare_runs(made["clean"], made["wrong"])
    said = " | ".join(found.worse)
    assert found.worse[0].startswith("the run ended with exit code 1 (fail)")
    for words in ("golden.tokens: pass, then fail", "silent corruptions: 0, then", "weights: det"):
        assert words in said
    changed = {one.id: one.change for one in found.properties if one.change is not Change.SAME}
    assert changed["golden.tokens"] is Change.WORSE
    fault = next(one for one in found.faults if one.id == "weights")
    assert (fault.change, fault.a and fault.a.detected, fault.b and fault.b.detected) == (
        Change.WORSE,
        1,
        0,
    )


def test_the_other_way_round_it_is_better(made: Runs) -> None:
    """What was wrong before and holds now is no reproach."""
    found = compare_runs(made["wrong"], made["clean"])
    clocked = ("times as long", "time to detect", "recovery")  # depends on the machine
    assert [line for line in found.worse if not any(words in line for words in clocked)] == []
    assert Change.BETTER in {one.change for one in found.properties}


def test_runs_of_different_plans_do_not_pair_up(made: Runs) -> None:
    """Another seed sends other requests; the settings that differ are named."""
    found = compare_runs(made["clean"], made["other"])
    assert not found.same_plan
    assert found.paired == ()
    assert {name for name, _, _ in found.differences} == {"name", "seed"}


def test_each_phase_is_told_for_both_runs(made: Runs) -> None:
    """The whole run, and before, during and after the faults."""
    found = compare_runs(made["clean"], made["wrong"])
    assert [one.name for one in found.phases] == ["whole run", "before", "during", "after"]
    whole = found.phases[0]
    assert whole.a is not None
    assert whole.a.requests > 30
    assert whole.a.failed_share == 0.0
    assert sum(one.a.requests for one in found.phases[1:] if one.a) == whole.a.requests


def test_text_json_and_page_hold_the_same_worsenings(made: Runs) -> None:
    """Whichever a person looks at."""
    found = compare_runs(made["clean"], made["wrong"])
    text, page = comparison_text(found), render_comparison(found)
    told = json.loads(json.dumps(found.to_json()))
    assert told["worse"] == list(found.worse)
    for line in found.worse:
        assert line in text
        assert line.replace("'", "&#39;") in page
    assert "B is worse (same plan)" in text


def test_the_page_loads_nothing_and_runs_nothing(made: Runs) -> None:
    """Its policy admits its own style alone."""
    page = render_comparison(compare_runs(made["clean"], made["wrong"]))
    assert "default-src &#39;none&#39;" in page
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_hostile_text_is_escaped(made: Runs, altered: Callable[..., Path]) -> None:
    """A verdict's words come from answers of a model."""
    b = altered("clean", sentence="<img src=x onerror=alert(1)>\u202e")
    page = render_comparison(compare_runs(made["clean"], b))
    assert "<img" not in page
    assert "\u202e" not in page


@pytest.mark.parametrize("missing", ["manifest.json", "history.parquet", "verdict.json"])
def test_a_half_written_run_is_a_spec_error(
    made: Runs, altered: Callable[..., Path], missing: str
) -> None:
    """It names the folder, whichever file is missing."""
    b = altered("clean")
    (b / missing).unlink()
    with pytest.raises(SpecError, match=b.name):
        compare_runs(made["clean"], b)
