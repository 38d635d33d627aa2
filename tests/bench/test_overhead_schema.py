"""The report on disk: the issue's form, refused when it is not, whole at any moment."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tocsin.bench.overhead import schema
from tocsin.bench.overhead.coverage import Caught, read_coverage
from tocsin.core.errors import EnvironmentFault, SpecError

PLACE: dict[str, Any] = {
    "name": "tocsin",
    "profile": "full",
    "mode": "eager",
    "dtype": "fp32",
    "phase": "decode",
    "batch": 8,
}
ROW: dict[str, Any] = {
    **PLACE,
    "pairs": 12,
    "ratio_q25": 1.01,
    "ratio_median": 1.02,
    "ratio_q75": 1.03,
}
PROTOCOL = schema.Protocol(
    plan="quick", seed=1, torch="2.13.0", torch_threads=1, device="cpu", clock=schema.CPU_TIME
)


def _report(**changes: Any) -> schema.Overhead:
    return schema.Overhead(rows=(schema.OverheadRow(**ROW),), protocol=PROTOCOL, **changes)


def test_a_row_has_exactly_the_fields_of_the_issue(tmp_path: Path) -> None:
    """Other programs read them by these names."""
    schema.write(tmp_path / "o.json", _report())
    (row,) = json.loads((tmp_path / "o.json").read_text())["rows"]
    assert list(row) == [
        "name",
        "profile",
        "mode",
        "dtype",
        "phase",
        "batch",
        "pairs",
        "ratio_q25",
        "ratio_median",
        "ratio_q75",
    ]


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    """With everything in it; the folder is made, and nothing but the file is left there."""
    report = _report(
        complete=True,
        unmeasured=(schema.Unmeasured(**PLACE | {"name": "dmr"}, reason="no time"),),
        details=(schema.Detail(**PLACE, wall_ratio_median=1.1, resolved=True, note="n"),),
    )
    path = tmp_path / "deep" / "o.json"
    schema.write(path, report)
    assert schema.read(path) == report
    assert [file.name for file in path.parent.iterdir()] == ["o.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"ratio_q25": 1.05},
        {"ratio_median": float("nan")},
        {"ratio_q75": float("inf")},
        {"pairs": 0},
        {"batch": 0},
        {"mode": "graph"},
        {"dtype": "float32"},
        {"phase": "chunk"},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_row_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    """Quartiles in order, finite figures, known words, nothing more."""
    with pytest.raises(ValidationError):
        schema.OverheadRow(**ROW | change)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rows": [{"name": "x"}]}'])
def test_a_file_of_another_form_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    """One line: where, what was found, what to do."""
    path = tmp_path / "o.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"is not an overhead report .*run: make bench") as caught:
        schema.read(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(SpecError, match="cannot be read"):
        schema.read(tmp_path / "none.json")


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    """And the old report stays."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="could not be written"):
        schema.write(tmp_path / "file" / "o.json", _report())


COVERAGE: dict[str, Any] = {
    "name": "tocsin",
    "profile": "full",
    "dtype": "fp32",
    "site": "all",
    "bits": "all",
    "trials": 100,
    "harmful": 40,
    "caught": 40,
    "caught_before_release": 39,
    "low95": 0.9,
}


def coverage_file(path: Path, *rows: dict[str, Any]) -> Path:
    """A file as the campaign writes it."""
    facts = {
        "rows": rows,
        "false_alarms": {"evaluations": 10, "alarms": 0},
        "repaired": {"trials": 1, "identical": 1},
    }
    path.write_text(json.dumps(facts))
    return path


def test_coverage_of_a_profile_is_its_headline_row(tmp_path: Path) -> None:
    """Faults of all sites and bits, caught in time; parts of it are not added a second time."""
    rows = (
        COVERAGE | {"site": "o_proj"},
        COVERAGE | {"bits": "uniform"},
        COVERAGE,
        COVERAGE | {"name": "dmr", "profile": "default", "dtype": "bf16"},
        COVERAGE
        | {"name": "nothing", "harmful": 0, "caught": 0, "caught_before_release": 0, "low95": 0},
    )
    found = read_coverage(coverage_file(tmp_path / "coverage.json", *rows))
    assert found == {
        ("tocsin", "full", "fp32"): Caught(40, 39, 0.9),
        ("dmr", "default", "bf16"): Caught(40, 39, 0.9),
    }


def test_coverage_that_is_not_there_is_empty_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    """The bench runs without a campaign, but it does not hide a file that it cannot read."""
    assert read_coverage(tmp_path / "none.json") == {}
    (tmp_path / "bad.json").write_text('{"rows": 3}')
    with pytest.raises(SpecError, match="is not a coverage report") as caught:
        read_coverage(tmp_path / "bad.json")
    assert "\n" not in str(caught.value)
