"""Large histories end in a verdict whatever is missing of them, and never in a green one for it."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.chaos.histories import clean_case, with_record
from tests.chaos.scale.histories import recorded
from tocsin.chaos.scale.check import check_folder
from tocsin.chaos.scale.generate import Replay, generate, replay_case, replay_part
from tocsin.chaos.scale.recorder import Recorder
from tocsin.chaos.scale.rows import PACK, ROW, Reservoir, key_of, name_of, shards_of
from tocsin.chaos.scale.selftest import self_test
from tocsin.chaos.scale.shard import ShardResult, judge_shard
from tocsin.chaos.scale.sinner import expected_flags
from tocsin.chaos.scale.table_reader import hide_torn, open_table
from tocsin.chaos.store import load_case, write_frame
from tocsin.core.errors import SpecError

SMALL = Replay(600, seed=3, share=0.05, shards=4, chunk_rows=250)


def test_a_request_takes_56_bytes() -> None:
    assert ROW.itemsize == PACK.size == 56


@pytest.mark.parametrize("name", ["r00012", "r12", "w9", "z999999999999999"])
def test_the_key_of_a_numbered_request_says_its_id(name: str) -> None:
    assert name_of(key_of(name)) == name


@pytest.mark.parametrize("name", ["m-fault@0", "r", "R1", "r-1", "r" + "9" * 18, ""])
def test_the_key_of_any_other_request_is_a_digest(name: str) -> None:
    assert name_of(key_of(name)).startswith("request #")


def test_the_reservoir_depends_on_the_seed_and_takes_its_share() -> None:
    keys = [key_of(f"r{i:05d}") for i in range(10_000)]
    first = {key for key in keys if key in Reservoir(1, 0.01)}
    assert 60 < len(first) < 140
    assert first != {key for key in keys if key in Reservoir(2, 0.01)}
    assert not any(key in Reservoir(1, 0.0) for key in keys)
    assert all(key in Reservoir(1, 1.0) for key in keys)


def test_shards_are_of_one_size() -> None:
    keys = np.array([key_of(f"r{i:05d}") for i in range(8_000)], np.uint64)
    counts = np.bincount(shards_of(keys, 8), minlength=8)
    assert 850 < counts.min() <= counts.max() < 1_150


def test_every_sin_is_caught_once_and_nothing_else(tmp_path: Path) -> None:
    result = self_test(tmp_path, Replay(2_000, seed=2, chunk_rows=1_500))
    assert [one for one in result.planted if not one.caught] == []
    assert len(result.planted) == len(expected_flags()) >= 12
    assert (result.false, result.passed) == (0, True)


def test_a_clean_replay_passes_and_costs_few_bytes(tmp_path: Path) -> None:
    generate(tmp_path, SMALL)
    report = check_folder(tmp_path)
    assert (report.conclusion, report.exit_code, report.requests) == ("pass", 0, 600)
    assert sum(tally.violations for tally in report.tally.values()) == 0
    assert 10 < report.whole < 60


def test_a_replay_does_not_depend_on_the_number_of_its_writers(tmp_path: Path) -> None:
    replay = Replay(400, seed=3, sins={7: "swap_token", 300: "second_terminal"}, shards=2)
    found = []
    for parts in ([(0, 400)], [(0, 150), (150, 400)]):
        folder = tmp_path / str(len(parts))
        folder.mkdir()
        write_frame(folder, replay_case(replay), {})
        for writer, (first, end) in enumerate(parts):
            replay_part(folder, replay, writer, first, end)
        found.append(check_folder(folder).to_json())
    for measured in ("cpu_s", "wall_s", "rss_mb_max"):
        assert found[0].pop(measured) >= 0
        assert found[1].pop(measured) >= 0
    assert found[0] == found[1]
    assert found[0]["exit_code"] == 1


def test_what_is_kept_is_read_as_any_run(tmp_path: Path) -> None:
    generate(tmp_path, Replay(300, seed=3, sins={5: "swap_token"}, share=0.1))
    case = load_case(tmp_path)
    kept = {record.request_id: record for record in case.records}
    assert "r00005" in kept
    assert len(kept) == check_folder(tmp_path).whole
    assert kept["r00005"].tokens != case.golden[kept["r00005"].prompt_id].tokens


def dying(folder: Path, shard: int) -> ShardResult:
    """Judges, but for one shard that kills its process and one that breaks."""
    if shard == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if shard == 2:
        raise RuntimeError("planted")
    return judge_shard(folder, shard)


def test_a_shard_that_dies_is_unknown_for_itself_only(tmp_path: Path) -> None:
    generate(tmp_path, SMALL)
    alone = [judge_shard(tmp_path, shard).requests for shard in (0, 3)]
    report = check_folder(tmp_path, jobs=1, judge=dying)
    assert report.requests == sum(alone)
    assert report.conclusion == "unknown"
    assert report.exit_code == 2
    assert "shard 1 is unknown: its process died (exit code -9)" in report.notes
    assert "shard 2 is unknown: RuntimeError: planted" in report.notes
    assert all(tally.checked for tally in report.tally.values())


def test_a_lost_chunk_is_told_and_is_not_green(tmp_path: Path) -> None:
    generate(tmp_path, SMALL)
    last = tmp_path / "requests.parquet" / "0-000002.parquet"
    last.write_bytes(last.read_bytes()[:-9])
    report = check_folder(tmp_path)
    assert report.requests == 500
    assert report.conclusion == "unknown"
    assert "100 rows are lost" in report.lost[0]
    assert report.tally["golden.tokens"].unknown == {
        "requests that were planned are not in the history": 100,
        "pieces of the history are lost": 1,
    }


def test_a_recorder_whose_client_breaks_writes_what_it_has(tmp_path: Path) -> None:
    case = clean_case()
    write_frame(tmp_path, case, {})

    def break_off() -> None:
        with Recorder(tmp_path, case.golden, seed=1) as recorder:
            recorder.watch(case.records[0])
            raise KeyError

    with pytest.raises(KeyError):
        break_off()
    report = check_folder(tmp_path)
    assert (report.requests, report.conclusion) == (1, "unknown")
    assert "the history was not closed" in report.notes[0]


def test_a_wrong_answer_whose_tokens_are_lost_is_still_wrong(tmp_path: Path) -> None:
    sins = {7: "swap_token", 8: "move_canary", 9: "restart_stream"}
    generate(tmp_path, Replay(100, seed=3, sins=sins, shards=2))
    hide_torn(open_table(tmp_path / "history.parquet"))
    (tmp_path / "history.parquet" / "0-000000.parquet").unlink()
    report = check_folder(tmp_path)
    assert [one for one, _ in report.tally["golden.tokens"].first][:1] == ["r00007"]
    assert report.tally["stream.prefix"].first[0][0] == "r00009"
    canary = report.tally["isolation.canary"]
    assert (canary.conclusion, canary.violations) == ("unknown", 0)
    assert canary.unknown["requests look wrong, and their tokens are not in the history"] >= 1


def test_tokens_that_are_not_those_of_the_56_bytes_make_it_unknown(tmp_path: Path) -> None:
    case = clean_case()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    recorded(tmp_path / "a", case, share=1.0, shards=1, chunk_rows=100)
    other = with_record(case, 0, chunks=case.records[0].chunks[:-1])
    recorded(tmp_path / "b", other, share=1.0, shards=1, chunk_rows=100)
    theirs = tmp_path / "b" / "history.parquet" / "0-000000.parquet"
    ours = tmp_path / "a" / "history.parquet"
    (ours / theirs.name).write_bytes(theirs.read_bytes())
    (ours / "_0.jsonl").write_bytes((theirs.parent / "_0.jsonl").read_bytes())
    report = check_folder(tmp_path / "a")
    assert report.tally["isolation.canary"].unknown == {
        "whole requests are not what their 56 bytes say": 1
    }


def test_an_exchanged_set_of_prompts_is_refused(tmp_path: Path) -> None:
    generate(tmp_path, Replay(10))
    document = json.loads((tmp_path / "manifest.json").read_text())
    document["golden"].popitem()
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(SpecError, match="was the manifest exchanged"):
        check_folder(tmp_path)


def test_a_folder_without_a_run_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is no manifest of a run"):
        check_folder(tmp_path)


def test_requests_are_never_written_over(tmp_path: Path) -> None:
    generate(tmp_path, Replay(10))
    with pytest.raises(SpecError, match="holds requests already"):
        generate(tmp_path, Replay(10))
