"""Each rung of the ladder on the engine: right cause, right remedy, and the clean answer's bits."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.checker.conftest import build
from tocsin.bench.recovery import __main__ as command
from tocsin.bench.recovery.desk import VICTIM, Desk
from tocsin.bench.recovery.measure import as_golden, attributed, measure
from tocsin.bench.recovery.rungs import RUNGS, Rung
from tocsin.bench.recovery.schema import Recovery, RecoveryRow, table_of, write
from tocsin.core.errors import ContractError, FaultDidNotFire
from tocsin.core.requests import Finish
from tocsin.core.terms import Action, BreakerState, Cause


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    torch.set_num_threads(1)
    made = Desk(build("llama", initializer_range=0.3), None, vocabulary=150, tokens=6)
    yield made
    made.close()


def test_every_rung_attributes_its_fault_and_gives_the_clean_answer(desk: Desk) -> None:
    """Proves the whole ladder on one engine: no rung leaves anything behind for the next."""
    report = measure(desk, 1, model_name="tiny")
    assert [row.rung for row in report.rows] == [rung.id for rung in RUNGS]
    for row in report.rows:
        assert (row.detected, row.attributed, row.as_golden) == (1, 1, 1), row
        assert row.mttd_ms_median is not None
        assert row.mttr_ms_median is not None
        assert row.mttd_ms_median >= 0
        assert 0 < row.mttr_ms_median <= (row.mttr_ms_max or 0)
    assert report.good
    rows = {row.rung: row for row in report.rows}
    assert rows["transient"].runs_max == 2
    assert rows["persistent"].runs_max == 3
    assert all(rows[name].steps_more_max <= 0 for name in ("transient", "persistent", "legitimate"))
    assert rows["state_page"].steps_more_max > 0  # it is computed from its start again
    assert desk.breaker.state() is BreakerState.CLOSED


def one(rung_id: str) -> Rung:
    return next(rung for rung in RUNGS if rung.id == rung_id)


@pytest.mark.parametrize(
    ("rung_id", "check", "cause", "action"),
    [
        ("transient", "numerical.linear_checksum", Cause.TRANSIENT, Action.RELEASE),
        ("persistent", "numerical.finite", Cause.PERSISTENT, Action.RELEASE),
        ("state_page", "state.kv_page_sum", Cause.STATE, Action.RECOMPUTE),
        ("state_weight", "state.weight_sum", Cause.STATE, Action.RELEASE),
        ("legitimate", "numerical.rms_range", Cause.LEGITIMATE, Action.RELEASE),
        ("unresolved", "numerical.linear_checksum", Cause.UNRESOLVED, Action.REFUSE),
    ],
)
def test_a_rung_names_what_it_found_and_for_whom(
    desk: Desk, rung_id: str, check: str, cause: Cause, action: Action
) -> None:
    """Proves attribution: cause, action, the check that saw it, and the request that it hit."""
    before, undo = one(rung_id).arm(desk)
    round_ = desk.serve(before)
    undo()
    (failure,) = round_.failures
    assert (failure.cause, failure.action) == (cause, action)
    assert check in {finding.check for finding in failure.findings}
    assert any(request.endswith(f"-{VICTIM}") for request in failure.request_ids)
    if rung_id == "state_weight":
        assert "up_proj" in failure.findings[-1].module + failure.findings[0].module
    if rung_id == "state_page":
        assert failure.pages
    if rung_id in ("transient", "unresolved"):
        assert len(failure.request_ids) == 1  # the neighbours are not drawn in


def test_a_round_is_judged_by_what_the_client_saw(desk: Desk) -> None:
    """Proves that the judges can say no: other tokens, other endings, another cause."""
    golden = desk.serve()
    wrong = desk.serve()
    transient, refused = one("transient"), one("unresolved")
    assert as_golden(transient, golden, wrong)
    assert not attributed(transient, wrong)  # there was no failure at all
    assert not as_golden(refused, golden, wrong)  # the victim was not refused
    wrong.finishes[0] = Finish.REFUSED
    assert not as_golden(transient, golden, wrong)
    wrong.finishes[0] = golden.finishes[0]
    wrong.answers[2][-1] += 1
    assert not as_golden(transient, golden, wrong)


def test_a_fault_that_does_nothing_is_no_result(desk: Desk) -> None:
    """Proves that a rung whose fault never fired is an error, not a success."""
    nothing = (lambda: None, lambda: None)
    idle = Rung("idle", "", Cause.TRANSIENT, Action.RELEASE, lambda desk: nothing)
    with pytest.raises(FaultDidNotFire, match="idle did nothing"):
        measure(desk, 1, model_name="tiny", rungs=[idle])


def test_rounds_that_are_not_clean_judge_nothing(desk: Desk) -> None:
    """Proves that an alarm without a fault stops the measurement."""
    _, undo = one("legitimate").arm(desk)
    with pytest.raises(ContractError, match="two clean rounds gave 2 alarms"):
        measure(desk, 1, model_name="tiny")
    undo()


def row(**changed: object) -> RecoveryRow:
    facts: dict[str, object] = {
        "rung": "transient", "remedy": "run again", "cause": "transient", "trials": 5,
        "detected": 5, "attributed": 5, "as_golden": 5, "runs_max": 2, "steps_more_max": 0,
        "mttd_ms_median": 1.5, "mttr_ms_median": 20.25, "mttr_ms_max": 30.0,
    }  # fmt: skip
    return RecoveryRow.model_validate({**facts, **changed})


def test_the_report_is_written_whole_and_read_by_people(tmp_path: Path) -> None:
    """Proves file and table, with a rung that was never detected."""
    none = dict.fromkeys(("mttd_ms_median", "mttr_ms_median", "mttr_ms_max"))
    unseen = row(rung="legitimate", detected=0, attributed=0, **none)
    report = Recovery(model="tiny", clean_step_ms=3.25, rows=(row(), unseen))
    path = tmp_path / "bench" / "recovery.json"
    write(path, report)
    assert Recovery.model_validate(json.loads(path.read_text())) == report
    assert [file.name for file in path.parent.iterdir()] == ["recovery.json"]
    lines = table_of(report).splitlines()
    assert lines[1].split()[-3:] == ["1.5", "20.2", "30.0"]
    assert lines[2].split()[-3:] == ["-", "-", "-"]
    assert "3.2 ms" in lines[3]
    assert not report.good


def test_an_unknown_rung_is_one_line(tmp_path: Path) -> None:
    """Proves the command's own refusal, before a model is loaded."""
    result = CliRunner().invoke(command.app, ["--rung", "sixth", "--output", str(tmp_path / "x")])
    assert result.exit_code == command.EXIT_SPEC
    assert "known are transient" in result.output
    assert not (tmp_path / "x").exists()


@pytest.mark.model
@pytest.mark.slow
def test_the_command_measures_the_ladder_on_the_real_model(tmp_path: Path) -> None:
    """Proves the command: table, file, exit code 0, on SmolLM2."""
    result = CliRunner().invoke(
        command.app, ["--trials", "1", "--output", str(tmp_path / "r.json")]
    )
    assert result.exit_code == 0, result.output
    report = Recovery.model_validate(json.loads((tmp_path / "r.json").read_text()))
    assert report.good
    assert len(report.rows) == len(RUNGS)
