"""What the tests of past runs share: a store with runs in one process, made once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.compare.stores import make_store


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the runs by name; nobody writes into them."""
    return make_store(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def store(made: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of that store which a test may spoil."""
    return Path(shutil.copytree(made["store"], tmp_path / "store", symlinks=True))


@pytest.fixture
def altered(made: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a run whose verdict.json says something else."""

    def alter(name: str, **changes: object) -> Path:
        folder = Path(shutil.copytree(made[name], tmp_path / "small" / made[name].name))
        told = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
        (folder / "verdict.json").write_text(json.dumps({**told, **changes}), encoding="utf-8")
        return folder

    return alter
