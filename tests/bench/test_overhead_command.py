"""`python -m tocsin.bench.overhead`: options, tables, endings, and the make target."""

import io
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.bench.test_overhead_schema import COVERAGE, PLACE, PROTOCOL, ROW, coverage_file
from tests.checkout import ROOT
from tocsin.bench.overhead import schema
from tocsin.bench.overhead.__main__ import app
from tocsin.bench.overhead.bench import Bench
from tocsin.bench.overhead.coverage import Caught
from tocsin.bench.overhead.plan import Plan
from tocsin.bench.overhead.table import print_tables

RUNNER = CliRunner()


def _report(**changes: Any) -> schema.Overhead:
    noise = {"name": "A/A", "profile": "bare", "ratio_q25": 0.99, "ratio_median": 1.0}
    engine = {"name": "tocsin (engine)", "ratio_median": 1.021}
    rows = (ROW | noise, ROW, ROW | engine, ROW | {"name": "dmr", "profile": "default"})
    work = {
        "subject": "transformers",
        "layers": 30,
        "positions": 512,
        "pairs": 12,
        "bare_cpu_ms": 77.7,
        "bare_wall_ms": 88.8,
    }
    place = {key: PLACE[key] for key in ("mode", "dtype", "phase", "batch")}
    facts: dict[str, Any] = {
        "rows": tuple(schema.OverheadRow(**row) for row in rows),
        "unmeasured": (
            schema.Unmeasured(**PLACE | {"name": "sdcguard", "profile": "default"}, reason="why"),
        ),
        "details": (
            schema.Detail(**PLACE, wall_ratio_median=1.5, resolved=False, note="1093 checks"),
        ),
        "work": (schema.Work(**work | place),),
        "protocol": PROTOCOL,
        "complete": True,
    }
    return schema.Overhead(**facts | changes)


def _printed(report: schema.Overhead, coverage: Any = None) -> str:
    text = io.StringIO()
    print_tables(report, coverage or {}, Console(file=text, width=120))
    return text.getvalue()


def _line(text: str, start: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(start + " ")]
    return " ".join(line.split())


def test_the_table_shows_coverage_of_the_same_profile_beside_the_overhead() -> None:
    """Ours, the engine's from the same checks, a competitor's; unknown where none was run."""
    caught = {("tocsin", "full", "fp32"): Caught(200, 199, 0.972)}
    text = _printed(_report(), caught)
    assert "decode, batch 8, fp32, eager: 30 layers, 512 positions, bare step 77.7 ms CPU" in text
    full = _line(text, "tocsin full")
    assert full.startswith("tocsin full +2.0 % +1.0 % … +3.0 % +50.0 % 12 99.5% of 200 97.2%")
    assert "+2.1 %" in _line(text, "tocsin (engine) full")
    assert "99.5% of 200" in _line(text, "tocsin (engine) full")
    assert _line(text, "dmr") == "dmr +2.0 % +1.0 % … +3.0 % 12 ?"
    assert "make campaign" not in text


def test_rows_without_a_figure_stand_in_the_table_with_their_reason() -> None:
    """And so do rows whose effect is lost in the quartiles, and a run that was cut."""
    text = _printed(_report(complete=False))
    assert _line(text, "sdcguard") == "sdcguard — ? (2)"
    assert "(2) why" in text
    assert "(1) 1093 checks; quartiles wider than the effect" in text
    assert "The run did not come to its end" in text
    assert "run make campaign" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mode", "graph"], "--mode is 'graph', expected one of eager, compiled"),
        (["--dtype", "fp8"], "--dtype is 'fp8', expected one of fp32, bf16"),
        (["--phase", "both"], "--phase is 'both', expected one of decode, prefill"),
        (["--device", "tpu"], "--device is 'tpu', expected one of cpu, cuda"),
        (["--device", "cuda"], "--device is cuda, expected a GPU that torch sees"),
        (["--batch", "5"], "no step of the full plan is left"),
        (["--show"], "cannot be read"),
    ],
)
def test_a_bad_option_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    """Exit code 64, what was found and expected, no traceback; no report is made."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    output = tmp_path / "o.json"
    done = RUNNER.invoke(app, [*words, "--output", str(output)])
    assert done.exit_code == 64
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert not output.exists()


def test_the_last_report_is_printed_again_with_coverage(tmp_path: Path) -> None:
    """`--show` measures nothing."""
    schema.write(tmp_path / "o.json", _report())
    coverage_file(tmp_path / "c.json", COVERAGE)
    words = ["--show", "--output", str(tmp_path / "o.json"), "--coverage", str(tmp_path / "c.json")]
    done = RUNNER.invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "97.5% of 40" in _line(done.output, "tocsin full")


def test_an_interrupted_command_prints_what_there_is_and_ends_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of the rows so far, and one line with the name of the file."""
    output = tmp_path / "o.json"

    def run(self: Bench, plan: Plan) -> schema.Overhead:
        schema.write(self.output, _report(complete=False))
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "run", run)
    done = RUNNER.invoke(app, ["--quick", "--output", str(output)])
    assert done.exit_code == 130
    assert "tocsin full" in done.output
    assert f"interrupted; {output} holds what was measured" in done.output


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ((), "-m tocsin.bench.overhead"),
        (("QUICK=1",), "-m tocsin.bench.overhead --quick"),
        (("QUICK=1", "SEED=7"), "-m tocsin.bench.overhead --quick --seed 7"),
    ],
)
def test_make_bench_reaches_the_command(words: tuple[str, ...], command: str) -> None:
    """QUICK and SEED on the make line are its options."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    made = subprocess.run(
        ["make", "-n", "bench", *words],
        cwd=ROOT,
        env=clean,  # this may itself run under make, which then says more
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip().splitlines()[-1].split(maxsplit=1)[1].strip() == command
