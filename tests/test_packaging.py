"""What is installed: one name, light to import, complete in a wheel, and layered as drawn."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.checkout import PARTS, ROOT, copy_to, dotted, parsed, product_modules, tracked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BASE = {"numpy", "pydantic", "torch"}


def _distribution(requirement: str) -> str:
    """Normalised name at the start of a requirement: `ray[serve]>=2` is `ray`."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[._-]+", "-", found.group()).lower() if found else ""


def _declared() -> set[str]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    groups = [project["dependencies"], *extras]
    return {_distribution(line) for group in groups for line in group} - {"tocsin"}


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {_distribution(name): version for name, version in pairs}


def _run(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files, laid elsewhere as a clone would lay them."""
    return copy_to(tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="module")
def wheel_names(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a wheel that was built from the tracked files alone."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w"]
    built = _run(sys.executable, *words, str(folder), str(copy), cwd=copy)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("tocsin-*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_a_wheel_holds_every_module_under_the_one_name(wheel_names: set[str]) -> None:
    """The links are followed: each module of each part is in the wheel as tocsin/<part>/…."""
    expected = {
        str(path if path.parts[0] == "tocsin" else Path("tocsin") / path)
        for path in product_modules()
    }
    assert expected - wheel_names == set()


def test_a_wheel_puts_no_generic_name_into_site_packages(wheel_names: set[str]) -> None:
    """Nobody's own `checker.py` is shadowed: the only top-level package is tocsin."""
    tops = {name.partition("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tocsin"}


def test_a_wheel_holds_the_data_files_beside_the_modules(wheel_names: set[str]) -> None:
    """Experiments, prompts and the typing mark are installed too."""
    data = {
        str(path if path.parts[0] == "tocsin" else Path("tocsin") / path)
        for path in tracked()
        if path.parts[0] in ("tocsin", *PARTS) and path.suffix != ".py"
    }
    assert "tocsin/py.typed" in data
    assert data - wheel_names == set()


@pytest.mark.parametrize("part", PARTS)
def test_a_part_refuses_its_bare_name_and_says_the_right_one(part: str) -> None:
    """`import checker` in a clone would make a second copy of every module: it is refused."""
    tried = _run(sys.executable, "-c", f"import {part}", cwd=ROOT)
    assert tried.returncode != 0
    assert f"import tocsin.{part}, not {part}" in tried.stderr


def _base_closure() -> set[str]:
    """The three base distributions and what they themselves bring along."""
    closure: set[str] = set()
    todo = set(BASE)
    while todo:
        name = todo.pop()
        closure.add(name)
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform, or an extra
        todo |= {_distribution(line) for line in requires if "extra ==" not in line} - closure
    return closure


BLOCKER = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)
sys.meta_path.insert(0, Block())
"""


def _with_base_only(program: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in a process that sees torch, numpy, pydantic, what they need, and tocsin."""
    allowed = _base_closure() | {"tocsin"}
    blocked = sorted(
        name
        for name, owners in importlib.metadata.packages_distributions().items()
        if not {_distribution(owner) for owner in owners} & allowed
    )
    assert {"ray", "transformers"} <= set(blocked)
    return _run(sys.executable, "-c", f"BLOCKED = set({blocked!r})\n{BLOCKER}\n{program}", cwd=ROOT)


def test_the_checker_imports_with_torch_numpy_and_pydantic_alone() -> None:
    """`tocsin` can be attached in a process that has nothing else of ours installed."""
    done = _with_base_only("import tocsin, tocsin.checker, tocsin.core")
    assert done.returncode == 0, done.stderr


def test_the_process_with_the_base_alone_is_really_cut_off() -> None:
    """The test above can fail: transformers is installed here and not to be had there."""
    done = _with_base_only("import transformers")
    assert "blocked: transformers" in done.stderr


def _imported() -> dict[str, set[str]]:
    """Third-party distribution → modules of ours that import it, anywhere in the file."""
    owners = importlib.metadata.packages_distributions()
    found: dict[str, set[str]] = {}
    for path, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            for name in names:
                top = name.partition(".")[0]
                if top in sys.stdlib_module_names or top == "tocsin":
                    continue
                owner = _distribution(owners.get(top, [top])[0])
                found.setdefault(owner, set()).add(dotted(path))
    return found


def test_every_package_that_is_imported_is_declared() -> None:
    """No module leans on a package that only somebody else's requirement happens to bring."""
    imports = {owner: names for owner, names in _imported().items() if owner not in _declared()}
    assert imports == {}


def test_every_direct_dependency_is_pinned() -> None:
    """One constraints file says the version of everything that pyproject.toml names."""
    assert _declared() - set(_pins()) == set()


def test_what_is_installed_here_is_what_is_pinned() -> None:
    """The figures and the green tests belong to the pinned versions, not to some others."""
    wrong = {}
    for name in sorted(_declared() & set(_pins())):
        try:
            # Some write `v1.2` into their metadata; the installer reads it as 1.2.
            version = importlib.metadata.version(name).partition("+")[0].removeprefix("v")
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed here
        if version != _pins()[name]:
            wrong[name] = f"{version} installed, {_pins()[name]} pinned"
    assert wrong == {}


def test_the_command_leads_to_a_function_that_exists() -> None:
    """`tocsin` on the command line is an entry point that loads."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="tocsin")
    assert callable(entry.load())


def _lint_imports(folder: Path) -> "subprocess.CompletedProcess[str]":
    command = Path(sys.executable).with_name("lint-imports")
    return _run(str(command), "--no-cache", cwd=folder)


def test_the_parts_are_layered_as_drawn(copy: Path) -> None:
    """Only ray_jobs and bench know the other parts; siblings never import each other."""
    done = _lint_imports(copy)
    assert done.returncode == 0, done.stdout
    assert "1 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("checker/contract.py", "tocsin.chaos.contract"),
        ("chaos/contract.py", "tocsin.checker.contract"),
        ("tocsin/engine/__init__.py", "tocsin.ray_jobs"),
        ("tocsin/core/clock.py", "tocsin.checker.contract"),
    ],
)
def test_a_forbidden_import_is_seen_through_the_links(
    module: str, forbidden: str, tmp_path: Path
) -> None:
    """The contract looks into the real folders behind the links, and turns red."""
    clone = copy_to(tmp_path)
    text = (clone / module).read_text()
    (clone / module).write_text(f"{text}\nimport {forbidden}  # against the picture\n")
    done = _lint_imports(clone)
    assert done.returncode == 1, done.stdout
    assert forbidden in done.stdout
