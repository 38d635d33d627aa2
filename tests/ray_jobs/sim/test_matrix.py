"""A matrix is filled by discovery, kept run by run, and says what is wrong with the catalogue."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.matrix.parts import part
from tests.ray_jobs.sim.little import experiment
from tocsin.chaos.case import Case
from tocsin.chaos.contract import faults
from tocsin.chaos.matrix.document import Conclusion, Matrix, Part, Where
from tocsin.chaos.matrix.trial import Trial
from tocsin.chaos.plan import make_plan
from tocsin.chaos.spec import Experiment
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope
from tocsin.ray_jobs.sim import matrix
from tocsin.ray_jobs.sim.matrix import FILE, PAGE, Filler, Wanted, chosen_faults
from tocsin.ray_jobs.sim.simulate import Simulator
from tocsin.ray_jobs.sim.strikes import STRIKES

TWO = Wanted(kinds=("batch.malformed", "kv.poisoned_page"), occurrences=2, on_ray=0, jobs=0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """Trials that are made, in place of simulations: every occurrence is seen as it must be."""
    trials: list[Trial] = []

    def simulated(trial: Trial, model: str, code: str) -> Part:
        trials.append(trial)
        return _part(trial, model=model, code=code)

    monkeypatch.setattr(matrix, "_simulated", simulated)
    return trials


def _part(trial: Trial, **changes: Any) -> Part:
    count, expect = trial.count, faults()[trial.kind].expect
    plan = make_plan(matrix.simulated_experiment(trial, matrix.DRAWN))
    return part(
        kind=trial.kind,
        number=trial.number,
        seed=trial.seed,
        plan_digest=plan.digest,
        planned=count,
        fired=count,
        verified=count,
        healed=count,
        seen=count,
        detectors={name: count for name in expect[:1]},
        **changes,
    )


def _unserved(experiment: Experiment) -> Case:
    raise AssertionError("nothing was to be served")


def test_every_declared_fault_has_a_row_and_none_is_listed_anywhere(
    tmp_path: Path, made: list[Trial]
) -> None:
    """Those that cannot run here say why."""
    wanted = Wanted(occurrences=1, on_ray=0, jobs=0)
    filled = Filler(wanted, tmp_path, _unserved).fill()
    assert [row.kind for row in filled.rows] == list(faults())
    skipped = {row.kind: row.why for row in filled.rows if row.conclusion is Conclusion.NOT_RUN}
    assert "pod.delete" in skipped
    assert all(skipped.values())
    assert {trial.kind for trial in made} == set(faults()) - set(skipped)


def test_what_was_done_is_not_done_again_unless_it_changed(
    tmp_path: Path, made: list[Trial]
) -> None:
    """By its plan; a file that was cut off, and --fresh, make it anew."""
    first = Filler(TWO, tmp_path, _unserved).fill()
    assert len(made) == 2
    assert Filler(TWO, tmp_path, _unserved).fill().rows == first.rows
    assert len(made) == 2
    (tmp_path / "parts" / "kv.poisoned_page.0-2.json").write_text("{")
    Filler(TWO, tmp_path, _unserved).fill()
    assert [trial.kind for trial in made[2:]] == ["kv.poisoned_page"]
    Filler(replace(TWO, fresh=True), tmp_path, _unserved).fill()
    assert len(made) == 5
    Filler(replace(TWO, occurrences=27), tmp_path, _unserved).fill()
    assert len(made) == 9  # another length of the first part, and a second part, of both
    Filler(replace(TWO, occurrences=50), tmp_path, _unserved).fill()
    assert [trial.number for trial in made[9:]] == [1, 1]  # the whole first parts are kept


def test_files_hold_the_matrix(tmp_path: Path, made: list[Trial]) -> None:
    """JSON by its schema, and a page."""
    filled = Filler(TWO, tmp_path, _unserved).fill()
    assert Matrix.model_validate_json((tmp_path / FILE).read_text()) == filled
    assert "| kv.poisoned_page |" in (tmp_path / PAGE).read_text()


def test_a_pattern_that_matches_nothing_is_said(tmp_path: Path) -> None:
    """A slip of the pen must not make an empty, green matrix."""
    assert set(chosen_faults(("kv.poi*",))) == {"kv.poisoned_page"}
    with pytest.raises(SpecError, match=r"'kv\.pois' matches no fault"):
        chosen_faults(("kv.pois",))


def test_kinds_that_need_processes_share_one_run_on_ray_and_one_more_for_those_that_did_not_fire(
    tmp_path: Path,
    made: list[Trial],
    stub: Simulator,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All in the first, what did not fire alone in the second; then it is as it is."""
    runs: list[list[str]] = []
    case = stub.conduct(experiment(prompts))

    def served(wanted: Experiment) -> Case:
        runs.append(sorted({one.kind for one in wanted.faults}))
        return case  # counted below without being read

    def counted(case: Case, trial: Trial, *, where: Where, code: str) -> Part:
        fires = trial.kind != "actor.freeze"
        return _part(trial, where=where, code=code).model_copy(
            update={} if fires else {"fired": 0, "verified": 0, "healed": 0, "seen": 0}
        )

    monkeypatch.setattr(matrix, "count", counted)
    kinds = ("actor.kill", "actor.freeze", "kv.poisoned_page")
    filled = Filler(replace(TWO, kinds=kinds, on_ray=2), tmp_path, served).fill()
    assert runs == [["actor.freeze", "actor.kill"], ["actor.freeze"]]
    assert [trial.kind for trial in made] == ["kv.poisoned_page"]
    rows = {row.kind: row for row in filled.rows}
    assert rows["actor.kill"].where is Where.RAY
    assert rows["actor.freeze"].conclusion is Conclusion.INVALID
    assert filled.exit_code == 3


def test_without_ray_processes_are_simulated_where_they_can_be(
    tmp_path: Path, made: list[Trial]
) -> None:
    """A killed replica is; what acts on Ray itself is not, and is not left out silently."""
    chosen = [name for name, one in faults().items() if one.scope is not Scope.WORKER]
    Filler(replace(TWO, kinds=tuple(chosen)), tmp_path, _unserved).fill()
    simulated = {trial.kind for trial in made}
    assert set(STRIKES) - {"pod.delete"} <= simulated


@pytest.mark.parametrize("checks", ["full", "off"])
def test_real_engines_catch_a_poisoned_page_and_without_checks_its_cell_is_empty(
    tmp_path: Path, checks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same kind, the same seed: what is in the table is what the checks did."""
    honest = matrix.simulated_experiment

    def with_profile(trial: Trial, variants: Any) -> Experiment:
        made = honest(trial, variants)
        system = made.system.model_copy(update={"profile": checks})
        return made.model_copy(update={"system": system})

    monkeypatch.setattr(matrix, "simulated_experiment", with_profile)
    wanted = replace(TWO, kinds=("kv.poisoned_page",), occurrences=2)
    (row,) = Filler(wanted, tmp_path, _unserved).fill().rows
    assert (row.planned, row.fired, row.verified) == (2, 2, 2)
    if checks == "full":
        assert row.conclusion is Conclusion.CAUGHT, row
        assert row.recall == 1.0
    else:
        assert row.detectors == {}
        assert row.conclusion in (Conclusion.EMPTY, Conclusion.HARM)


def test_half_a_run_is_not_kept(
    tmp_path: Path, made: list[Trial], stub: Simulator, prompts: Path
) -> None:
    """Ctrl-C ends the matrix, and the run that it met is made again the next time."""
    case = stub.conduct(experiment(prompts))

    def interrupted(wanted: Experiment) -> Case:
        return replace(case, aborted="SIGINT was received")

    filler = Filler(replace(TWO, kinds=("actor.kill",), on_ray=1), tmp_path, interrupted)
    with pytest.raises(KeyboardInterrupt):
        filler.fill()
    assert not list(tmp_path.glob("parts/*"))
