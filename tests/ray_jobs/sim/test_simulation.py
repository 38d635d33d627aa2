"""One seed, one history: with real engines and with stubs, whatever faults come."""

import dataclasses
from pathlib import Path

import pytest

from tests.ray_jobs.sim.little import experiment, malformed, on_requests
from tocsin.chaos.case import Conclusion
from tocsin.chaos.judge import judge
from tocsin.chaos.plan import make_plan
from tocsin.chaos.store import load_case
from tocsin.core.errors import SpecError
from tocsin.core.history import EventKind, Outcome
from tocsin.ray_jobs.sim.digest import first_difference, history_digest, history_document
from tocsin.ray_jobs.sim.replay import recorded_run, same_plan, told_again
from tocsin.ray_jobs.sim.simulate import Simulator, simulate


def _all(simulated):
    return {one.id: one.conclusion for one in judge(simulated).properties}


def test_a_real_engine_goes_the_same_way_twice(tiny: Simulator, prompts: Path):
    """KV page, whole replica and a malformed request: two runs do not differ in one byte."""
    wanted = experiment(
        prompts,
        {"id": "page", "kind": "kv.poisoned_page", "when": {"at": [3]}},
        on_requests("kill", "actor.kill", 4),
        malformed(0, "negative", 2),
    )
    case = tiny.conduct(wanted)
    assert history_digest(case) == history_digest(tiny.conduct(wanted))
    assert all(one.healed for one in case.occurrences)
    assert Conclusion.FAIL not in _all(case).values()
    seen = [event for event in case.events if event.kind is EventKind.CHECK_FAILED]
    assert seen, "the checks of the real engine have seen the page"


def test_another_seed_goes_another_way(stub: Simulator, prompts: Path):
    """So equal digests say something."""
    wanted = experiment(prompts)
    other = wanted.model_copy(update={"seed": 6})
    assert history_digest(stub.conduct(wanted)) != history_digest(stub.conduct(other))


def test_a_killed_replica_is_replaced_and_its_requests_go_on_elsewhere(
    stub: Simulator, prompts: Path
):
    """No token is lost or repeated, and the answers that moved are golden."""
    case = stub.conduct(experiment(prompts, on_requests("kill", "actor.kill", 3)))
    moved = [record for record in case.records if len(set(record.attempts)) > 1]
    assert moved
    for record in case.records:
        assert record.outcome is Outcome.OK
        assert record.tokens == case.golden[record.prompt_id].tokens
        assert [chunk.index for chunk in record.chunks] == list(range(len(record.chunks)))
    kinds = [event.kind for event in case.events]
    assert EventKind.REPLICA_DOWN in kinds
    assert EventKind.REQUEST_RESUMED in kinds
    assert EventKind.REPLICA_UP in kinds[kinds.index(EventKind.REPLICA_DOWN) :]


def test_a_frozen_replica_is_seen_to_stall_and_to_go_on(stub: Simulator, prompts: Path):
    """Its heartbeat grows old, its requests go elsewhere, and then it is back."""
    frozen = on_requests("freeze", "actor.freeze", 3, duration_s=3.0)
    case = stub.conduct(experiment(prompts, frozen))
    kinds = [event.kind for event in case.events]
    assert kinds.index(EventKind.REPLICA_STALLED) < kinds.index(EventKind.REPLICA_RESUMED)
    assert case.occurrences[0].healed
    assert {record.outcome for record in case.records} == {Outcome.OK}


def test_clients_that_go_away_leave_no_work_behind(stub: Simulator, prompts: Path):
    """Cancelled requests end as such, and the replicas come to rest."""
    wanted = experiment(prompts)
    workload = wanted.workload.model_copy(update={"abort_ratio": 1.0})
    case = stub.conduct(wanted.model_copy(update={"workload": workload}))
    assert {record.outcome for record in case.records} == {Outcome.CANCELLED}
    assert not [note for note in case.notes if "came to rest" in note]


def test_a_malformed_request_gets_the_real_answer(stub: Simulator, prompts: Path):
    """The gateway's own bodies refuse it, with its own words."""
    case = stub.conduct(experiment(prompts, malformed(0, "out_of_range", 2)))
    (record,) = [one for one in case.records if one.malformed]
    assert (record.http_status, record.outcome) == (400, Outcome.FAIL)
    assert "expected" in record.error


def test_what_cannot_be_simulated_is_refused_by_name(stub: Simulator, prompts: Path):
    """A stub has no operator: a fault in one would never fire."""
    wanted = experiment(prompts, {"id": "page", "kind": "kv.bitflip", "when": {"at": [3]}})
    with pytest.raises(
        SpecError, match=r"faults\[0\].kind: kv.bitflip cannot be simulated: .*--sim"
    ):
        stub.conduct(wanted)
    assert stub.part(wanted)[1] == ("page",)
    assert not stub.part(wanted)[0].faults


def test_a_recorded_simulation_has_the_digest_of_the_live_one(
    stub: Simulator, prompts: Path, tmp_path: Path
):
    """What is read back from the store, and run again from there, is the same to the last byte."""
    wanted = experiment(prompts, on_requests("kill", "actor.kill", 3))
    done = simulate(stub, wanted, tmp_path, arguments="tocsin chaos run little --sim")
    assert done.run_dir is not None
    assert not done.difference
    case = load_case(done.run_dir)
    assert history_digest(case) == done.digest
    one = recorded_run(str(done.run_dir))
    same_plan(one)
    assert one.simulated
    assert one.model == "stub"
    again = simulate(stub, case.spec, tmp_path, arguments="", plan=case.plan, recorded=one.case)
    assert not again.difference
    assert again.exit_code == done.exit_code


def test_a_run_that_goes_another_way_is_invalid_and_says_where(
    stub: Simulator, prompts: Path, tmp_path: Path
):
    """A replay is compared with the record: one moment changed there is named."""
    wanted = experiment(prompts)
    case = stub.conduct(wanted)
    changed = dataclasses.replace(case.records[2], t_end_ns=case.records[2].t_end_ns + 1)
    recorded = dataclasses.replace(case, records=(*case.records[:2], changed, *case.records[3:]))
    done = simulate(stub, wanted, tmp_path, arguments="", recorded=recorded)
    assert done.exit_code == 3
    assert done.difference.startswith("history[2].t_end_ns is ")


def test_a_difference_is_the_first_and_is_named():
    """Missing keys, longer lists and NaN, which is equal to itself here."""
    nan = float("nan")
    assert first_difference({"a": [1, nan]}, {"a": [1, nan]}) == ""
    assert first_difference({"a": [1, 2]}, {"a": [1, 3]}) == "a[1] is 2, in the other 3"
    assert first_difference({"a": [1]}, {"a": [1, 2]}) == "a has 1 entries, the other 2"
    assert first_difference({"a": {}}, {"a": {"b": 1}}) == "a.b is in one of them only"


def test_a_violation_is_found_again_or_said_to_be_gone(
    stub: Simulator, prompts: Path, tmp_path: Path
):
    """Availability of 1 cannot hold when a malformed answer counts: told by number."""
    wanted = experiment(prompts)
    done = simulate(stub, wanted, tmp_path, arguments="")
    with pytest.raises(SpecError, match="has 0 violations"):
        recorded_run(f"{done.run_dir}#1")
    with pytest.raises(SpecError, match="expected the number of a violation"):
        recorded_run(f"{done.run_dir}#first")
    one = recorded_run(str(done.run_dir))
    occurred, words = told_again(one, one.verdict, exact=True)
    assert occurred
    assert words.startswith("it was ")


def test_history_documents_hold_every_request_event_and_occurrence(stub: Simulator, prompts: Path):
    """Nothing that happened is outside the digest."""
    wanted = experiment(prompts, malformed(0, "empty", 1))
    case = stub.conduct(wanted)
    document = history_document(case)
    assert len(document["history"]) == len(case.records)
    assert len(document["events"]) == len(case.events)
    assert [one["planned"]["id"] for one in document["occurrences"]] == [
        one.id for one in make_plan(wanted).occurrences
    ]
