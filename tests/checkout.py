"""The files of this repository as Git tracks them, read from the working tree."""

import ast
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("bench", "chaos", "checker", "dashboards", "helm", "ray_jobs")


@cache
def modes() -> dict[str, str]:
    """Path → Git's file mode: 100644, 100755, or 120000 for a link.

    Files that are new and not ignored count too: they are about to be added.
    """
    entries = (entry.partition("\t") for entry in _git("ls-files", "-sz"))
    new = dict.fromkeys(_git("ls-files", "-oz", "--exclude-standard"), "100644")
    return {path: facts.split()[0] for facts, _, path in entries} | new


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return [entry for entry in done.stdout.split("\0") if entry]


def tracked(*suffixes: str) -> list[Path]:
    """Tracked regular files, relative to the root, optionally with some suffixes only."""
    return [
        Path(path)
        for path, mode in modes().items()
        if mode != "120000"
        and (ROOT / path).is_file()
        and (not suffixes or Path(path).suffix in suffixes)
    ]


def product_modules() -> list[Path]:
    """Python files that the wheel carries: everything but the tests."""
    return [path for path in tracked(".py") if path.parts[0] in ("tocsin", *PARTS)]


def dotted(path: Path) -> str:
    """Import name of a product module: `checker/gate.py` is `tocsin.checker.gate`."""
    names = path.with_suffix("").parts
    if names[0] != "tocsin":
        names = ("tocsin", *names)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def parsed() -> Iterator[tuple[Path, ast.Module]]:
    """Each product module with its syntax tree."""
    for path in product_modules():
        yield path, ast.parse((ROOT / path).read_text(), filename=str(path))


def copy_to(folder: Path) -> Path:
    """A copy of the tracked files and links, as a clone would lay them."""
    for path, mode in modes().items():
        source, target = ROOT / path, folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            target.symlink_to(source.readlink())
        elif source.is_file():
            shutil.copy2(source, target)
    return folder
