"""A run's folder through a log: packed small, framed, found again, unpacked, never torn unseen."""

import io
import random
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.ray_jobs.remote.kube import archive_lines, run_folder
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.remote.archive import LEFT_OUT_FIRST, pack, rank
from tocsin.ray_jobs.remote.frame import (
    WIDTH,
    FrameReader,
    Header,
    TornArchiveError,
    framed,
    lines_of,
)
from tocsin.ray_jobs.remote.unpack import unpack, unpack_log

MIB = 1 << 20
DATA = random.Random(7).randbytes(9000)


def header_of(data: bytes, name: str = "smoke/run") -> Header:
    import hashlib

    return Header(name, len(data), hashlib.sha256(data).hexdigest(), lines_of(len(data)), 0)


def read(lines: list[str]) -> FrameReader:
    reader = FrameReader()
    for line in lines:
        reader.is_ours(line)
    return reader


@pytest.mark.parametrize("size", [0, 1, 1535, 1536, 1537, 9000])
def test_an_archive_of_any_size_comes_back_as_it_went(size: int) -> None:
    """Around the width of a line above all."""
    lines = list(framed(DATA[:size], header_of(DATA[:size])))
    assert read(lines).data() == DATA[:size]
    assert all(len(line.encode()) < 4096 for line in lines), "written in one piece"
    assert {len(line.split()[3]) for line in lines[1:-2]} <= {WIDTH}


@given(st.randoms(use_true_random=False))
def test_prefixes_other_lines_repeats_and_disorder_do_no_harm(chance: random.Random) -> None:
    """As logs do: a time or a pod in front, a colour behind, progress of others in between."""
    lines = list(framed(DATA, header_of(DATA)))
    noisy = []
    for line in lines:
        noisy += ["[0:07] injecting faults"] * chance.randint(0, 2)
        noisy.append(chance.choice(["", "(pid=7) ", "2026-11-29T10:00:00Z pod/x "]) + line)
        noisy[-1] += chance.choice(["", "\x1b[0m", "\r", "\n"])
    noisy += chance.sample(noisy, 3)
    chance.shuffle(noisy)
    reader = FrameReader()
    shown = [line for line in noisy if not reader.is_ours(line)]
    assert set(shown) <= {"[0:07] injecting faults"}
    assert reader.data() == DATA


@pytest.mark.parametrize("place", range(7))
def test_each_line_that_is_missing_or_changed_is_noticed(place: int) -> None:
    """There is no line that a log may lose unseen, but the one that says END."""
    lines = list(framed(DATA, header_of(DATA)))
    assert len(lines) == 7 + 1
    with pytest.raises(TornArchiveError) as caught:
        read([line for n, line in enumerate(lines) if n != place]).data()
    assert str(caught.value).startswith("archive: ")
    if place:
        other = "A" if lines[place][40] != "A" else "B"
        lines[place] = lines[place][:40] + other + lines[place][41:]
        with pytest.raises(TornArchiveError, match="SHA-256"):
            read(lines).data()
        lines[place] = lines[place][:-5]
        with pytest.raises(TornArchiveError, match=r"cut|damaged"):
            read(lines).data()


def test_the_last_archive_of_a_log_is_the_one() -> None:
    """A container that was started twice has two runs in its log."""
    first, second = DATA[:4000], DATA[4000:]
    lines = [*framed(first, header_of(first)), *framed(second, header_of(second))]
    assert read(lines).data() == second
    assert read([*lines, *framed(first, header_of(first))]).data() == first


def test_an_archive_of_another_format_says_which_version_to_install() -> None:
    """It is not taken for one that is torn."""
    lines = list(framed(DATA, header_of(DATA)))
    lines[0] = lines[0].replace('"format": 1', '"format": 2')
    with pytest.raises(TornArchiveError, match="format 2, this tocsin reads format 1"):
        read(lines).data()


def test_what_does_not_fit_is_left_out_in_order_and_named(tmp_path: Path) -> None:
    """Recorded calls first, the verdict never; the header names what is missing."""
    folder = run_folder(tmp_path)
    noise = random.Random(1)
    for name, size in (
        ("repro/snapshots/a/call.pt", 300_000),
        ("repro/snapshots/b.pt", 200_000),
        ("logs/spans/s.jsonl", 150_000),
        ("repro/one.py", 100_000),
        ("history.parquet", 80_000),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(noise.randbytes(size))
    for limit, missing in (
        (900_000, []),
        (700_000, ["repro/snapshots/a/call.pt"]),
        (300_000, ["repro/snapshots/a/call.pt", "repro/snapshots/b.pt", "logs/spans/s.jsonl"]),
    ):
        packed = pack(folder, 0, limit)
        assert [path for path, _ in packed.header.left_out] == missing
        assert packed.header.left_out_count == len(missing)
        assert len(packed.data) == packed.header.bytes <= limit
    with tarfile.open(fileobj=io.BytesIO(pack(folder, 0, 10).data)) as tar:
        assert tar.getnames() == ["verdict.json"]


def test_a_run_of_a_thousand_files_names_only_the_largest_that_were_left_out(
    tmp_path: Path,
) -> None:
    """The first line of the frame is written in one piece too."""
    folder = run_folder(tmp_path)
    for number in range(1000):
        (folder / "repro" / ("long" * 20)).mkdir(parents=True, exist_ok=True)
        (folder / "repro" / ("long" * 20) / f"{number}.py").write_text("x" * number)
    packed = pack(folder, 0, 2000)
    assert packed.header.left_out_count > 900
    assert packed.header.left_out[0][1] == 999
    assert len(next(framed(packed.data, packed.header))) < 4096


def test_the_same_folder_gives_the_same_archive(tmp_path: Path) -> None:
    """Whoever packs it."""
    folder = run_folder(tmp_path)
    assert pack(folder, 0, MIB) == pack(folder, 0, MIB)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("repro/snapshots/x/y.pt", "repro/snapshots/*"),
        ("repro/x.py", "repro/*"),
        ("repro/verdict.json", "repro/*"),
        ("logs/run.log", "logs/*"),
        ("notes.txt", "*"),
        ("odd/folder/file", "*"),
        ("report.html", "report.html"),
        ("verdict.json", "verdict.json"),
    ],
)
def test_every_path_has_one_place_in_the_order(name: str, pattern: str) -> None:
    """A file in a folder has the folder's, whatever its own name is."""
    assert LEFT_OUT_FIRST[rank(name)] == pattern


def test_a_run_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    """The second copy gets a name of its own; the first keeps every byte."""
    lines, store = archive_lines(tmp_path / "far"), tmp_path / "store"
    first, _ = unpack_log(lines, store, "a log")
    (first / "mine.txt").write_text("note")
    second, header = unpack_log(lines, store, "a log")
    assert second.name == f"{first.name}.1"
    assert (first / "mine.txt").read_text() == "note"
    assert (store / "latest").resolve() == second.resolve()
    assert header.name == "smoke/20261129T100000Z-0123456789ab"
    assert sorted(path.name for path in store.iterdir()) == ["latest", "smoke"]


@pytest.mark.parametrize(
    "name", ["../x/run", "a/../../b", "/etc/cron.d", "x", "a/b/c", "a/.hidden"]
)
def test_an_archive_cannot_choose_a_place_outside_the_store(tmp_path: Path, name: str) -> None:
    """Its name is two plain words."""
    with pytest.raises(TornArchiveError, match="expected <experiment>/<run>"):
        unpack(DATA, replace(header_of(DATA), name=name), tmp_path / "store", "a log")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("member", ["../evil", "/tmp/evil", "link", "inner", "device"])
def test_a_member_that_leaves_the_folder_is_refused_and_nothing_kept(
    tmp_path: Path, member: str
) -> None:
    """A path upwards, an absolute one, a link, a device."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        one = tarfile.TarInfo(member)
        kinds = {"link": tarfile.SYMTYPE, "inner": tarfile.SYMTYPE, "device": tarfile.CHRTYPE}
        one.type = kinds.get(member, tarfile.REGTYPE)
        one.linkname = "verdict.json" if member == "inner" else "/etc/passwd"
        tar.addfile(one)
    data = buffer.getvalue()
    store = tmp_path / "deep" / "store"
    if member == "/tmp/evil":  # the filter makes it a path below the folder
        assert (unpack(data, header_of(data), store, "x") / "tmp" / "evil").is_file()
        return
    with pytest.raises(TornArchiveError, match="nothing"):
        unpack(data, header_of(data), store, "a log")
    assert list(store.iterdir()) == []
    assert not (tmp_path / "deep" / "evil").exists()


def test_bytes_that_are_no_archive_are_refused(tmp_path: Path) -> None:
    """Whole, with the right sum, and still not a tar.gz."""
    with pytest.raises(TornArchiveError, match=r"not a tar\.gz"):
        unpack(DATA, header_of(DATA), tmp_path / "store", "a log")


def test_a_log_is_unpacked_by_a_command_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For scheduled runs, whose caller is nobody: from a file, and from a pipe."""
    monkeypatch.chdir(tmp_path)
    log = "\n".join(["progress", *archive_lines(tmp_path / "far"), ""])
    (tmp_path / "run.log").write_text(log)
    runner = CliRunner()
    done = runner.invoke(app, ["chaos", "unpack", "run.log"])
    assert done.exit_code == 0
    assert Path(done.stdout.strip()).is_file()
    piped = runner.invoke(app, ["chaos", "unpack"], input=log)
    assert piped.exit_code == 0
    assert piped.stdout.strip().endswith(".1/report.html")
    empty = runner.invoke(app, ["chaos", "unpack"], input="progress\n")
    assert empty.exit_code == 3
    assert "holds no BEGIN line" in empty.stderr
    none = 'tocsin-archive - NONE {"format": 1, "exit_code": 64}\n'
    refused = runner.invoke(app, ["chaos", "unpack"], input=none)
    assert "ended with exit code 64 before it had a folder" in refused.stderr


@pytest.mark.parametrize(
    "line",
    [
        f"tocsin-archive {'0' * 8} BEGIN " + '{"bytes": Infinity}',
        "tocsin-archive - NONE " + '{"exit_code": Infinity}',
        f"tocsin-archive {'0' * 8} BEGIN " + "[" * 200_000,
        f"tocsin-archive {'0' * 8} {'9' * 5000} AAAA",
        f"tocsin-archive {'0' * 8} BEGIN "
        + f'{{"name": "a/b", "bytes": {10**13}, "lines": {lines_of(10**13)}, "exit_code": 0, '
        + f'"sha256": "{"0" * 64}"}}',
    ],
)
def test_a_line_that_lies_about_its_archive_costs_nothing(line: str) -> None:
    """Neither a traceback nor minutes of counting."""
    with pytest.raises(TornArchiveError):
        read([line]).whole()


@pytest.mark.parametrize("names", [["a", "a/b"], ["b" * 300], ["origin.json/x"]])
def test_members_that_cannot_be_files_are_the_archives_fault(
    tmp_path: Path, names: list[str]
) -> None:
    """Not the store's, which has room."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    data = buffer.getvalue()
    with pytest.raises(TornArchiveError, match="nothing was kept"):
        unpack(data, header_of(data), tmp_path / "store", "test")
    assert list((tmp_path / "store").iterdir()) == []


def test_no_run_takes_the_place_of_the_link_to_the_newest(tmp_path: Path) -> None:
    """store/latest would lead into itself, and every later run would fail."""
    with pytest.raises(TornArchiveError, match="latest/run"):
        unpack(DATA, header_of(DATA, "latest/run"), tmp_path / "store", "test")
