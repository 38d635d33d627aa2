"""`tocsin reproduce`, the replay on the engine, and the reproductions of a chaos run."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from tests.checker.reproduction.recorded import failing, record
from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.checker.reproduce import REPRODUCED, run, write
from tocsin.checker.reproduction.archive import find
from tocsin.core.faulting import Order
from tocsin.core.requests import Request
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.commands.edge import EXIT_INVALID, EXIT_SPEC
from tocsin.ray_jobs.model_replay import NAME, replay
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.repros import INDEX, write_repros
from tocsin.ray_jobs.stack import build

pytestmark = pytest.mark.slow


def tocsin(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node folder as `$TOCSIN_STATE` names it; the current folder is empty."""
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("TOCSIN_STATE", str(state))
    monkeypatch.delenv("TOCSIN_JOURNAL", raising=False)
    monkeypatch.chdir(tmp_path)
    return state


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_one_command_writes_runs_and_counts(node: Path) -> None:
    """The walk of an alert: `latest:<operator> --run` ends with 0, and the metric says so."""
    failure_id = record(node, failing("numerical.swiglu"), "numerical.swiglu")
    result = tocsin("reproduce", "latest:swiglu", "--run")
    assert result.exit_code == 0, result.output
    assert "reproduced: it fails as recorded" in result.output
    assert (Path(f"repro-{failure_id}") / "test_numerical_swiglu.py").is_file()
    counted = list((node / "metrics").glob("repro-*"))
    assert counted
    assert b"tocsin_repro_runs_total" in counted[0].read_bytes()


def test_what_passes_here_is_said_and_ends_with_one(node: Path) -> None:
    """A failure that does not come back is no success."""
    call: Any = failing("numerical.residual")
    call.output = call.x + call.delta
    record(node, call, "numerical.residual", ratio=9.0)
    result = tocsin("reproduce", "latest", "--run")
    assert result.exit_code == 1
    assert "not reproduced" in result.output


@pytest.mark.parametrize("words", [("nonsense!",), ("latest",), ("latest", "--folder", "nowhere")])
def test_a_failure_that_is_not_there_is_one_line(words: tuple[str, ...], node: Path) -> None:
    """Exit code 64 and one line: no traceback."""
    result = tocsin("reproduce", *words)
    assert result.exit_code == EXIT_SPEC
    assert result.output.startswith("tocsin: reproduce: ")
    assert result.output.count("\n") == 1


def test_a_damaged_snapshot_is_one_line_and_hides_no_other(node: Path) -> None:
    """A cut document is named; `latest:<operator>` still finds the failure that is whole."""
    record(node, failing("numerical.swiglu"), "numerical.swiglu")
    failure_id = record(node, failing("numerical.residual"), "numerical.residual", number=1)
    path = node / "journal" / "snapshots" / failure_id / "call.json"
    path.write_text(path.read_text()[:40])
    result = tocsin("reproduce", "latest")
    assert result.exit_code == EXIT_INVALID
    assert "call.json is damaged" in result.output
    assert result.output.count("\n") == 1
    assert tocsin("reproduce", "latest:swiglu", "--no-shrink").exit_code == 0


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"[]", b'{"prompt_ids": 5}', b'{"prompt_ids": [[1]], "engine": 5}']
)
def test_a_request_that_is_damaged_is_one_line(node: Path, text: bytes) -> None:
    """The replay is refused by name; the test of the call is there all the same."""
    name = record(node, failing("numerical.swiglu"), "numerical.swiglu")
    (node / "journal" / "snapshots" / name / "request.json").write_bytes(text)
    result = tocsin("reproduce", "latest", "--no-shrink", "--model")
    assert result.exit_code == EXIT_SPEC
    assert "request.json is not the request of a failure" in result.stderr
    assert result.stderr.count("\n") == 1
    assert (Path(f"repro-{name}") / "test_numerical_swiglu.py").is_file()


def test_an_end_of_line_within_a_journal_text_hides_no_record(node: Path) -> None:
    """JSON leaves U+2028 as it is; the record's own words reach the test."""
    record(node, failing("numerical.swiglu"), "numerical.swiglu")
    path = node / "journal" / "failures-replica-1.jsonl"
    path.write_text(path.read_text().replace("a token is wrong", "a token\u2028 is wrong"))
    assert find("latest").facts["business_impact"] == "a token\u2028 is wrong"


def test_an_id_in_a_document_leads_nowhere_else(node: Path) -> None:
    """The folder is named by the snapshot's own name where the document's id is none."""
    name = record(node, failing("numerical.swiglu"), "numerical.swiglu")
    path = node / "journal" / "snapshots" / name / "call.json"
    path.write_text(path.read_text().replace(name, "x/../../evil"))
    assert tocsin("reproduce", "latest", "--no-shrink").exit_code == 0
    assert Path(f"repro-{name}").is_dir()


@pytest.mark.parametrize("limits", ["[1]", '{"limit_ulp": "wide"}'])
def test_thresholds_that_are_none_are_one_line(node: Path, limits: str) -> None:
    """A document of another version, or edited by hand."""
    name = record(node, failing("numerical.swiglu"), "numerical.swiglu")
    path = node / "journal" / "snapshots" / name / "call.json"
    known = json.loads(path.read_text())["thresholds"]
    wrong = json.loads(limits)
    if isinstance(wrong, dict):
        wrong = dict.fromkeys(known, "wide")
    path.write_text(json.dumps({**json.loads(path.read_text()), "thresholds": wrong}))
    result = tocsin("reproduce", "latest")
    assert result.exit_code == EXIT_SPEC
    assert "expected numbers by name" in result.output


def test_a_run_that_cannot_be_counted_is_told_all_the_same(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict is what was asked for; a metrics folder that takes nothing costs its count."""
    record(node, failing("numerical.swiglu"), "numerical.swiglu")
    (node / "metrics").write_text("not a folder")
    (node / "spans").write_text("not a folder")
    result = tocsin("reproduce", "latest:swiglu", "--no-shrink", "--run")
    assert "reproduced: it fails as recorded" in result.output
    assert "not counted" in result.output
    assert result.exit_code == 0
    assert (node / "metrics").read_text() == "not a folder"


def test_a_replay_without_prompts_says_what_to_switch_on(node: Path) -> None:
    """Prompts are not journalled unless somebody wants it."""
    record(node, failing("state.kv_page_sum"), "state.kv_page_sum")
    result = tocsin("reproduce", "latest", "--model")
    assert result.exit_code == EXIT_SPEC
    assert "journal_prompts" in result.output


def test_a_replay_serves_the_recorded_request_and_the_check_alarms_again(
    node: Path, tiny: Path
) -> None:
    """A fault that needs state: a page of the running request changes between two steps."""
    failure_id = record(node, failing("state.kv_page_sum"), "state.kv_page_sum")
    request = {
        "request_ids": ["r1"],
        "prompt_ids": [list(range(20, 60))],
        "sampling": {},
        "engine": {
            "path": str(tiny), "model": str(tiny), "slots": 2, "pages": 48, "max_length": 128,
        },
    }  # fmt: skip
    folder = node / "journal" / "snapshots" / failure_id
    (folder / "request.json").write_text(json.dumps(request))
    result = tocsin("reproduce", failure_id, "--model", "--out", "here")
    assert result.exit_code == 0, result.output
    script = Path("here") / NAME
    spec = importlib.util.spec_from_file_location("replayed", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scenario = module.SCENARIO
    assert scenario["check"] == "state.kv_page_sum"
    quiet = replay(scenario)
    assert quiet.checks == (), "without the fault nothing alarms"
    order = {"kind": "kv.bitflip", "seed": 3, "params": {}}
    again = replay({**scenario, "order": order})
    assert "state.kv_page_sum" in again.checks
    assert again.evidence
    assert all(finish.complete for finish in again.finishes.values())


def test_a_run_gets_one_reproduction_for_each_operator_and_check(tmp_path: Path) -> None:
    """The first failure of each kind; the index is what the report reads."""
    node, run_dir = tmp_path / "node", tmp_path / "run"
    first = record(node, failing("numerical.residual"), "numerical.residual", number=1)
    record(node, failing("numerical.residual"), "numerical.residual", number=2)
    third = record(node, failing("state.weight_sum"), "state.weight_sum", number=3)
    record(node, failing("numerical.swiglu"), "numerical.swiglu", number=4, full=False)
    (run_dir / "repro").mkdir(parents=True)
    (node / "journal" / "snapshots").rename(run_dir / "repro" / "snapshots")
    written = write_repros(run_dir)
    assert list(written) == [first, third]
    rows = json.loads((run_dir / "repro" / INDEX).read_text())
    assert [row["check"] for row in rows] == ["numerical.residual", "state.weight_sum"]
    assert run(run_dir / rows[0]["test"]) == REPRODUCED
    assert find(first, run_dir).failure_id == first, "a reproduction hides no snapshot"


def test_no_reproduction_is_begun_after_the_time_is_up(tmp_path: Path) -> None:
    """A run must end, however much went wrong in it."""
    node, run_dir = tmp_path / "node", tmp_path / "run"
    for number, check in enumerate(("numerical.residual", "numerical.swiglu", "numerical.rms_dot")):
        record(node, failing(check), check, number=number)
    (run_dir / "repro").mkdir(parents=True)
    (node / "journal" / "snapshots").rename(run_dir / "repro" / "snapshots")
    times = iter([0.0, 1.0, 9.0, 11.0])
    assert len(write_repros(run_dir, budget_s=10.0, clock_s=lambda: next(times))) == 2


def test_a_run_without_failures_has_no_index(tmp_path: Path) -> None:
    """Nothing is written where nothing failed."""
    (tmp_path / "repro").mkdir()
    assert write_repros(tmp_path) == {}
    assert not (tmp_path / "repro" / INDEX).exists()
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("kind", "check"),
    [("act.bitflip", "numerical.linear_checksum"), ("kv.write_race", "state.kv_page_sum")],
)
def test_what_a_real_engine_recorded_fails_again(
    kind: str, check: str, tiny: Path, node: Path
) -> None:
    """From a fault in a served engine, over gate, journal and snapshot, to a failing test."""
    journal = node / "journal" / "failures-r.jsonl"
    options = ServeOptions(
        path=str(tiny), model=str(tiny), slots=4, pages=64, max_length=128, threads=1
    )
    stack = build(options, replica="r", journal=journal)
    for number in range(3):
        ids = tuple(range(20 + number, 60))
        stack.engine.submit(Request(f"q{number}", ids, 10, ignore_eos=True))
    armed = False
    while stack.engine.has_work:
        step = stack.engine.stats().step
        if not armed and stack.engine.stats().tokens_released >= 4:
            armed = True
            stack.armoury.arm(Order("x@0", kind, 3, step, 600.0))
        stack.armoury.tick(step)
        stack.engine.step()
    stack.gate.journal.drain(10.0)
    stack.gate.close()
    found = find(f"latest:{check}", node)
    made = write(found, out=node / "out")
    assert made.fails
    assert made.check == check
    assert made.shrunk is not None
    # A page that attention read wrongly is one entry of twelve numbers: less there cannot be.
    assert made.shrunk.after <= max(12, made.shrunk.before // 100)
    assert found.facts["business_impact"]
    assert run(made.test) == REPRODUCED
