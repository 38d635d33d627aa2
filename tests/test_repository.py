"""Rules for every tracked file: nothing private, nothing unfinished, nothing unreadable."""

import ast
import re
from pathlib import Path

import pytest

from tests.checkout import PARTS, ROOT, modes, parsed, product_modules, tracked

LINES_MAX = 430
TEST_LINES_MAX = 600  # tables of valid and of faulty calls are long and flat
FUNCTION_LINES_MAX = 80
BYTES_MAX = 2 * 1024 * 1024

# Written in pieces, so that this file keeps the rule that it states.
HOSTS = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "npm" + "js.com",
    "deb." + "debian.org",
    "download." + "pytorch.org",
    "hugging" + "face.co",
]
PRIVATE = re.compile(r"(?<![\w.])/(?:" + "ro" + r"ot|wo" + r"rk|ho" + r"me/\w+|Us" + r"ers/\w+)/")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
JUNK_DRAWERS = {"utils.py", "helpers.py", "common.py", "misc.py"}


def _texts() -> list[tuple[Path, str]]:
    found = []
    for path in tracked():
        try:
            found.append((path, (ROOT / path).read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def _lines_with(pattern: "re.Pattern[str]") -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in _texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    """A clone works anywhere: no absolute path of a home or of the place of this checkout."""
    assert _lines_with(PRIVATE) == []
    assert [str(path) for path, text in _texts() if str(ROOT) + "/" in text] == []


def test_no_file_names_a_package_host() -> None:
    """Packages are named, never where they come from: that is for the reader's own settings."""
    assert _lines_with(re.compile("|".join(map(re.escape, HOSTS)))) == []


def test_nothing_is_left_unfinished() -> None:
    """No reminder of unfinished work is committed."""
    assert _lines_with(UNFINISHED) == []


def test_the_patterns_above_would_find_what_they_look_for() -> None:
    """The three tests above can fail."""
    assert PRIVATE.search("see /ro" + "ot/x")
    assert PRIVATE.search('"/wo' + 'rk/main"')
    assert not PRIVATE.search("/v1/models and store/latest/work/x")
    assert UNFINISHED.search("# TO" + "DO: later")


def test_every_module_says_in_one_sentence_what_it_holds() -> None:
    """The first line of each Python file is a docstring that ends like a sentence."""
    wrong = []
    for path in tracked(".py"):
        first = (ast.get_docstring(ast.parse((ROOT / path).read_text())) or "").partition("\n")[0]
        if not re.match(r"[\w`*\"“].*[.!?:]$", first):
            wrong.append(f"{path}: {first!r}")
    assert wrong == []


def test_every_module_can_be_read_in_one_sitting() -> None:
    """No module is longer than 430 lines, no test file than 600, no function than 80."""
    long = []
    for path in tracked(".py"):
        lines = len((ROOT / path).read_text().splitlines())
        if lines > (TEST_LINES_MAX if path.parts[0] == "tests" else LINES_MAX):
            long.append(f"{path}: {lines} lines")
    for path, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{path}:{node.lineno}: {node.name} has {lines} lines")
    assert long == []


def test_no_module_is_a_junk_drawer() -> None:
    """A file is named after what it holds."""
    assert [str(path) for path in tracked(".py") if path.name in JUNK_DRAWERS] == []


def test_imports_are_absolute_and_parts_go_by_their_full_name() -> None:
    """`from tocsin.checker import …`, never `from . import …` or `import checker`."""
    wrong = []
    for path, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names = ["." * node.level + (node.module or "")]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            wrong += [
                f"{path}:{node.lineno}: {name}"
                for name in names
                if name.startswith(".") or name.partition(".")[0] in PARTS
            ]
    assert wrong == []


def test_no_check_is_an_assert_statement() -> None:
    """`python -O` removes asserts, so product code does not check anything with them."""
    wrong = [
        f"{path}:{node.lineno}"
        for path, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]
    assert wrong == []


def test_no_tracked_file_is_heavy_or_generated() -> None:
    """Nothing above 2 MiB, no byte code, no run, no build."""
    wrong = [str(path) for path in tracked() if (ROOT / path).stat().st_size > BYTES_MAX]
    wrong += [str(path) for path in tracked(".pyc", ".whl", ".safetensors", ".gguf")]
    assert wrong == []


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_reached_through_a_link_that_git_keeps_as_a_link(part: str) -> None:
    """`tocsin/checker` is a link to `../checker`: one file, one name, in every clone."""
    assert modes()[f"tocsin/{part}"] == "120000"
    assert (ROOT / "tocsin" / part).readlink() == Path("..") / part


def test_there_is_something_to_look_at() -> None:
    """The rules above looked at files: a wrong root would make all of them pass."""
    assert len(product_modules()) >= 30
