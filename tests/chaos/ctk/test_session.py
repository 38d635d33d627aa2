"""What a run under the Chaos Toolkit reports, step by step, without the Toolkit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.experiments import patient
from tocsin.chaos.ctk import control, provider
from tocsin.chaos.ctk.document import toolkit_document
from tocsin.chaos.ctk.session import VERDICT_NONE_YET, Session
from tocsin.chaos.spec_file import parse_experiment
from tocsin.core.errors import FaultDidNotFire, SpecError

SUBJECTS = "tests.chaos.ctk.subject"


def _document(subject: str = "honest", **changes: Any) -> dict[str, Any]:
    return toolkit_document(parse_experiment(patient(**changes)), f"{SUBJECTS}:{subject}")


def _session(store: Path, document: dict[str, Any], subject: str = "honest") -> Session:
    configuration = {"tocsin_system": f"{SUBJECTS}:{subject}", "tocsin_store": str(store)}
    control.configure_control(document, configuration)
    return control.current()


@pytest.fixture(autouse=True)
def _cleaned() -> Iterator[None]:
    """No session outlives its test."""
    yield
    control.cleanup_control()


def test_a_whole_run_hands_over_verdict_evidence_and_properties(tmp_path: Path) -> None:
    """The verdict is `not run yet` before, and ours afterwards."""
    _session(tmp_path, _document())
    assert provider.verdict() == VERDICT_NONE_YET
    assert provider.right_answers() == 3
    assert provider.steady("ok_ratio") == 1.0
    outcome = provider.workload()
    assert (outcome["verdict"], outcome["exit_code"]) == ("pass", 0)
    assert Path(outcome["report"]).is_file()
    assert provider.inject("weights@0")["after"] == "1"
    assert provider.inject("bad@0")["after"].startswith("answered 400")
    assert provider.check("golden.tokens")["verdict"] == "pass"
    assert provider.verdict() == "pass"
    assert "nothing is armed" in provider.heal()[-1]


def test_an_action_that_was_removed_takes_its_occurrence_out_and_moves_no_other(
    tmp_path: Path,
) -> None:
    """The document is a person's to change: one of two, or the last one of a fault."""
    bad = {"id": "bad", "kind": "batch.malformed", "when": {"clock": "request", "at": [4, 9]}}
    document = _document(faults=[patient()["faults"][0], bad])
    before = {one.id: one for one in _session(tmp_path, document).plan.occurrences}
    gone = ("weights@0", "bad@0")
    left = [one for one in document["method"] if not one["name"].startswith(gone)]
    assert len(left) == len(document["method"]) - 2
    session = _session(tmp_path, {**document, "method": left})
    assert session.plan.occurrences == (before["bad@1"],)


def test_a_fault_that_did_not_fire_fails_its_action(tmp_path: Path) -> None:
    """And the verdict is invalid, never a pass."""
    _session(tmp_path, _document(), "inert")
    provider.workload()
    with pytest.raises(FaultDidNotFire, match="weights@0"):
        provider.inject("weights@0")
    assert provider.verdict() in ("invalid", "fail")


def test_a_run_that_was_told_to_stop_is_aborted_and_interrupts_what_follows(
    tmp_path: Path,
) -> None:
    """Each activity after it is refused, but for healing and the verdict."""
    from chaoslib.exceptions import InterruptExecution

    session = _session(tmp_path, _document())
    session.stop("somebody pressed Ctrl-C")
    assert provider.workload()["exit_code"] == 4
    check = {"provider": {"func": "check"}}
    with pytest.raises(InterruptExecution, match="Ctrl-C"):
        control.before_activity_control(check)
    control.before_activity_control({"provider": {"func": "heal"}})
    journal: dict[str, Any] = {"status": "interrupted"}
    control.after_experiment_control({}, journal)
    assert journal["tocsin"]["exit_code"] == 4
    assert journal["status"] == "interrupted"


def test_an_unknown_system_is_one_line_that_names_the_setting(tmp_path: Path) -> None:
    """Told by the first activity that needs it."""
    control.configure_control(_document(), {"tocsin_system": "nowhere:at_all"})
    with pytest.raises(SpecError, match=r"configuration\.tocsin_system.*nowhere:at_all"):
        provider.right_answers()


@pytest.mark.parametrize("extensions", [[], [{"name": "tocsin"}], [{"name": "other"}]])
def test_a_document_without_our_experiment_is_a_spec_error(
    tmp_path: Path, extensions: list[Any]
) -> None:
    """With the command that makes a whole one."""
    _session(tmp_path, {**_document(), "extensions": extensions})
    with pytest.raises(SpecError, match="chaos export"):
        provider.right_answers()


def test_without_the_control_every_activity_says_what_is_missing() -> None:
    """It makes the session, so nothing can go on without it."""
    with pytest.raises(SpecError, match="put it back"):
        provider.verdict()


@pytest.mark.parametrize(
    ("op", "limit", "value", "holds"),
    [(">=", 0.9, 0.9, True), ("<", 5.0, 5.0, False), ("<", 5.0, None, False)],
)
def test_a_tolerance_is_strict_and_no_data_never_meets_it(
    op: str, limit: float, value: float | None, holds: bool
) -> None:
    """The nearest miss of each is refused."""
    assert provider.holds(op, limit, value) is holds
