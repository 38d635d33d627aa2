"""How a run leaves its machine: printed, published, or said not to be there."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ray_jobs.remote.kube import run_folder
from tocsin.chaos import wal
from tocsin.core.errors import ChaosForbidden, EnvironmentFault, SpecError
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.remote.archive import tocsin_version
from tocsin.ray_jobs.remote.delivery import Delivery
from tocsin.ray_jobs.remote.frame import FrameReader

MIB = 1 << 20


def ours(store: Path, pid: int | None = None) -> Path:
    """A run's folder that this process made."""
    folder = run_folder(store)
    log = wal.WriteAheadLog(folder / wal.NAME)
    log.write({"type": "run", "pid": pid or os.getpid()})
    log.close()
    return folder


def delivery(store: Path, lines: list[str], **options: object) -> Delivery:
    return Delivery(store, True, MIB, write=lines.append, **options)  # type: ignore[arg-type]


def read(lines: list[str]) -> FrameReader:
    reader = FrameReader()
    assert all(reader.is_ours(line) for line in lines)
    return reader


def test_the_run_of_this_process_is_printed_with_its_exit_code(tmp_path: Path) -> None:
    """Not one that was there before, nor one that another process makes beside it."""
    lines: list[str] = []
    with delivery(tmp_path, lines) as delivered:
        (tmp_path / "smoke" / "20250101T000000Z-old").mkdir(parents=True)
        delivered.begin("smoke")
        ours(tmp_path)
        other = ours(tmp_path / "other", pid=1)
        other.rename(tmp_path / "smoke" / "20291129T100000Z-other")
        assert delivered.finish(1) == 1
    header = read(lines).header
    assert header is not None
    assert header.name == "smoke/20261129T100000Z-0123456789ab"
    assert header.exit_code == 1
    assert header.tocsin == tocsin_version()
    assert read(lines).data()
    again: list[str] = []
    with delivery(tmp_path, again) as delivered:
        delivered.begin("smoke")
        assert delivered.finish(64) == 64
    assert read(again).header is None, "the first run of this process is not the second"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecError("x"), 64),
        (ChaosForbidden("x"), 4),
        (EnvironmentFault("x"), 3),
        (KeyboardInterrupt(), 130),
        (ValueError("a bug"), 3),
    ],
)
def test_whatever_ends_a_run_before_it_has_a_folder_is_said_with_its_code(
    tmp_path: Path, error: BaseException, code: int
) -> None:
    """So that a caller does not take it for a process that died."""
    lines: list[str] = []
    delivered = delivery(tmp_path, lines)
    delivered.__enter__()
    delivered.begin("smoke")
    delivered.__exit__(type(error), error, None)
    assert len(lines) == 1
    none = read(lines).none
    assert none is not None
    assert (none.exit_code, none.dry_run) == (code, False)


def test_a_caller_of_another_version_is_refused_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A patch release is no other version."""
    here = tocsin_version()
    major, minor, *_ = here.split(".")
    for caller, allowed in (
        ("", True),
        (here, True),
        (f"{major}.{minor}.99", True),
        (f"{major}.{int(minor) + 1}.0", False),
    ):
        monkeypatch.setenv("TOCSIN_CALLER", caller)
        lines: list[str] = []
        if allowed:
            delivery(tmp_path, lines).__enter__()
            continue
        with pytest.raises(EnvironmentFault, match=f"caller is tocsin {caller}"):
            delivery(tmp_path, lines).__enter__()
        assert '"exit_code": 3' in lines[0]


def test_a_run_is_published_whole_and_never_onto_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder stands for a bucket: fsspec does not know the difference."""
    url = f"file://{tmp_path}/bucket/runs"
    for copy in ("", ".1"):
        lines: list[str] = []
        store = tmp_path / f"store{copy}"
        with delivery(store, lines, publish_url=url) as delivered:
            delivered.begin("smoke")
            folder = ours(store)
            assert delivered.finish(0) == 0
        target = tmp_path / "bucket" / "runs" / "smoke" / f"{folder.name}{copy}"
        for path in (path for path in folder.rglob("*") if path.is_file()):
            assert (target / path.relative_to(folder)).read_bytes() == path.read_bytes()
        assert f"published at file://{target}" in capsys.readouterr().err


def test_a_pass_that_could_not_be_published_is_no_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A violation stays a violation; either way the archive is printed."""
    (tmp_path / "file").touch()
    for code, expected in ((0, 3), (1, 1)):
        lines: list[str] = []
        store = tmp_path / str(code)
        with delivery(store, lines, publish_url=f"file://{tmp_path}/file/in") as delivered:
            delivered.begin("smoke")
            ours(store)
            assert delivered.finish(code) == expected
        assert "the run was not copied there" in capsys.readouterr().err
        header = read(lines).header
        assert header is not None
        assert header.exit_code == expected


def test_a_place_that_nobody_knows_is_refused_before_the_run(tmp_path: Path) -> None:
    """Minutes earlier than the copy."""
    lines: list[str] = []
    with pytest.raises(EnvironmentFault, match=r"publish: nosuch://x"):
        delivery(tmp_path, lines, publish_url="nosuch://x").__enter__()
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("words", "code"), [(["no-such"], 64), (["smoke", "--dry-run"], 0), (["env:NOTHING"], 64)]
)
def test_the_command_ends_standard_output_with_one_line_that_says_there_is_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    """On the file descriptor itself, where a container runtime reads."""
    done = _command([*words, "--print-archive", "--store", str(tmp_path)])
    assert done == code
    last = capfd.readouterr().out.splitlines()[-1]
    document = json.loads(last.partition("NONE ")[2])
    assert document["exit_code"] == code
    assert document["dry_run"] is (code == 0)


def _command(words: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        app(["chaos", "run", *words])
    return int(caught.value.code or 0)


def test_options_that_need_a_cluster_are_refused_without_one() -> None:
    """A run must not begin on this machine because a variable was empty."""
    done = CliRunner().invoke(app, ["chaos", "run", "smoke", "--release", "demo"])
    assert done.exit_code == 64
    assert "--release demo says nothing without a cluster" in done.stderr
