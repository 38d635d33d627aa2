"""A soak judges each window, keeps what did not pass, and ends where it was told to."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.ray_jobs.sim.test_shrink import verdict
from tocsin.chaos.case import Case
from tocsin.chaos.plan import make_plan
from tocsin.chaos.soak.document import Soak
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import load_experiment
from tocsin.chaos.verdict import RunVerdict
from tocsin.core.errors import EnvironmentFault
from tocsin.core.history import Outcome
from tocsin.ray_jobs.sim.simulate import Simulator
from tocsin.ray_jobs.sim.soak import (
    FILE,
    PAGE,
    SimGround,
    Soaker,
    Terms,
    window_experiment,
)


@dataclass
class Fake:
    """A ground whose windows end as they are told to, with the history of one real little run."""

    case: Case
    ends: dict[int, str | Exception] = field(default_factory=dict)
    grows_mib: float = 0.0
    seen: list[Experiment] = field(default_factory=list)
    where: Literal["sim", "ray"] = "sim"
    model: str = "tiny"

    def fitted(self, experiment: Experiment) -> Experiment:
        return experiment

    def judged(self, experiment: Experiment) -> tuple[Case, RunVerdict, str]:
        self.seen.append(experiment)
        end = self.ends.get(len(self.seen) - 1, "")
        if isinstance(end, Exception):
            raise end
        return self.case, verdict(end), ""

    def processes(self) -> Mapping[str, Mapping[str, Any]]:
        rss = (500.0 + self.grows_mib * len(self.seen)) * 2**20
        return {"simulation": {"rss_bytes": rss, "fds": 9.0, "threads": 4.0}}


@pytest.fixture(scope="module")
def case(stub: Simulator) -> Case:
    """Of a window with the model-free stub and no faults."""
    return stub.conduct(window_experiment(Terms(window=5, faultless=True), 0))


def _soak(folder: Path, ground: Fake, **terms: Any) -> Soak:
    return Soaker(Terms(**{"requests": 50, **terms}), ground, folder).soak()


def test_it_ends_with_the_window_in_which_the_requests_are_reached(
    tmp_path: Path, case: Case
) -> None:
    """Each window has its own experiment, and the report holds them all."""
    ground = Fake(case)
    wanted = 10 * len(case.honest) - 1
    done = _soak(tmp_path, ground, requests=wanted)
    assert len(done.windows) == 10
    assert done.requests == sum(one.requests for one in done.windows) == wanted + 1
    assert len({make_plan(one).digest for one in ground.seen}) == len(ground.seen)
    assert (done.verdict, done.exit_code) == ("pass", 0)
    assert Soak.model_validate_json((tmp_path / FILE).read_text()) == done
    assert (tmp_path / PAGE).is_file()


def test_hours_end_it_as_well(tmp_path: Path, case: Case) -> None:
    """By the clock that it is given."""
    minutes = iter(range(0, 10_000, 10))
    terms = Terms(requests=None, hours=1.0)
    done = Soaker(terms, Fake(case), tmp_path, now_s=lambda: 60.0 * next(minutes)).soak()
    assert 1 < len(done.windows) < 7


@pytest.mark.parametrize(
    ("ends", "grows_mib", "code", "words"),
    [
        ({2: "golden.tokens"}, 0.0, 1, "1 of 10 windows failed"),
        ({2: EnvironmentFault("no replica came up")}, 0.0, 3, "no replica came up"),
        ({}, 40.0, 1, "rss_bytes of simulation grew"),
        ({2: EnvironmentFault("x"), 3: "golden.tokens"}, 0.0, 1, "windows failed"),
    ],
)
def test_a_bad_window_or_a_leak_is_the_verdict(
    tmp_path: Path,
    case: Case,
    ends: dict[int, str | Exception],
    grows_mib: float,
    code: int,
    words: str,
) -> None:
    """What failed comes before what proves nothing."""
    requests = len(case.honest) * (10 - sum(isinstance(end, Exception) for end in ends.values()))
    done = _soak(tmp_path, Fake(case, ends, grows_mib), requests=requests)
    assert done.exit_code == code
    assert words in done.sentence


def test_too_few_windows_to_know_of_a_leak_are_not_green(tmp_path: Path, case: Case) -> None:
    """No data is never fine."""
    done = _soak(tmp_path, Fake(case), requests=1)
    assert (done.verdict, done.exit_code) == ("unknown", 2)


def test_a_window_that_did_not_pass_is_kept_as_an_experiment_that_runs(
    tmp_path: Path, case: Case
) -> None:
    """Its file makes the very plan that failed."""
    ground = Fake(case, {1: "golden.tokens"})
    done = _soak(tmp_path, ground)
    kept = [one.kept for one in done.windows if one.kept]
    assert kept == [str(tmp_path / "soak-0-1.yaml")]
    again = load_experiment(kept[0])
    assert make_plan(again).digest == make_plan(ground.seen[1]).digest


def test_windows_share_no_occurrence_and_those_without_faults_have_none() -> None:
    """A served system remembers occurrences by their ids."""
    faulty, quiet = Terms(seed=4), Terms(seed=4, faultless=True)
    ids = [
        one.id
        for index in range(12)
        for one in make_plan(window_experiment(faulty, index)).occurrences
    ]
    assert len(ids) == len(set(ids)) > 12
    drawn = [window_experiment(quiet, index) for index in range(12)]
    assert not any(one.faults for one in drawn)
    assert {one.workload.arrival for one in drawn} == {"closed", "poisson"}
    assert all(one.workload.abort_ratio > 0 for one in drawn)
    assert min(one.system.pages for one in drawn) < 40


@pytest.mark.slow
def test_a_faultless_window_of_real_engines_differs_nowhere(tiny: Simulator) -> None:
    """Requests of many clients come and go, and every answer that is completed is golden."""
    experiment = window_experiment(Terms(window=24, faultless=True), 0)
    case, judged, _ = SimGround(os.getpid(), tiny).judged(experiment)
    assert len(case.honest) >= 24
    assert any(record.outcome is Outcome.OK for record in case.honest)
    assert judged.silent_corruptions == 0
