"""A whole small campaign: resumed, shared out and reported, it is the same campaign."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.bench.campaign.tiny import SMALL, load, subject_of, world_of
from tocsin.bench.campaign import __main__ as command
from tocsin.bench.campaign import campaign as campaign_module
from tocsin.bench.campaign.alarms import alarm_trials, prompts_of
from tocsin.bench.campaign.campaign import _Pace, journal_paths, report, share, work
from tocsin.bench.campaign.journal import read
from tocsin.bench.campaign.plan import (
    Shard,
    shards_of,
)
from tocsin.bench.campaign.schema import read as read_coverage
from tocsin.bench.campaign.summary import headline, summarise
from tocsin.bench.campaign.table import costs_of, show
from tocsin.bench.campaign.workshop import Workshop

SHARDS = shards_of(SMALL)


@pytest.fixture(autouse=True)
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_module, "load_served", load)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the journal of one whole run."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(campaign_module, "load_served", load)
        assert work(SMALL, SHARDS, folder) == 0
    return folder


def timeless(records: dict) -> dict:
    """Records without what clocks said."""
    text = json.loads(json.dumps(records))
    for record in text.values():
        for name in ("settle_s", "step_s"):
            record.pop(name, None)
    return text


def test_the_time_left_is_told_by_the_lanes() -> None:
    """A shard takes what others of its lane took; the first, which loads, counts while alone."""
    shards = [Shard(kind="pages", dtype="fp32", number=number) for number in range(4)]
    shards += [Shard(kind="state", dtype="fp32", number=number) for number in range(2)]
    pace = _Pace(shards)
    assert (pace.left_s(), pace.next_s()) == (0.0, 0.0)
    pace.done("pages/fp32/0000", 30.0)
    assert pace.left_s() == pytest.approx(5 * 30.0)
    pace.done("pages/fp32/0001", 10.0)
    assert pace.left_s() == pytest.approx(2 * 10.0 + 2 * 10.0)
    assert pace.next_s() == pytest.approx(10.0)
    pace.done("state/fp32/0000", 4.0)
    assert pace.left_s() == pytest.approx(2 * 10.0 + 4.0)
    assert pace.next_s() == pytest.approx(10.0)


def test_no_shard_begins_that_would_end_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes 60 s of a clock that starts at 0: of 150 s two are used, not one more."""
    now = [0.0]

    def run(workshop: Workshop, shard: Shard) -> dict:
        now[0] += 60.0
        return {"shard": shard.key}

    monkeypatch.setattr(Workshop, "run", run)
    monkeypatch.setattr(campaign_module.time, "monotonic", lambda: now[0])
    pages = [Shard(kind="pages", dtype="fp32", number=number) for number in range(5)]
    assert work(SMALL, pages, tmp_path, until_s=150.0) == 3


def test_guard_and_competitors_are_shown_their_share() -> None:
    """What was not shown is not in their rows; `full` is judged on every batch."""
    sizes = {"decode_batches": {"fp32": 10}, "guard_every": 2, "rivals_every": 3}
    campaign = SMALL.model_copy(update=sizes)
    shards = [
        Shard(kind="coverage", dtype="fp32", number=number, phase="decode")
        for number in range(0, 10, 2)
    ]
    workshop = Workshop(campaign, load)
    records = {shard.key: workshop.run(shard) for shard in shards}
    workshop.close()
    batches = [records[shard.key]["trials"] for shard in shards]
    flagged = [any(trial["flagged"] for trial in trials) for trials in batches]
    guarded = [any("guard" in trial["alarms"] for trial in trials) for trials in batches]
    harmful = [any(trial["outcome"] in ("harmful", "due") for trial in one) for one in batches]
    assert flagged == [here and at % 3 == 0 for at, here in enumerate(harmful)]
    assert guarded == [here and at % 2 == 0 for at, here in enumerate(harmful)]
    rows = {
        (row.name, row.profile): row
        for row in summarise(records).coverage.rows
        if (row.site, row.bits) == ("all", "all")
    }
    counts = [len(headline(trials)) for trials in batches]
    assert rows["tocsin", "full"].trials == sum(counts)
    assert rows["tocsin", "guard"].trials == sum(counts[::2])
    assert rows["nan-logits", "default"].trials == sum(counts[::3])
    judged = rows["tocsin", "full"].harmful
    assert judged > rows["tocsin", "guard"].harmful > 0
    assert judged > rows["nan-logits", "default"].harmful > 0


def test_a_cut_journal_is_completed_to_the_same_records(whole: Path, tmp_path: Path) -> None:
    """Killed in the middle of a line: what is missing is done again, with the same result."""
    (path,) = journal_paths(whole, SMALL)
    lines = path.read_bytes()
    (tmp_path / path.name).write_bytes(lines[: len(lines) * 2 // 3])
    before = read(journal_paths(tmp_path, SMALL))
    assert 0 < len(before) < len(SHARDS)
    told: list[str] = []
    left = work(SMALL, SHARDS, tmp_path, progress=lambda done, total, key, *_: told.append(key))
    assert left == 0
    assert len(told) == len(SHARDS) - len(before)
    assert timeless(read(journal_paths(tmp_path, SMALL))) == timeless(read([path]))


def test_shares_together_are_one_run(whole: Path, tmp_path: Path) -> None:
    """Two machines with half of the shards each."""
    shards = shards_of(SMALL, ("coverage", "state"))
    for part in ("1/2", "2/2"):
        work(SMALL, share(shards, part), tmp_path, part=part)
    assert len(journal_paths(tmp_path, SMALL)) == 2
    both = timeless(read(journal_paths(tmp_path, SMALL)))
    alone = timeless(read(journal_paths(whole, SMALL)))
    assert both == {shard.key: alone[shard.key] for shard in shards}


def test_a_time_limit_leaves_the_rest_for_later(tmp_path: Path) -> None:
    """No shard begins after it."""
    assert work(SMALL, SHARDS, tmp_path, until_s=0.0) == len(SHARDS)
    assert journal_paths(tmp_path, SMALL) == []


def test_another_campaign_does_not_take_these_records(whole: Path) -> None:
    """Another seed, another plan: its journal is empty."""
    assert journal_paths(whole, SMALL.model_copy(update={"seed": 6})) == []


def test_the_report_is_the_issue_s_schema(whole: Path) -> None:
    """Rows, false alarms and repairs; read back and validated."""
    summary = report(SMALL, whole)
    coverage = read_coverage(whole / "coverage.json")
    assert coverage == summary.coverage
    raw = json.loads((whole / "coverage.json").read_text(encoding="utf-8"))
    assert set(raw) == {"rows", "false_alarms", "repaired"}
    assert set(raw["rows"][0]) == {
        "name",
        "profile",
        "dtype",
        "site",
        "bits",
        "trials",
        "harmful",
        "caught",
        "caught_before_release",
        "low95",
    }
    pooled = {(r.name, r.profile): r for r in coverage.rows if (r.site, r.bits) == ("all", "all")}
    assert pooled["tocsin", "full"].trials == pooled["nan-logits", "default"].trials > 0
    assert coverage.false_alarms.alarms == 0
    assert coverage.false_alarms.evaluations > 500
    assert coverage.repaired.trials == coverage.repaired.identical > 0


def test_the_table_shows_coverage_and_overhead_of_the_same_profile(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says so where the overhead was not measured."""
    from rich.console import Console

    path = tmp_path / "overhead.json"
    row = {
        "name": "tocsin",
        "profile": "full",
        "mode": "eager",
        "dtype": "fp32",
        "phase": "decode",
        "batch": 8,
        "pairs": 5,
        "ratio_q25": 1.01,
        "ratio_median": 1.034,
        "ratio_q75": 1.05,
    }
    compiled = {**row, "mode": "compiled", "ratio_median": 9.0}
    path.write_text(json.dumps({"rows": [row, compiled]}), encoding="utf-8")
    assert costs_of(path) == {("tocsin", "full", "fp32"): 1.034}
    show(report(SMALL, whole), Console(width=120), path)
    shown = capsys.readouterr().out
    assert "…" not in shown  # 120 columns hold every heading
    assert "+3.4 %" in shown
    assert "not measured" in shown
    assert "false alarms: 0 in" in shown


def test_nothing_done_is_no_score() -> None:
    """No data is never fine."""
    summary = summarise({})
    assert summary.coverage.rows == ()
    assert summary.coverage.false_alarms.evaluations == 0


def test_clean_runs_count_ratios_and_alarms() -> None:
    """Numerical checks once a row, the others once a call; an alarm would be told."""
    subject = subject_of()
    model = subject.model
    subject.close()
    rows = prompts_of(load("", torch.float32)[1], 2, 6, 1)
    found = alarm_trials(model, rows, "sdpa", 2)
    assert found["calls"] < found["evaluations"] < 2 * found["calls"]
    assert (found["alarms"], found["tokens"]) == (0, 6)


def test_a_clean_run_that_alarms_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check with a limit of almost nothing alarms on sound values, and that is counted."""
    from tocsin.bench.campaign import alarms, subject
    from tocsin.checker.guard import attach

    def strict(model: torch.nn.Module, profile: str) -> object:
        limits = {"numerical.linear_checksum": {"limit_ulp": 1e-9, "accumulation": 1e-9}}
        return attach(model, profile, thresholds=limits)

    monkeypatch.setattr(subject, "attach", strict)
    model = load("", torch.bfloat16)[0]
    found = alarms.alarm_trials(model, prompts_of(load("", torch.float32)[1], 2, 6, 0), "eager", 1)
    assert found["alarms"] > 0
    assert "numerical.linear_checksum" in found["messages"][0]


def test_a_golden_run_proves_its_own_bits() -> None:
    """A world is made only where a replay gives the same bits."""
    subject = subject_of()
    world = world_of(subject)
    assert world.span(0) == (6, 3)
    assert world.span(2) == (10, 1)
    assert torch.equal(world.logits[:-1].argmax(-1).T, world.ids[:, world.prompt :])
    subject.close()


def test_the_command_runs_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same trials by the command line, with its tables."""
    monkeypatch.setattr(command, "quick", lambda seed: SMALL)
    runner = CliRunner()
    threads = str(torch.get_num_threads())
    asked = ["run", "--quick", "--folder", str(tmp_path), "--threads", threads, "--only", "state"]
    result = runner.invoke(command.app, asked)
    assert result.exit_code == 0, result.output
    assert "named to page and request" in result.output
    assert (tmp_path / "coverage.json").is_file()
    assert (
        runner.invoke(command.app, ["report", "--quick", "--folder", str(tmp_path)]).exit_code == 0
    )


def test_one_trial_is_made_again_alone(
    whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its key on the command line: the same place, word, outcome and alarms."""
    monkeypatch.setattr(command, "quick", lambda seed: SMALL)
    monkeypatch.setattr(command, "load_served", load)
    records = read(journal_paths(whole, SMALL))
    trials = [t for key in records if key.startswith("coverage") for t in records[key]["trials"]]
    before = next((t for t in trials if t["alarms"]["full"]), trials[0])
    threads = str(torch.get_num_threads())
    asked = ["trial", before["key"], "--quick", "--threads", threads]
    result = CliRunner().invoke(command.app, asked)
    assert result.exit_code == 0, result.output
    again = json.loads(result.stdout)
    for name in ("site", "bits", "place", "outcome", "wrong"):
        assert again[name] == before[name]
    assert again["alarms"]["full"].keys() == before["alarms"]["full"].keys()
    assert "→" in again["place"]


def test_records_of_a_workshop_do_not_depend_on_order() -> None:
    """A shard alone gives what it gives after others."""
    chosen = [shard for shard in SHARDS if shard.kind == "coverage"][:2]
    first, second = Workshop(SMALL, load), Workshop(SMALL, load)
    forward = {shard.key: first.run(shard) for shard in chosen}
    backward = {shard.key: second.run(shard) for shard in reversed(chosen)}
    assert forward == backward
    first.close()
    second.close()
