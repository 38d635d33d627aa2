"""The report as a file: complete, self-contained, bounded in size, and safe whatever it quotes."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.report.recorded import Story
from tests.chaos.report.structure import structure_of
from tests.chaos.report.verdicts import RUNS, hostile, passing, verdict_of, violated
from tocsin.chaos.attribution import Detection
from tocsin.chaos.judge import judge
from tocsin.chaos.report import SIZE_BYTES_MAX, write_report
from tocsin.chaos.store import load_case, write_case

SECTIONS = (
    "verdict",
    "properties",
    "timeline",
    "faults",
    "phases",
    "diffs",
    "degraded",
    "reproductions",
    "selftest",
    "limits",
    "environment",
)

Written = Callable[[str], Path]


@pytest.mark.parametrize("name", RUNS)
def test_every_section_is_there_whatever_happened(written: Written, name: str) -> None:
    """A run that was cut short, or that never began, still leaves a whole report."""
    found = structure_of(written(name))
    assert [one for one in SECTIONS if one not in found.ids] == []
    assert found.unclosed == []
    assert len(found.ids) == len(set(found.ids))


@pytest.mark.parametrize("name", RUNS)
def test_the_file_loads_nothing_from_anywhere(written: Written, name: str) -> None:
    """Every reference is into the page itself, and no address of the network occurs at all."""
    path = written(name)
    found = structure_of(path)
    assert {one for one in found.loads if not one.startswith("#")} == {"data:,"}
    assert {one[1:] for one in found.loads if one.startswith("#")} <= set(found.ids)
    assert re.search(r"https?:|//[a-z]|@import|url\((?!#)", path.read_text("utf-8")) is None


@pytest.mark.parametrize("name", RUNS)
def test_every_run_fits_into_two_megabytes(written: Written, name: str) -> None:
    """Ordinary runs stay far below the limit."""
    assert written(name).stat().st_size < SIZE_BYTES_MAX / 4


@pytest.mark.release
def test_a_hundred_thousand_requests_fit_into_two_megabytes(tmp_path: Path) -> None:
    """Neither requests nor occurrences nor violations nor detections make the file grow."""
    case, verdict = violated(Story(requests=100_000, seconds=3600, tokens=2, per_fault=120))
    noise = tuple(Detection("state.kv_page_sum", case.t_start_ns + k, "w") for k in range(50_000))
    path = write_report(tmp_path, case, replace(verdict, detections=noise))
    assert path.stat().st_size < SIZE_BYTES_MAX
    text = structure_of(path).text
    assert f"{len(case.records):,}" in text["verdict"]
    assert "50,000 alarms belong to no injected fault" in text["faults"]


def test_long_hostile_labels_cost_detail_and_not_size(tmp_path: Path) -> None:
    """Where every label is long and escapes to five times its length there are fewer marks."""
    case, verdict = hostile(Story(requests=60, per_fault=40))
    for one in case.occurrences:
        one.state, one.error = "unhealed", '"' * 200
        one.evidence = replace(one.evidence, place='"' * 200) if one.evidence else None
    path = write_report(tmp_path, case, verdict)
    assert path.stat().st_size <= SIZE_BYTES_MAX
    assert "× fired" in path.read_text("utf-8")


def test_a_pass_says_what_was_proven(written: Written) -> None:
    """Verdict, exit code, seed, digest and the command to replay stand in the banner."""
    text = structure_of(written("passing")).text["verdict"]
    for words in ("Pass", "exit code 0", "No wrong answer got out", "chaos run first-light --seed"):
        assert words in text
    for words in ("20261129", "9f2c9f2c9f2c9f2c", "reference", "smollm2-135m", "full"):
        assert words in text


def test_the_replay_command_is_the_one_that_the_run_recorded(tmp_path: Path) -> None:
    """Options of the command line are part of it; versions and host come along."""
    document = {"replay": "tocsin chaos run x.yaml --profile off", "versions": {"ray": "2.60.0"}}
    (tmp_path / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    text = structure_of(write_report(tmp_path, *passing())).text
    assert "tocsin chaos run x.yaml --profile off" in text["verdict"]
    assert "versions.ray" in text["environment"]


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00"])
def test_a_broken_manifest_does_not_break_the_report(tmp_path: Path, content: str) -> None:
    """A run that was killed while it wrote still gets its report."""
    (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    text = structure_of(write_report(tmp_path, *passing())).text
    assert "tocsin chaos run first-light --seed 20261129" in text["verdict"]


def test_the_report_of_what_the_judge_itself_says(tmp_path: Path) -> None:
    """The made-up recording is a pass for the real judge, whose verdict is reported as it is."""
    case, _ = passing()
    # Its occurrences are made up: no seed has drawn them.
    case = replace(case, plan=replace(case.plan, occurrences=()))
    verdict = judge(case)
    assert verdict.reasons == ()
    assert verdict.exit_code == 0
    text = structure_of(write_report(tmp_path, case, verdict)).text
    assert verdict.sentence in text["verdict"]
    assert text["selftest"].count("✓ caught") == len(verdict.self_test) > 10
    assert all(row.id in text["properties"] for row in verdict.properties)


def test_a_violation_is_explained_from_banner_to_token_diff(written: Written) -> None:
    """The first violation leads to its diff, and every violated property to a next step."""
    path = written("violated")
    found = structure_of(path)
    assert "Violated" in found.text["verdict"]
    assert "exit code 1" in found.text["verdict"]
    wrong = violated()[1].silent_corruptions
    assert f"{wrong} wrong answers reached their users as if" in found.text["verdict"]
    assert wrong > 0
    assert "golden.tokens" in found.text["next"]
    assert f"and {wrong - 3} more of this kind" in found.text["next"]
    link = re.search(r'<a href="#(diff-\d+)">r-00030', path.read_text("utf-8"))
    assert link is not None
    assert link[1] in found.ids
    assert "no label: silent" in found.text["diffs"]
    assert "holds text of prompt p03" in found.text["diffs"]
    assert "the answer is empty" in found.text["diffs"]


def test_faults_that_nobody_saw_are_red_words_and_not_blank(written: Written) -> None:
    """An empty required cell of the matrix says so in a class that the style sheet makes red."""
    text = written("violated").read_text("utf-8")
    kinds = len({one.planned.kind for one in violated()[0].occurrences})
    assert text.count('<span class="miss">not detected</span>') == kinds
    assert "not detected" in structure_of(written("violated")).text["faults"]
    assert 'class="miss">not detected' not in written("passing").read_text("utf-8")


def test_unknown_and_vacuous_are_not_passes(written: Written) -> None:
    """Both are listed with their reason under what the run does not show."""
    text = structure_of(written("violated")).text["limits"]
    assert "recovery.bound is unknown" in text
    assert "no window was good after the last heal. This is not a pass." in text
    assert "kv.conservation is vacuous" in text


def test_missing_data_is_called_incomplete(written: Written) -> None:
    """An aborted run and an empty one say what is missing instead of showing zeros as results."""
    aborted = structure_of(written("aborted")).text
    assert "DATA INCOMPLETE: run aborted" in aborted["limits"]
    assert "ok_ratio was 0.31 < 0.5 for 10 s. Everything after" in aborted["limits"]
    assert "requests have no end in the history" in aborted["limits"]
    assert "The oracle was not tested in this run" in aborted["selftest"]
    empty = structure_of(written("empty")).text
    assert "DATA INCOMPLETE: no requests" in empty["limits"]
    assert empty["verdict"].count("no data") == 4
    assert "this is not a pass" in empty["diffs"]
    assert "Nothing happened that could be drawn" in empty["timeline"]


def test_charts_without_data_say_so(tmp_path: Path) -> None:
    """Faults but no token: the curves are replaced by words."""
    case, _ = passing()
    case = replace(case, records=())
    path = write_report(tmp_path, case, verdict_of(case))
    assert path.read_text("utf-8").count("no data: no token arrived") == 6


def test_a_pass_that_exits_otherwise_is_not_shown_as_one(tmp_path: Path) -> None:
    """An unhealed fault ends with 5 even when every property holds."""
    case, verdict = passing()
    path = write_report(tmp_path, case, replace(verdict, exit_code=5))
    assert "Not healed" in structure_of(path).text["verdict"]
    assert '<div class="banner bad"' in path.read_text("utf-8")


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """What a person typed or a model produced can neither run, load, nor turn the reading order."""
    path = write_report(tmp_path, *hostile())
    found = structure_of(path)
    text = path.read_text("utf-8")
    assert len(found.scripts) == 2
    assert not any("alert(" in script for script in found.scripts)
    assert found.handlers == []
    assert found.unclosed == []
    assert {one for one in found.loads if not one.startswith("#")} == {"data:,"}
    assert "\u202e" not in text
    assert "\x00" not in text
    assert "⟨U+202E⟩" in text
    assert "⟨U+D800⟩" in text
    assert "{{7*7}}" in text


def test_the_hover_data_is_json_that_cannot_end_its_element(written: Written) -> None:
    """The data block parses, and no angle bracket stands in it."""
    data = structure_of(written("passing")).scripts[0]
    assert "<" not in data
    series = json.loads(data)
    assert len(series["edges_s"]) == len(series["tokens_per_s"]) + 1


def test_the_policy_of_the_page_admits_only_its_own_script(written: Written) -> None:
    """The content security policy names a hash for the script, and nothing else."""
    policy = re.search(
        r'Content-Security-Policy" content="([^"]+)"', written("passing").read_text()
    )
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe" not in policy[1]
    assert policy[1].count("sha256-") == 2


def test_a_run_read_back_from_its_files_has_the_same_report(tmp_path: Path) -> None:
    """`chaos report` of an old run says what the run itself said, apart from the hour."""
    case, verdict = violated()
    write_case(tmp_path, case, {"state": "done"})
    now = structure_of(write_report(tmp_path, case, verdict)).text
    later = structure_of(write_report(tmp_path, load_case(tmp_path), verdict)).text
    assert {key: words for key, words in later.items() if key} == {
        key: words for key, words in now.items() if key
    }


def test_a_report_is_replaced_whole(tmp_path: Path) -> None:
    """Writing again replaces the file and leaves no draft behind."""
    case, verdict = passing()
    write_report(tmp_path, case, verdict)
    write_report(tmp_path, case, replace(verdict, sentence="Second time."))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "Second time." in structure_of(tmp_path / "report.html").text["verdict"]


def test_each_kind_of_failure_is_listed_with_a_command_that_runs_it(tmp_path: Path) -> None:
    """The index that the run left is shown; what is broken or hostile in it breaks nothing."""
    case, _ = passing()
    (tmp_path / "repro").mkdir()
    listed = {
        "check": "numerical.rms_range",
        "operator": "rms_norm",
        "elements": 460800,
        "minimal": 12,
        "test": "repro/01A/test_numerical_rms_range.py",
        "diagnosis": "bit 30 of one value <script>",
    }
    index = tmp_path / "repro" / "index.json"
    index.write_text(json.dumps([listed, "nonsense", {"elements": "many"}]))
    text = write_report(tmp_path, case, judge(case)).read_text("utf-8")
    assert "460,800" in text
    assert "test_numerical_rms_range.py" in text
    assert "<script>" not in text.split('id="reproductions"')[1].split("</section>")[0]
    index.write_text("{")
    text = write_report(tmp_path, case, judge(case)).read_text("utf-8")
    assert "No operator call was recorded in this run." in text
