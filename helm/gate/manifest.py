"""One rendered object: its template, its text, and what a strict YAML reader makes of it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

Body = dict[str, Any]

# Plain words that YAML 1.1 and 1.2 readers, or Go's and Python's, take for different things.
TRAPS = re.compile(
    r"""(?ix)^(?:
      y|n|yes|no|on|off                              # true and false to some
    | [-+]?0[0-9_]+ | 0o[0-7]+ | 0b[01_]+            # octal to some, decimal or text to others
    | [-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?   # base 60
    | [-+]?(?:[0-9]+_[0-9_]*)                        # 1_000
    | [-+]?[0-9]+(?:\.[0-9]+)?e[0-9]+                # a number to Go, text to Python
    | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*               # a date
    | = | <<
    )$"""
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object as rendered. The body is shared between equal renders: copy before changing it."""

    source: str
    """Template file, such as `templates/rayservice.yaml`; empty for an object made in a test."""
    text: str = field(repr=False)
    body: Body = field(repr=False, compare=False)
    faults: tuple[str, ...] = field(default=(), compare=False)
    """What is wrong with the text itself: duplicate keys, words that YAML readers disagree on."""

    @property
    def kind(self) -> str:
        """Its kind; empty when it names none."""
        found = self.body.get("kind")
        return found if isinstance(found, str) else ""

    @property
    def api_version(self) -> str:
        """Its group and version; empty when it names none."""
        found = self.body.get("apiVersion")
        return found if isinstance(found, str) else ""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Its metadata; empty when it has none."""
        found = self.body.get("metadata")
        return found if isinstance(found, Mapping) else {}

    @property
    def name(self) -> str:
        """Its name; empty when it has none."""
        found = self.metadata.get("name")
        return found if isinstance(found, str) else ""

    @property
    def where(self) -> str:
        """How a finding names it: `RayService/demo-tocsin`."""
        return f"{self.kind or '?'}/{self.name or '?'}"


def manifest(body: Body, source: str = "") -> Manifest:
    """An object that was made, not rendered: for tests and seeded faults."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return Manifest(source, yaml.dump(body, Dumper=dumper, sort_keys=False), body)


@lru_cache(maxsize=16384)
def read(source: str, text: str) -> Manifest | None:
    """One document as a manifest; None when it holds nothing but comments.

    Args:
        source: the template file it was rendered from.
        text: one YAML document.
    """
    loader = _Strict(text)
    try:
        body = loader.get_single_data()
    except yaml.YAMLError as problem:
        return Manifest(source, text, {}, (_one_line(str(problem)),))
    finally:
        loader.dispose()
    if body is None:
        return None
    if not isinstance(body, dict):
        return Manifest(source, text, {}, (f"a document holds {body!r:.60}, expected an object",))
    return Manifest(source, text, body, tuple(loader.faults))


def documents(text: str) -> Iterator[tuple[str, str]]:
    """The (source, text) of each document in what `helm template` prints."""
    for part in re.split(r"(?m)^---[ \t]*\n", text):
        source, _, rest = part.partition("\n")
        if source.startswith("# Source: "):
            yield source.removeprefix("# Source: ").partition("/")[2], rest.strip("\n")
        elif part.strip():
            yield "", part.strip("\n")


class _Strict(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe loading that notes duplicate keys, keys that are no text, and ambiguous plain words."""

    def __init__(self, text: str) -> None:
        """Start with nothing noted."""
        super().__init__(text)
        self.faults: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Body:
        """Build a mapping; a key that comes twice is noted, as the last one silently wins."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                self.faults.append(f"line {line}: key {key.value!r} twice, expected once")
            seen.add(key.value)
        built: dict[Any, Any] = super().construct_mapping(node, deep)
        for key in built:
            if not isinstance(key, str):
                line = node.start_mark.line + 1
                self.faults.append(f"line {line}: key {key!r} is no text, quote it")
        return {str(key): value for key, value in built.items()}

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build any node; a plain word with two readings is kept as text and noted."""
        # Quotes and block marks are styles; the C reader calls a plain word's style "".
        if isinstance(node, yaml.ScalarNode) and not node.style and TRAPS.match(node.value):
            line = node.start_mark.line + 1
            self.faults.append(f"line {line}: plain {node.value} means different things, quote it")
            return node.value
        return super().construct_object(node, deep)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
