"""From a snapshot to a pytest file that fails as recorded, for every declared check."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import tocsin
from tests.checker.reproduction.realistic import REALISTIC
from tests.checker.reproduction.recorded import WALL_MS, failing, record
from tocsin.checker.checks.numerical.linear_checksum import checksums
from tocsin.checker.contract import registry
from tocsin.checker.reproduce import (
    NOT_REPRODUCED,
    REPRODUCED,
    Reproduction,
    outcome_of,
    reproduction,
    run,
)
from tocsin.checker.shrink import read
from tocsin.core.errors import SpecError
from tocsin.core.ids import new_ulid

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reproductions(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Reproduction]:
    """One reproduction a declared check, in half precision where it has numbers."""
    base = tmp_path_factory.mktemp("reproductions")
    found = {}
    for number, check in enumerate(registry()):
        failure_id = record(base / "node", failing(check, torch.bfloat16), check, number=number)
        found[check] = reproduction(failure_id, out=base / "out" / check, folder=base / "node")
    return found


@pytest.fixture(scope="module")
def results(reproductions: Mapping[str, Reproduction]) -> Path:
    """What pytest makes of all of them, in one process of its own."""
    folder = next(iter(reproductions.values())).folder.parent
    (folder / "pytest.ini").write_text("[pytest]\n")
    path = folder / "results.xml"
    subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c",
            str(folder / "pytest.ini"), "--import-mode=importlib", f"--junitxml={path}",
            *(str(one.test) for one in reproductions.values()),
        ],
        check=False,
        capture_output=True,
        timeout=120,
    )  # fmt: skip
    return path


@pytest.mark.parametrize("check", list(registry()))
def test_every_check_has_a_reproduction_that_fails_as_recorded(
    check: str, reproductions: Mapping[str, Reproduction], results: Path
) -> None:
    """Run by pytest itself: the same check raises, and the call without the fault passes."""
    made = reproductions[check]
    assert made.fails
    assert outcome_of(results, made.test) == REPRODUCED


def test_the_file_says_what_was_found_when_what_it_costs_and_how_to_run_it(tmp_path: Path) -> None:
    """A person who has never seen Tocsin can start from this file alone."""
    check, make = REALISTIC["a residual"]
    folder = tocsin.reproduce_from_log(
        record(tmp_path, make(), check), out=tmp_path / "out", folder=tmp_path
    )
    text = (folder / "test_numerical_residual.py").read_text()
    for words in (
        "the residual is",
        "2026-11-29T19:02:33",
        "a token is wrong",
        "transient: the same step, run again, was clean",
        "1 of 4,608 numbers of output are not what a plain reference gives",
        "with bit 27",
        "13,824 tensor elements became 3",
        "python -m pytest test_numerical_residual.py",
    ):
        assert words in " ".join(text.split()), words
    assert max(map(len, text.splitlines())) <= 100


def test_a_reproduction_turns_green_with_an_operator_that_is_right(tmp_path: Path) -> None:
    """The hook in the file: who repairs the operator sees the tests pass."""
    check, make = REALISTIC["a residual"]
    made = reproduction(record(tmp_path, make(), check), out=tmp_path / "out", folder=tmp_path)
    text = made.test.read_text()
    assert text.count("    return call\n") == 1
    made.test.write_text(
        text.replace("    return call\n", "    return replace(call, output=call.x + call.delta)\n")
    )
    assert run(made.test) == NOT_REPRODUCED


def test_a_run_in_a_process_of_its_own_says_reproduced(tmp_path: Path) -> None:
    """Settings of the project around the folder do not reach in: warnings are errors here."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not mine')\n")
    check, make = REALISTIC["a slot used twice"]
    made = reproduction(record(tmp_path, make(), check), out=tmp_path / "out", folder=tmp_path)
    said: list[str] = []
    assert run(made.test, output=said) == REPRODUCED, said


def test_limits_that_were_changed_are_those_of_the_reproduction(tmp_path: Path) -> None:
    """Recorded under a tighter limit, a call that the declared limit allows fails again."""
    call: Any = failing("numerical.residual")
    call.output = (call.x + call.delta).clone()
    call.output.view(-1)[-1] *= 1 + 2.0**-20
    unit = registry()["numerical.residual"]
    assert read(unit, call).fails
    loose = {"limit_ulp": 1e9}
    failure_id = record(tmp_path, call, "numerical.residual", thresholds=loose)
    made = reproduction(failure_id, out=tmp_path / "out", folder=tmp_path)
    assert not made.fails
    assert made.shrunk is None
    assert "limit_ulp=1000000000.0" in made.test.read_text()


def test_without_shrinking_the_recorded_call_alone_is_run(tmp_path: Path) -> None:
    """`--no-shrink`."""
    check, make = REALISTIC["a residual"]
    made = reproduction(
        record(tmp_path, make(), check), out=tmp_path / "out", folder=tmp_path, smaller=False
    )
    assert "def minimal" not in made.test.read_text()
    assert run(made.test) == REPRODUCED


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("not an id", "expected 26 letters and digits"),
        ("01HZZZZZZZZZZZZZZZZZZZZZZZ", "found no failure"),
        ("latest:rmsnorm", "found operator 'rmsnorm', expected one of"),
        ("latest:swiglu", "found no recorded failure of swiglu"),
    ],
)
def test_a_bad_id_is_one_clear_line(wanted: str, words: str, tmp_path: Path) -> None:
    """What was found, what was expected, what to do."""
    record(tmp_path, failing("numerical.residual"), "numerical.residual")
    with pytest.raises(SpecError, match=words) as raised:
        reproduction(wanted, folder=tmp_path)
    assert "\n" not in str(raised.value)


def test_a_folder_that_is_none_is_one_clear_line(tmp_path: Path) -> None:
    """Not an empty search."""
    with pytest.raises(SpecError, match="is not a folder"):
        reproduction("latest", folder=tmp_path / "nowhere")


def test_a_failure_with_numbers_only_says_which_one_to_take(tmp_path: Path) -> None:
    """Ninety-nine of a hundred are recorded as min, max, mean and deviation."""
    failure_id = record(tmp_path, failing("numerical.residual"), "numerical.residual", full=False)
    with pytest.raises(SpecError, match="latest:residual"):
        reproduction(failure_id, folder=tmp_path)


def test_a_failure_in_the_journal_without_a_snapshot_says_so(tmp_path: Path) -> None:
    """The id is right, the tensors were not kept: another word than `not found`."""
    failure_id = record(tmp_path, failing("numerical.residual"), "numerical.residual")
    other = new_ulid(WALL_MS + 5, b"\1" * 10)
    with (tmp_path / "journal" / "failures-replica-1.jsonl").open("a") as file:
        file.write(json.dumps({"failure_id": other}) + "\n")
    with pytest.raises(SpecError, match="has no snapshot"):
        reproduction(other, folder=tmp_path)
    assert reproduction(failure_id, out=tmp_path / "out", folder=tmp_path).fails


def test_a_check_of_another_version_is_one_clear_line(tmp_path: Path) -> None:
    """A journal outlives a version."""
    about = {"check": "numerical.gone"}
    failure_id = record(tmp_path, failing("numerical.residual"), "numerical.residual", **about)
    with pytest.raises(SpecError, match="install the version of tocsin that recorded it"):
        reproduction(failure_id, folder=tmp_path)


def test_the_latest_of_an_operator_is_found_in_a_node_and_in_a_run(tmp_path: Path) -> None:
    """The command of an alert: `tocsin reproduce latest:<operator>`."""
    for number, check in enumerate(("numerical.residual", "numerical.rms_dot", "numerical.swiglu")):
        record(tmp_path / "node", failing(check), check, number=number)
    last = record(tmp_path / "node", failing("numerical.rms_dot"), "numerical.rms_dot", number=9)
    assert reproduction("latest", out=tmp_path / "a", folder=tmp_path / "node").failure_id == last
    norm = reproduction("latest:rms_norm", out=tmp_path / "b", folder=tmp_path / "node")
    assert norm.failure_id == last
    swiglu = reproduction("latest:swiglu", out=tmp_path / "c", folder=tmp_path / "node")
    assert swiglu.check == "numerical.swiglu"
    run_dir = tmp_path / "store" / "smoke" / "run" / "repro"
    run_dir.mkdir(parents=True)
    (tmp_path / "node" / "journal" / "snapshots").rename(run_dir / "snapshots")
    found = reproduction(last[:25], out=tmp_path / "d", folder=tmp_path / "store")
    assert found.failure_id == last
    assert found.fails


def test_a_product_whose_large_weight_was_not_stored_is_reproduced_by_its_block_sums(
    tmp_path: Path,
) -> None:
    """The weight in such a record merely has the right shape: no reference may be made of it."""
    call: Any = REALISTIC["a product"][1]()
    sums, norms, _, _ = checksums(call)
    call.block_sums, call.block_norms = sums.clone(), norms.clone()
    call.weight = call.weight[:1].expand_as(call.weight)
    failure_id = record(tmp_path, call, "numerical.linear_checksum", reduced=["weight"])
    made = reproduction(failure_id, out=tmp_path / "out", folder=tmp_path)
    assert made.diagnosis.verdict == "no weight"
    assert "trusted sums of the weight give" in made.diagnosis.words
    assert made.shrunk is not None
    assert made.shrunk.twin is not None
    assert made.shrunk.after * 100 <= made.shrunk.before
    assert "of weight only what the check reads" in " ".join(made.test.read_text().split())
    assert run(made.test) == REPRODUCED


def test_logits_without_their_weight_keep_their_bound(tmp_path: Path) -> None:
    """A hidden state that is cut is shorter, and its logits would seem too large: it is not cut."""
    call: Any = REALISTIC["a logit"][1]()
    call.logits = call.hidden @ call.weight.T
    call.weight_norm_max = call.weight.norm(dim=-1).amax()
    call.logits[3, 7] = 3.0 * call.hidden[3].norm() * call.weight_norm_max
    call.weight = call.weight[:1].expand_as(call.weight)
    failure_id = record(tmp_path, call, "numerical.logits_bound", reduced=["weight"])
    made = reproduction(failure_id, out=tmp_path / "out", folder=tmp_path)
    assert made.shrunk is not None
    assert made.shrunk.after <= 4
    assert 1.5 <= made.shrunk.ratio < 12.0
