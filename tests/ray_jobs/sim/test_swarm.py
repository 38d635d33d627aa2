"""Swarm experiments are drawn from seed and index alone, and those that do not pass are kept."""

from pathlib import Path

import pytest

from tests.ray_jobs.sim.test_shrink import verdict
from tocsin.chaos.plan import make_plan
from tocsin.chaos.spec_file import load_experiment
from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.board import STALE_S
from tocsin.ray_jobs.sim.swarm import DRAWN, drawn_experiment, fly, refly, simulated_faults


def test_every_drawn_experiment_is_well_formed_and_another_one():
    """Forty of them name many kinds of fault, and no two are alike."""
    drawn = [drawn_experiment(3, index) for index in range(40)]
    kinds = {fault.kind for one in drawn for fault in one.faults}
    assert len(kinds) > 0.6 * len(simulated_faults())
    assert len({make_plan(one).digest for one in drawn}) == len(drawn)
    assert drawn_experiment(3, 7) == drawn[7]


def test_drawn_parameters_are_those_of_the_declarations():
    """A name that no fault has would silently be left out."""
    known = simulated_faults()
    for kind, values in DRAWN.items():
        assert set(values) <= set(known[kind].params), kind


def test_what_is_drawn_can_be_seen():
    """A freeze outlasts a heartbeat; a storm meets a crowd, without which it takes no pages."""
    assert min(DRAWN["actor.freeze"]["duration_s"]) > STALE_S
    storms = [
        one
        for one in (drawn_experiment(5, index) for index in range(80))
        if any(fault.kind == "kv.eviction_storm" for fault in one.faults)
    ]
    assert storms
    assert min(one.workload.concurrency for one in storms) >= 2 * storms[0].system.slots
    assert min(one.workload.max_new_tokens for one in storms) > 2 * storms[0].system.page_size


def test_what_does_not_pass_is_kept_as_a_file_that_runs(tmp_path: Path):
    """The file makes the very plan that failed; what could not begin is kept as well."""
    outcomes = iter([verdict(), verdict("golden.tokens"), EnvironmentFault("no replica came up")])

    def judged(experiment):
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    first, second, third = fly(3, 9, judged, tmp_path)
    assert first.passed
    assert first.kept is None
    for flight in (second, third):
        assert not flight.passed
        assert flight.kept is not None
        again = load_experiment(flight.kept)
        assert make_plan(again).digest == make_plan(flight.experiment).digest
    assert third.said[0] == "no run"
    (known, _) = refly(lambda wanted: verdict(), tmp_path)
    assert known.passed
    assert known.experiment.name == second.experiment.name


@pytest.mark.parametrize("index", range(3))
def test_every_fault_is_due_while_the_load_lasts(index: int):
    """Nothing is planned for a time that a small workload never reaches."""
    experiment = drawn_experiment(1, index)
    for one in make_plan(experiment).occurrences:
        limit = 2 * experiment.workload.requests if one.clock == "request" else 60
        assert one.at < limit
