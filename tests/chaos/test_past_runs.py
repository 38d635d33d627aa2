"""The runs of a store: robust against what a crash leaves, deaf to names that lead elsewhere."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.chaos.past_runs import find_run, past_runs, run_of_id
from tocsin.core.errors import SpecError

DIGEST = "0123456789ab"


def _make(store: Path, experiment: str, stamp: str, verdict: object = None) -> Path:
    folder = store / experiment / f"{stamp}-{DIGEST}"
    folder.mkdir(parents=True)
    manifest = {"spec": {"seed": 3}, "t_start_ns": 5, "t_end_ns": 2_000_000_005}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    if verdict is not None:
        (folder / "verdict.json").write_text(json.dumps(verdict), encoding="utf-8")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two runs of one experiment, the newer without a verdict, and a file beside them."""
    root = tmp_path / "store"
    _make(root, "a", "20261129T180000Z", {"verdict": "pass", "exit_code": 0, "seed": 7})
    _make(root, "a", "20261129T190000Z")
    (root / "a" / "notes.txt").write_text("mine")
    (root / "README").write_text("mine")
    return root


def test_runs_are_listed_newest_first_with_what_is_known(store: Path) -> None:
    """A seed comes from the verdict, or from the manifest where there is none yet."""
    newer, older = past_runs(store)
    assert (newer.begun, newer.verdict, newer.seed) == ("2026-11-29 19:00:00", "", 3)
    assert (older.verdict, older.exit_code, older.seed, older.length_s) == ("pass", 0, 7, 2.0)
    assert not older.report
    assert past_runs(store, "b") == ()
    assert past_runs(store / "nowhere") == ()


@pytest.mark.parametrize(
    "text", ["", "{", '{"verdict": ', "[1, 2]", "null", '"pass"', "\x00\x01", '{"verdict": 3}']
)
def test_a_half_written_file_hides_neither_the_run_nor_the_others(store: Path, text: str) -> None:
    """It reads as if nothing had been written yet."""
    for name in ("verdict.json", "manifest.json"):
        (store / "a" / f"20261129T180000Z-{DIGEST}" / name).write_text(text)
    _, spoilt = past_runs(store)
    assert (spoilt.verdict, spoilt.seed, spoilt.length_s) == ("", None, None)


@given(st.binary(max_size=64))
def test_no_content_of_a_verdict_breaks_the_list(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """Whatever a crash, a full disk or a person left there."""
    root = tmp_path_factory.mktemp("store")
    folder = _make(root, "a", "20261129T180000Z")
    (folder / "verdict.json").write_bytes(content)
    assert len(past_runs(root)) == 1


def test_a_name_leads_to_the_newest_run_with_a_verdict(store: Path) -> None:
    """A run that still goes on cannot be compared; a folder or an id is taken as it is."""
    older = store / "a" / f"20261129T180000Z-{DIGEST}"
    assert find_run(store, "a") == older.resolve()
    assert find_run(store, str(older)) == older.resolve()
    assert find_run(store, f"a/{older.name}") == older.resolve()
    (store / "latest").symlink_to(older, target_is_directory=True)
    assert find_run(store, "latest") == older.resolve()


@pytest.mark.parametrize("name", ["b", "latest", "../a", "a/nothing", "", "/"])
def test_a_name_without_a_run_is_a_spec_error_that_tells_the_known_ones(
    store: Path, name: str
) -> None:
    """One line, with the experiments that are there."""
    with pytest.raises(SpecError, match="has runs of a"):
        find_run(store, name)


@pytest.mark.parametrize(
    "run_id",
    [
        "../../etc/passwd",
        f"../a/20261129T180000Z-{DIGEST}",
        f"a/../a/20261129T180000Z-{DIGEST}",
        "a/..",
        "a/",
        "/etc",
        "latest/x",
        f"a/20261129T180000Z-{DIGEST}\n",
        f"a/20261129T180000Z-{DIGEST}/../../..",
        f"a\x00/20261129T180000Z-{DIGEST}",
    ],
)
def test_an_id_never_leads_out_of_the_store(store: Path, run_id: str) -> None:
    """Ids are names of a fixed form, never paths."""
    assert run_of_id(store, run_id) is None
    assert run_of_id(store, f"a/20261129T180000Z-{DIGEST}") is not None


def test_links_are_not_followed(store: Path, tmp_path: Path) -> None:
    """Neither a run nor an experiment that is a link is listed or handed out."""
    outside = tmp_path / "outside"
    _make(outside, "b", "20261129T200000Z", {"verdict": "pass"})
    (store / "b").symlink_to(outside / "b", target_is_directory=True)
    inside = store / "a" / f"20261129T210000Z-{DIGEST}"
    inside.symlink_to(outside / "b" / f"20261129T200000Z-{DIGEST}", target_is_directory=True)
    assert len(past_runs(store)) == 2
    assert run_of_id(store, f"b/20261129T200000Z-{DIGEST}") is None
    assert run_of_id(store, f"a/{inside.name}") is None
