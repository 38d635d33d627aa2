"""Many renders at once, of which some may be refused: those are found, the others are kept.

A guard's `fail` ends helm for all cases of a call. So the chart is copied with guards that write
their words into the text instead: a case whose text has such words is one that helm refuses.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tocsin.core.errors import SpecError
from tocsin.helm.gate import manifest
from tocsin.helm.gate.render import CHART, Case, Render, texts_many

Texts = dict[str, str]

# What these print is read again as YAML by those who include them: there a refusal stays hard.
HARD = ("_facts.tpl",)
SPOKEN = "REFUSED[[%s]]"
SILENT = "%.0s"
_CHUNK = 64
_FAIL = re.compile(r"(\{\{-?\s*)fail(\s)")
_WORDS = re.compile(r"REFUSED\[\[(.*?)\]\]", re.DOTALL)


def texts(
    cases: Sequence[Case],
    *,
    chart: Path = CHART,
    chunk: int = _CHUNK,
    are_guards_silent: bool = False,
) -> list[Texts | SpecError]:
    """Template → text of each case, or why helm refuses it; in the order of the cases.

    Args:
        chunk: cases in one call of helm.
        are_guards_silent: whether guards refuse nothing.
    """
    found: list[Texts | SpecError] = []
    with softened(chart, SILENT if are_guards_silent else SPOKEN) as copy:
        for start in range(0, len(cases), chunk):
            found += _halved(cases[start : start + chunk], copy)
    return found


def outcomes(cases: Sequence[Case], *, chart: Path = CHART) -> list[Render | SpecError]:
    """The same with the objects read."""
    return [one if isinstance(one, SpecError) else read(one) for one in texts(cases, chart=chart)]


def read(files: Texts) -> Render:
    """The objects of one case's texts."""
    found = (
        manifest.read(file, part)
        for file, text in files.items()
        if not file.endswith(".txt")
        for _, part in manifest.documents(text)
    )
    return Render(tuple(one for one in found if one is not None))


@contextmanager
def softened(chart: Path, words: str = SPOKEN) -> Iterator[Path]:
    """A copy of the chart whose guards write instead of failing."""
    with tempfile.TemporaryDirectory(prefix="tocsin-soft-") as place:
        copy = Path(place) / "chart"
        shutil.copytree(chart, copy)
        soften(copy, words)
        yield copy


def soften(chart: Path, words: str = SPOKEN) -> None:
    """Let the guards of a copied chart write instead of failing.

    Args:
        words: what they write, as a format for their reason.
    """
    for path in (chart / "templates").rglob("*"):
        if path.is_file() and path.name not in HARD:
            text = path.read_text(encoding="utf-8")
            soft = _FAIL.sub(rf'\1printf "{words}"\2', text)
            if soft != text:
                path.write_text(soft, encoding="utf-8")


def refusal(files: Texts) -> SpecError | None:
    """What the softened guards wrote; None where none did."""
    for text in files.values():
        if "REFUSED[[" in text and (match := _WORDS.search(text)):
            return SpecError(match[1])
    return None


def _halved(cases: Sequence[Case], chart: Path) -> list[Texts | SpecError]:
    """What breaks a template for good still ends the call: it is found by halving."""
    try:
        return [refusal(files) or files for files in texts_many(cases, chart=chart)]
    except SpecError as error:
        if len(cases) == 1:
            return [error]
    middle = len(cases) // 2
    return _halved(cases[:middle], chart) + _halved(cases[middle:], chart)
