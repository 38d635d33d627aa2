"""A matrix says of each kind what is true of it, and its exit code is that of the worst row."""

from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from tests.chaos.matrix.parts import fault, part
from tocsin.chaos.contract import faults, load_for
from tocsin.chaos.matrix.counting import not_run, row_of
from tocsin.chaos.matrix.document import Conclusion, Matrix, Part, Row
from tocsin.chaos.matrix.page import exit_code, matrix_lines, matrix_markdown
from tocsin.chaos.matrix.trial import (
    PART,
    Trial,
    parts_of,
    served_experiment,
    served_together,
    simulated_experiment,
    variants_of,
)
from tocsin.chaos.plan import make_plan
from tocsin.core.faulting import Scope


def _row(**changes: Any) -> Row:
    return row_of(fault(), [part(**changes)], recall_least=0.99)


@pytest.mark.parametrize(
    ("changes", "conclusion", "code", "words"),
    [
        ({}, Conclusion.CAUGHT, 0, ""),
        ({"harm": {"golden.tokens": 1}}, Conclusion.HARM, 1, "golden.tokens 1"),
        ({"healed": 9}, Conclusion.HARM, 1, "1 were not shown to be healed"),
        ({"seen": 9}, Conclusion.WEAK, 1, "9 of 10 were seen in time"),
        ({"false_alarms": {"numerical.finite": 2}}, Conclusion.WEAK, 1, "numerical.finite 2"),
        (
            {"fired": 9, "verified": 9, "healed": 9, "seen": 9},
            Conclusion.INVALID,
            3,
            "1 of 10 did not fire",
        ),
        ({"verified": 9}, Conclusion.INVALID, 3, "1 of 10 did not fire"),
        (
            {"seen": 0, "detectors": {"numerical.finite": 3}, "latencies_ms": ()},
            Conclusion.EMPTY,
            2,
            "only by numerical.finite 3",
        ),
    ],
)
def test_each_way_of_not_being_caught_has_its_name_and_its_exit_code(
    changes: dict[str, Any], conclusion: Conclusion, code: int, words: str
) -> None:
    """The first line is the nearest miss: all ten fired, were seen and healed."""
    row = _row(**changes)
    assert row.conclusion is conclusion
    assert words in row.why
    assert exit_code([row]) == code


def test_the_worst_row_decides_and_what_was_not_run_does_not() -> None:
    """Harm before what proves nothing before an empty cell, as in a run's verdict."""
    empty = _row(seen=0, detectors={}, latencies_ms=())
    invalid = _row(fired=0, verified=0, healed=0, seen=0)
    harm = _row(harm={"golden.tokens": 1})
    skipped = not_run(fault(), "it acts on a pod")
    assert exit_code([_row(), skipped]) == 0
    assert exit_code([_row(), empty]) == 2
    assert exit_code([empty, invalid]) == 3
    assert exit_code([empty, invalid, harm]) == 1


def test_parts_add_up_and_times_are_those_of_all_of_them() -> None:
    """p50 and p99 over both, not the mean of two."""
    row = row_of(fault(), [part(), part(number=1, latencies_ms=(80.0,) * 10)], 0.99)
    assert (row.planned, row.seen, row.recall) == (20, 20, 1.0)
    assert row.detectors["numerical.finite"] == 6
    assert (row.mttd_ms_p50, row.mttd_ms_p99) == (40.0, 80.0)


def test_the_empty_cell_is_named_below_the_table_and_on_the_page() -> None:
    """A person learns which fault and which detector."""
    rows = (_row(), _row(seen=0, detectors={}, latencies_ms=()), not_run(fault(), "no pod here"))
    matrix = Matrix(
        seed=7,
        occurrences=10,
        occurrences_on_ray=0,
        model="tiny",
        recall_least=0.99,
        exit_code=exit_code(rows),
        wall_s=1.0,
        code="c",
        stale=(),
        rows=rows,
    )
    text = "\n".join(matrix_lines(matrix))
    assert f"empty: {fault().id}: not seen by {' or '.join(fault().expect)}" in text
    assert "no pod here" in text
    assert "1 of 2 kinds are caught; 10 of 20 occurrences" in text
    page = matrix_markdown(matrix)
    assert "**·**" in page
    assert "**10**" in page
    assert Matrix.model_validate_json(matrix.model_dump_json()) == matrix


def test_a_file_with_an_unknown_key_is_no_part() -> None:
    """One of another version is made again, not half understood."""
    document = part().model_dump(mode="json")
    with pytest.raises(ValidationError):
        Part.model_validate({**document, "speed": 3})


def test_every_declared_fault_makes_a_well_formed_experiment_of_its_own() -> None:
    """So a new fault is in the matrix from the moment at which it is declared."""
    for kind, declared in faults().items():
        if declared.scope is Scope.POD:
            continue
        trial = Trial(kind, 0, 3, seed=7)
        made = [served_experiment([trial], {})]
        if declared.scope in (Scope.WORKER, Scope.CLIENT, Scope.PROCESS):
            made.append(simulated_experiment(trial, {}))
        for experiment in made:
            planned = [one.kind for one in make_plan(experiment).occurrences]
            assert [one for one in planned if one != declared.company] == [kind] * 3


def test_a_fault_that_nobody_feels_alone_has_company_and_a_run_of_its_own() -> None:
    """What nobody writes on a full disk is no loss: something is written while it is full."""
    trials = [Trial(kind, 0, 1, seed=7) for kind in ("actor.kill", "disk.full", "net.reset")]
    assert [[one.kind for one in group] for group in served_together(trials)] == [
        ["actor.kill", "net.reset"],
        ["disk.full"],
    ]
    experiment = served_experiment([trials[1]], {})
    planned = make_plan(experiment).occurrences
    (full,) = (one for one in planned if one.kind == "disk.full")
    company = [one for one in planned if one.kind == faults()["disk.full"].company]
    assert len(company) >= 2
    assert all(one.at > full.at for one in company)
    assert experiment.safety.max_concurrent_faults > 1


def test_kinds_that_share_a_run_on_ray_are_never_at_work_together() -> None:
    """Else an alarm could be of either; so their ticks lie apart as well, the clients' too."""
    kinds = ("actor.kill", "batch.malformed", "actor.freeze")
    experiment = served_experiment([Trial(kind, 0, 2, seed=7) for kind in kinds], {})
    assert experiment.safety.max_concurrent_faults == 1
    ticks = [one.at for one in make_plan(experiment).occurrences]
    assert len(ticks) == 6
    assert min(later - one for one, later in pairwise(sorted(ticks))) >= 10
    assert max(ticks) < experiment.workload.requests


def test_more_occurrences_keep_the_parts_that_were_made() -> None:
    """Whole parts are the same, whatever is wanted in all; so they need not be made again."""
    small, large = parts_of("kv.bitflip", 2 * PART, 7), parts_of("kv.bitflip", 200, 7)
    assert large[:2] == small
    assert sum(one.count for one in large) == 200
    seeds = {one.own_seed for one in large} | {Trial("kv.bitflip", 0, PART, 8).own_seed}
    assert len(seeds) == len(large) + 1


def test_what_shows_in_time_has_a_run_for_each_occurrence() -> None:
    """A straggler is told once while it lasts; what a check sees in its step is seen each time."""
    assert [one.count for one in parts_of("actor.slow", 3, 7)] == [1, 1, 1]
    assert [one.count for one in parts_of("kv.prefix_hash_collision", 2, 7)] == [1, 1]
    assert [one.count for one in parts_of("kv.bitflip", 3, 7)] == [3]
    assert [one.count for one in parts_of("actor.kill", 3, 7)] == [3]
    values = {"clock.jump": {"seconds": (60.0, -60.0)}}
    made = [simulated_experiment(one, values) for one in parts_of("clock.jump", 4, 7)]
    assert [one.faults[0].params["seconds"] for one in made] == [60.0, -60.0] * 2


def test_a_fault_gets_the_load_in_which_it_is_felt() -> None:
    """As it declares it: more than usual where it needs more, and never less than usual."""
    kinds = ("kv.eviction_storm", "kv.bitflip", "kv.prefix_hash_collision")
    storm, flip, again = (simulated_experiment(parts_of(kind, 1, 7)[0], {}) for kind in kinds)
    assert storm.workload.concurrency == faults()[kinds[0]].load["concurrency"]
    assert storm.workload.concurrency > flip.workload.concurrency
    assert again.workload.prompts == "builtin/again-6"
    both = load_for([faults()[kind] for kind in kinds], concurrency=99, prompts="p", requests=5)
    assert (both["concurrency"], both["prompts"], both["requests"]) == (99, "builtin/again-6", 5)


def test_every_value_of_a_drawn_parameter_has_its_turn() -> None:
    """Six of one kind with three values: each twice."""
    drawn = {"attn.cu_seqlens": {"kind": ("last", "decreasing", "int64")}}
    assert len(variants_of(faults()["attn.cu_seqlens"], drawn)) == 3
    experiment = simulated_experiment(Trial("attn.cu_seqlens", 0, 6, seed=7), drawn)
    kinds = sorted(one.params["kind"] for one in make_plan(experiment).occurrences)
    assert kinds == sorted(("last", "decreasing", "int64") * 2)
