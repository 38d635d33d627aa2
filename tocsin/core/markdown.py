"""Pieces of the pages that are written from declarations: anchors, cells, docstring text."""

import inspect
from collections.abc import Iterable


def anchor(heading: str) -> str:
    """The fragment under which a Markdown heading is found: `kv.bitflip` is `kvbitflip`."""
    return heading.lower().replace(".", "").replace(" ", "-")


def cell(text: str) -> str:
    """Text that can stand in a table cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def code(names: Iterable[object]) -> str:
    """Names as a list in code type."""
    return ", ".join(f"`{name}`" for name in names)


def first_line(documented: object) -> str:
    """The first line of a docstring; empty without one."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def paragraphs(documented: object) -> str:
    """A docstring after its first line and before its sections (Args, Returns, …)."""
    body = (inspect.getdoc(documented) or "").partition("\n")[2]
    for heading in ("Args:", "Returns:", "Raises:", "Yields:"):
        body = body.partition(f"\n{heading}")[0]
    return body.strip()
