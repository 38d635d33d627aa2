"""The documents are true: pages match the code, links lead somewhere, examples run."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from docs import generate
from tests.checkout import ROOT, copy_to, tracked
from tocsin.core.terms import Cause, Layer, Priority, Profile

GENERATED = ("architecture.md", "contracts.md", "dashboards.md", "faults.md")


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _anchors(page: Path) -> set[str]:
    """Fragments of a page's headings, as Markdown viewers make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_what_the_declarations_say_now(name: str) -> None:
    """Nobody edits these pages by hand and nobody forgets them: `make docs` writes them."""
    page = ROOT / "docs" / name
    assert page.read_text(encoding="utf-8") == generate.pages()[page], "run `make docs`"


def test_each_module_is_in_the_file_list_or_on_a_generated_page() -> None:
    """One line a file: a module that nobody can find is not documented."""
    listed = set(re.findall(r"^\| `([^`]+\.py)` \|", _text("docs/architecture.md"), re.MULTILINE))
    elsewhere = tuple(f"{folder}/" for folder in generate.LISTED_ELSEWHERE)
    missing = [
        path.as_posix()
        for path in tracked(".py")
        if path.parts[0] in generate.PACKAGES
        and path.name != "__init__.py"
        and not path.as_posix().startswith(elsewhere)
        and path.as_posix() not in listed
    ]
    assert missing == []


def test_each_link_between_documents_leads_somewhere() -> None:
    """Relative links name files that exist, fragments name headings that exist."""
    broken = []
    for page in tracked(".md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", _text(str(page))):
            name, _, fragment = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            file = (ROOT / page).parent / name if name else ROOT / page
            if not file.exists() or (
                fragment and file.suffix == ".md" and fragment not in _anchors(file)
            ):
                broken.append(f"{page}: {target}")
    assert broken == []


def test_each_make_target_that_a_document_names_exists() -> None:
    """A reader can type every `make …` that he finds."""
    targets = set(re.findall(r"^\.PHONY: ([a-z-]+)", _text("Makefile"), re.MULTILINE))
    named = {
        (str(page), target)
        for page in tracked(".md")
        for target in re.findall(r"(?:`|\$ )make ([a-z-]+)", _text(str(page)))
    }
    assert {(page, target) for page, target in named if target not in targets} == set()
    assert named


def test_both_readmes_have_the_same_shape() -> None:
    """The Chinese README is the same page: sections, tables, commands and links in one order."""

    def shape(text: str) -> list[str]:
        marks = re.findall(r"^(#+ |\| `make [^|]*|```\w*|\d+\. |\$ make \S+)", text, re.MULTILINE)
        return marks + sorted(set(re.findall(r"\]\(([^)]+)\)", text)))

    english, chinese = _text("README.md"), _text("README.zh.md")
    swapped = chinese.replace("(README.md)", "(README.zh.md)").replace("、`make", ", `make")
    assert shape(swapped) == shape(english)


def test_the_glossary_explains_the_words_of_the_code() -> None:
    """Layers, profiles, priorities and causes stand in the glossary or the architecture page."""
    text = _text("docs/glossary.md") + _text("docs/architecture.md")
    words = [*Layer, *Profile, *Priority, *Cause]
    spoken = {Cause.UNRESOLVED: "refuse"}  # people say what happens, not that it was unresolved
    assert [word for word in words if spoken.get(word, str(word)) not in text] == []


def _examples() -> dict[str, str]:
    """Files shown in CONTRIBUTING.md: a code block after a line that names the file in bold."""
    blocks = re.findall(
        r"^\*\*`([^`]+)`\*\*\n+```python\n(.*?)^```$", _text("CONTRIBUTING.md"), re.M | re.S
    )
    return dict(blocks)


def _edits() -> list[tuple[str, str, str]]:
    """Diffs shown in CONTRIBUTING.md: the file, the lines as they are, and as they shall be."""
    blocks = re.findall(
        r"^In `([^`]+)`:\n+```diff\n(.*?)^```$", _text("CONTRIBUTING.md"), re.M | re.S
    )

    def kept(lines: list[str], without: str) -> str:
        return "".join(line[1:] for line in lines if line[0] != without)

    split = [(name, block.splitlines(keepends=True)) for name, block in blocks]
    return [(name, kept(lines, "+"), kept(lines, "-")) for name, lines in split]


def test_contributing_shows_a_check_a_fault_and_a_property_with_a_test_each() -> None:
    """Six files: the three kinds of unit that people add, and how each is tested."""
    folders = sorted(str(Path(name).parent) for name in _examples())
    assert sum(folder.startswith("checker/checks/") for folder in folders) == 1
    assert sum(folder.startswith("chaos/faults/") for folder in folders) == 1
    assert sum(folder.startswith("chaos/properties/") for folder in folders) == 1
    assert sum(folder.startswith("tests/") for folder in folders) == 3


def test_each_unit_in_contributing_is_about_twenty_lines() -> None:
    """Adding a unit is a small change in one place, or the promise is broken."""
    long = {
        name: len(code.splitlines())
        for name, code in _examples().items()
        if not name.startswith("tests/") and len(code.splitlines()) > 45
    }
    assert long == {}


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository to which a reader has added what CONTRIBUTING.md shows."""
    clone = copy_to(tmp_path_factory.mktemp("contributed"))
    for name, code in _examples().items():
        assert not (clone / name).exists(), f"{name} exists: the example is no example any more"
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(code, encoding="utf-8")
    for name, old, new in _edits():
        text = (clone / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name}: the diff in CONTRIBUTING.md does not fit: {old}"
        (clone / name).write_text(text.replace(old, new), encoding="utf-8")
    return clone


def _run(clone: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words], cwd=clone, capture_output=True, text=True, timeout=280
    )


def test_the_examples_in_contributing_run(extended: Path) -> None:
    """The three units are found by discovery and pass the tests that are shown beside them."""
    tests = [name for name in _examples() if name.startswith("tests/")]
    done = _run(extended, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout + done.stderr
    where = _run(extended, "-c", "import tocsin; print(tocsin.__file__)")
    assert where.stdout.startswith(str(extended)), "the copy was not what ran"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("tests/checker/checks", "-k", "rope_origin or says_what or fault_belongs"),
        ("tests/chaos/faults", "-k", "zero_tile"),
        ("tests/chaos/faults/test_mirror.py", "tests/chaos/test_catalogue.py"),
        ("tests/chaos/test_judge.py",),
    ],
    ids=["check", "fault", "both sides", "property"],
)
def test_the_examples_in_contributing_pass_the_generic_tests(
    extended: Path, words: tuple[str, ...]
) -> None:
    """What is held against every check, fault and property is held against them."""
    done = _run(extended, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_examples_in_contributing_are_written_as_we_write(extended: Path) -> None:
    """ruff has nothing to say about them, nor about what was changed for them."""
    names = [*_examples(), *(name for name, _, _ in _edits())]
    for words in (
        ("-m", "ruff", "check", "--no-cache", *names),
        ("-m", "ruff", "format", "--no-cache", "--check", *names),
    ):
        done = _run(extended, *words)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_example_in_the_readme_runs_and_finds_nothing_on_a_sound_model(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first code that a reader copies works as it stands, on a Transformers causal LM."""
    from transformers import LlamaConfig, LlamaForCausalLM

    (code,) = re.findall(r"^```python\n(.*?)^```$", _text(name), re.MULTILINE | re.DOTALL)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    batch = {"input_ids": torch.arange(1, 9)[None]}
    names: dict[str, Any] = {"model": LlamaForCausalLM(config).eval(), "batch": batch}
    with torch.no_grad():
        exec(compile(code, name, "exec"), names)
    assert names["step"].verdict.ok
    assert names["step"].verdict.checks_run > 0
    assert names["logits"].shape == (1, 8, 64)
    assert capsys.readouterr().out == ""
