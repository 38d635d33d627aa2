"""Whole runs against a system in one process: every way in which a run may end."""

import asyncio
import json
import os
import signal
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.experiments import small
from tests.chaos.fake_system import FakeSystem, Misbehaviour
from tocsin.chaos import wal
from tocsin.chaos.run import check, run
from tocsin.chaos.spec_file import parse_experiment
from tocsin.chaos.store import load_case, read_verdict
from tocsin.core.history import Event, EventKind, RequestRecord
from tocsin.core.system import LoadRequest

KILL = {
    "id": "kill",
    "kind": "actor.kill",
    "when": {"clock": "request", "at": [12]},
    "expect": {"within": "1s", "recover_within": "5s"},
}


class Listener:
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.states: list[Any] = []
        self.notes: list[str] = []
        self.ends: list[tuple[str, ...]] = []

    def update(self, state: Any) -> None:
        self.states.append(state)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def end(self, verdict: Any, run_dir: Path, lines: tuple[str, ...]) -> None:
        self.ends.append(lines)


def conduct(
    tmp_path: Path, wrong: Misbehaviour | None = None, **changes: Any
) -> tuple[int, dict[str, Any], Path, Listener]:
    """Run the small experiment; returns exit code, verdict.json, the folder and what was told."""
    listener = Listener()
    system = FakeSystem(wrong=wrong or Misbehaviour())
    code = run(parse_experiment(small(**changes)), system, tmp_path, progress=listener)
    run_dir = (tmp_path / "latest").resolve()
    return code, read_verdict(run_dir), run_dir, listener


def test_what_the_servers_left_is_kept_before_the_run_is_judged(tmp_path: Path) -> None:
    """The report can link to it; when keeping it fails, the verdict is written all the same."""
    told: list[Path] = []

    def keep(run_dir: Path) -> None:
        told.append(run_dir)
        assert not (run_dir / "verdict.json").exists()
        raise OSError(28, "No space left on device")

    listener = Listener()
    spec = parse_experiment(small())
    code = run(spec, FakeSystem(wrong=Misbehaviour()), tmp_path, progress=listener, keep=keep)
    assert (code, len(told)) == (0, 1)
    assert (told[0] / "verdict.json").exists()
    assert any("what the servers left" in note for note in listener.notes)


def test_a_clean_run_passes_and_leaves_all_its_files(tmp_path: Path) -> None:
    """Exit 0, faults planned = fired = verified = healed = detected, every file there."""
    faults = [*small()["faults"], KILL]
    code, verdict, run_dir, listener = conduct(tmp_path, faults=faults)
    assert (code, verdict["verdict"], verdict["reasons"]) == (0, "pass", [])
    for fault in verdict["faults"]:
        counts = {fault[key] for key in ("planned", "fired", "verified", "healed", "detected")}
        assert counts == {1}, fault
    assert verdict["silent_corruptions"] == verdict["lost"] == verdict["duplicated"] == 0
    assert verdict["requests"] >= 40
    assert verdict["oracle_self_test"]
    assert all(sin["caught"] for sin in verdict["oracle_self_test"])
    for name in [
        "manifest.json",
        "verdict.json",
        "junit.xml",
        "journal.json",
        "report.html",
        "history.parquet",
        "events.parquet",
        "heals.wal",
        "logs",
        "repro",
    ]:
        assert (run_dir / name).exists(), name
    assert not wal.open_faults(wal.read(run_dir / wal.NAME).records)
    assert listener.ends
    phases = [state.phase for state in listener.states]
    assert list(dict.fromkeys(phases))[:3] == ["golden", "warm-up", "faults"]
    suite = ET.parse(run_dir / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert suite.get("failures") == "0"


def test_a_run_read_back_from_disk_is_judged_the_same(tmp_path: Path) -> None:
    """`chaos check` needs nothing but the files."""
    code, verdict, run_dir, _ = conduct(tmp_path)
    case = load_case(run_dir)
    assert len(case.records) == verdict["requests"]
    assert check(run_dir) == code
    assert read_verdict(run_dir) == verdict


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Misbehaviour(never_fires=frozenset({"weight.bitflip"})), "did not fire"),
        (Misbehaviour(no_evidence=frozenset({"weight.bitflip"})), "left no evidence"),
        (Misbehaviour(warmup_wrong=True), "baseline was not steady"),
    ],
)
def test_a_run_that_proves_nothing_is_invalid(
    tmp_path: Path, wrong: Misbehaviour, words: str
) -> None:
    """A broken injector, a fault without proof, a baseline that is wrong: exit 3, never green."""
    code, verdict, _, _ = conduct(tmp_path, wrong)
    assert (code, verdict["verdict"]) == (3, "invalid")
    assert words in " ".join(verdict["reasons"])


def test_silent_corruption_violates_golden_tokens(tmp_path: Path) -> None:
    """Exit 1, the corruptions are counted, and JUnit holds the command to run it again."""
    wrong = Misbehaviour(corrupts=frozenset({"weight.bitflip"}))
    code, verdict, run_dir, _ = conduct(tmp_path, wrong)
    assert (code, verdict["verdict"]) == (1, "fail")
    assert verdict["silent_corruptions"] > 0
    text = (run_dir / "junit.xml").read_text()
    assert "<failure" in text
    assert "tocsin chaos run small --seed 5" in text


@pytest.mark.parametrize(
    ("wrong", "property_id"),
    [
        (Misbehaviour(undetected=frozenset({"weight.bitflip"})), "detection.matrix"),
        (Misbehaviour(false_alarm=True), "detection.matrix"),
        (Misbehaviour(answers_malformed=True), "detection.matrix"),
    ],
)
def test_a_missed_fault_or_a_false_alarm_fails_the_run(
    tmp_path: Path, wrong: Misbehaviour, property_id: str
) -> None:
    """Detection is judged both ways."""
    code, verdict, _, _ = conduct(tmp_path, wrong)
    assert code == 1
    failed = [one["id"] for one in verdict["properties"] if one["verdict"] == "fail"]
    assert failed == [property_id]


def test_a_property_without_a_case_is_vacuous_and_not_green(tmp_path: Path) -> None:
    """No answer was degraded, so the labels prove nothing: exit 2."""
    code, verdict, _, _ = conduct(tmp_path, checks=[{"id": "degraded.labelled"}])
    assert (code, verdict["verdict"]) == (2, "vacuous")


def test_a_fault_that_cannot_be_healed_ends_with_five(tmp_path: Path) -> None:
    """Something may still be broken: that comes before everything else."""
    wrong = Misbehaviour(unhealed=frozenset({"weight.bitflip"}))
    code, _, run_dir, _ = conduct(tmp_path, wrong)
    assert code == 5
    open_ones = wal.open_faults(wal.read(run_dir / wal.NAME).records)
    assert [one.occurrence for one in open_ones] == ["weights@0"]


def test_a_run_over_its_time_is_aborted(tmp_path: Path) -> None:
    """Exit 4; what is known by then is written and faults are healed."""
    wrong = Misbehaviour(mute_after=10)
    safety = {"max_duration": "1s"}
    code, verdict, run_dir, _ = conduct(tmp_path, wrong, safety=safety)
    assert code == 4
    assert "max_duration" in " ".join(verdict["reasons"])
    assert (run_dir / "history.parquet").exists()


def test_a_service_that_fell_silent_aborts_the_run(tmp_path: Path) -> None:
    """Two windows without data are not "fine"."""
    wrong = Misbehaviour(mute_after=10)
    safety = {"abort": [{"when": "ok_ratio < 0.5 for 300ms"}]}
    code, verdict, _, _ = conduct(tmp_path, wrong, safety=safety)
    assert code == 4
    assert "no data" in " ".join(verdict["reasons"])


def test_sigint_heals_writes_and_ends_with_four(tmp_path: Path) -> None:
    """A person may stop a run at any time."""
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        code, verdict, _, _ = conduct(tmp_path, workload={"requests": 5000})
    finally:
        timer.cancel()
    assert (code, verdict["verdict"], verdict["lost"]) == (4, "aborted", 0)
    assert "SIGINT" in " ".join(verdict["reasons"])


def test_a_run_may_be_stopped_while_golden_answers_are_computed(tmp_path: Path) -> None:
    """Nobody waits for minutes of work that is no longer wanted."""
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    began_s = time.monotonic()
    code, verdict, _, _ = conduct(tmp_path, Misbehaviour(golden_takes_s=60.0))
    assert code == 4
    assert "SIGTERM" in " ".join(verdict["reasons"])
    assert time.monotonic() - began_s < 20.0


def test_a_false_alarm_during_the_warm_up_counts(tmp_path: Path) -> None:
    """No fault was active anywhere; alarms from before the run are not its own."""
    early = Event(EventKind.CHECK_FAILED, 1, "replica-0", data={"check": "numerical.finite"})

    class Nervous(FakeSystem):
        async def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
            if request.request_id == "w0001":
                self._alarm("replica-0", "numerical.finite")
            async for record in FakeSystem.send(self, request):
                yield record

    for system, code in ((Nervous(), 1), (FakeSystem(log=[early]), 0)):
        assert run(parse_experiment(small()), system, tmp_path) == code


def test_a_system_that_cannot_be_reached_is_one_line_and_not_green(tmp_path: Path) -> None:
    """The line says what to do; files are written all the same."""
    code, verdict, _, listener = conduct(tmp_path, Misbehaviour(refuses_describe=True))
    assert code == 4
    assert verdict["exit_code"] == 4
    assert any("does not answer" in note for note in listener.notes)


def test_an_unknown_prompt_set_is_a_spec_error(tmp_path: Path) -> None:
    """Exit 64 before anything is started."""
    listener = Listener()
    spec = parse_experiment(small(workload={"prompts": "builtin/golden-84"}))
    assert run(spec, FakeSystem(), tmp_path, progress=listener) == 64
    assert "builtin/golden-48" in listener.notes[0]
    assert not list(tmp_path.iterdir())


def test_a_store_that_cannot_be_written_is_one_line_and_not_green(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "store").write_text("")
    listener = Listener()
    code = run(parse_experiment(small()), FakeSystem(), tmp_path / "store", progress=listener)
    assert code == 3
    assert len(listener.notes) == 1


def test_a_full_disk_during_the_run_is_one_line_and_not_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intent cannot be written, so nothing is injected and the run is aborted."""
    real = wal.WriteAheadLog.write

    def full(self: wal.WriteAheadLog, record: Any, *, sync: bool = True) -> None:
        if record["type"] == "intent":
            raise OSError(28, "No space left on device", str(self.path))
        real(self, record, sync=sync)

    monkeypatch.setattr(wal.WriteAheadLog, "write", full)
    system = FakeSystem()
    listener = Listener()
    code = run(parse_experiment(small()), system, tmp_path, progress=listener)
    assert code == 4
    assert not system.given
    assert any("disk is full" in note for note in listener.notes)


def test_chaos_disable_keeps_everything_from_being_injected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment can only switch chaos off."""
    monkeypatch.setenv("CHAOS_DISABLE", "1")
    system = FakeSystem()
    assert run(parse_experiment(small()), system, tmp_path) == 4
    assert not system.given


def test_two_runs_of_one_seed_have_one_plan_and_one_outcome(tmp_path: Path) -> None:
    """Same digest, same class of outcome for every occurrence."""
    _, first, one, _ = conduct(tmp_path)
    _, second, two, _ = conduct(tmp_path)
    assert one != two
    assert first["plan_digest"] == second["plan_digest"]
    keys = ("planned", "fired", "verified", "detected", "healed", "detectors")
    assert [[f[key] for key in keys] for f in first["faults"]] == [
        [f[key] for key in keys] for f in second["faults"]
    ]


def test_a_broken_report_does_not_hide_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict is written and the failure is told."""

    def broken(*_: object) -> Path:
        raise RuntimeError("no ink")

    monkeypatch.setattr("tocsin.chaos.run.write_report", broken)
    code, verdict, _, listener = conduct(tmp_path)
    assert (code, verdict["verdict"]) == (0, "pass")
    assert any("no ink" in note for note in listener.notes)


def test_leases_are_renewed_while_the_run_lives(tmp_path: Path) -> None:
    """A fault that takes long to fire stays armed."""
    system = FakeSystem(wrong=Misbehaviour(never_fires=frozenset({"weight.bitflip"})))
    spec = parse_experiment(small(safety={"ttl": "1s"}))
    run(spec, system, tmp_path)
    assert system.renewed >= 1


def test_the_journal_has_the_shape_of_the_chaos_toolkit(tmp_path: Path) -> None:
    """Its keys are those that tools for such journals read."""
    _, _, run_dir, _ = conduct(tmp_path)
    journal = json.loads((run_dir / "journal.json").read_text())
    assert {"experiment", "status", "deviated", "steady_states", "run", "rollbacks"} <= set(journal)
    assert journal["status"] == "completed"
    assert journal["deviated"] is False
    assert [one["status"] for one in journal["run"]] == ["succeeded", "succeeded"]


def test_the_run_needs_no_event_loop_of_its_caller(tmp_path: Path) -> None:
    """It makes its own, also in a thread that is not the main one."""
    codes: list[int] = []
    spec = parse_experiment(small())
    thread = threading.Thread(target=lambda: codes.append(run(spec, FakeSystem(), tmp_path)))
    thread.start()
    thread.join(timeout=30)
    assert codes == [0]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
