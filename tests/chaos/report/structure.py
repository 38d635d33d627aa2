"""A written report as text to look things up in."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

LOADING = ("src", "href", "xlink:href", "srcset", "action", "poster", "data", "background")
VOID = ("meta", "link", "br", "wbr", "col", "img", "input", "hr")


@dataclass
class Structure:
    """What a page consists of.

    Attributes:
        loads: values of every attribute that can make a browser load something.
        handlers: attributes that would run a script.
        scripts: content of each script element.
        text: by id of the section, the text in it.
        unclosed: elements that were opened and not closed in order.
    """

    loads: list[str] = field(default_factory=list)
    handlers: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    text: dict[str, str] = field(default_factory=dict)
    unclosed: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found, self._open, self._section = Structure(), list[str](), ""

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in LOADING:
                self.found.loads.append(value or "")
            if name.startswith("on"):
                self.found.handlers.append(f"{tag} {name}")
            if name == "id" and value:
                self.found.ids.append(value)
                if tag in ("section", "div"):
                    self._section = value
        if tag == "script":
            self.found.scripts.append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        else:
            self.found.unclosed.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.found.scripts[-1] += data
        elif not self._open or self._open[-1] not in ("style", "title"):
            held = self.found.text.get(self._section, "")
            self.found.text[self._section] = f"{held} {' '.join(data.split())}"


def structure_of(path: Path) -> Structure:
    """Read a written report."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    return reader.found
