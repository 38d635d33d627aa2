"""What a template reads is declared: a value by the schema, anything else by who makes it."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tocsin.helm.gate.proofs.leaves import Schema, resolved
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.rule import Finding

RULE = "templates.unknown_value"
_COMMENT = re.compile(r"\{\{-?\s*/\*.*?\*/\s*-?\}\}", re.DOTALL)
_ACTION = re.compile(r"\{\{-?(.*?)-?\}\}", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')
_MADE = re.compile(r'"([A-Za-z_]\w*)"')
_CHAIN = re.compile(r"(?:\.[A-Za-z_]\w*)+")
# What helm hands to every template, and the methods of it that are called here.
_HELMS = frozenset(
    {
        "APIVersions", "AppVersion", "BasePath", "Capabilities", "Chart", "Files", "Get", "Glob",
        "Has", "IsInstall", "IsUpgrade", "KubeVersion", "Name", "Namespace", "Release", "Service",
        "Template", "Values", "Version",
    }
)  # fmt: skip
# Of an experiment's file, of an object that was looked up, of a parsed address, of a split pair.
_FOREIGN = frozenset(
    {
        "apiVersion", "faults", "kind", "max_duration", "safety",
        "labels", "metadata", "host", "scheme", "_0", "_1",
    }
)  # fmt: skip


def template_reads(chart: Path) -> Proof:
    """Look at every read of every template: none asks for what nobody declares.

    A template renders nothing, and says nothing, where it asks a map for a key that is not there.
    """
    reads = sum(len(_reads(text)) for _, text in _templates(chart))
    found = tuple(unknown_reads(chart))
    return Proof("template_reads", f"{len(found)} of {reads}", {"reads": reads}, found)


def unknown_reads(chart: Path) -> Iterator[Finding]:
    """What is read in the chart's templates and declared by nobody."""
    root = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    texts = _templates(chart)
    words = _words(json.dumps(root)) | _HELMS | _FOREIGN
    for _, text in texts:
        words |= _made(text)
    for name, text in texts:
        for line, chain in _reads(text):
            where = f"templates/{name}:{line}"
            for word in chain:
                if word not in words:
                    expected = "a value of the schema, or a key of a dict that a template makes"
                    yield Finding(RULE, where, f".{word}", expected)
            if "Values" in chain:
                below = chain[chain.index("Values") + 1 :]
                if not _is_declared(below, root):
                    expected = "a value that values.schema.json declares"
                    yield Finding(RULE, where, ".Values." + ".".join(below), expected)


def _templates(chart: Path) -> list[tuple[str, str]]:
    root = chart / "templates"
    return [
        (path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*"))
        if path.suffix in (".yaml", ".tpl", ".txt")
    ]


@lru_cache(maxsize=256)
def _reads(text: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Line and words of every chain of fields in a template; comments and strings hold none."""
    text = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    found: list[tuple[int, tuple[str, ...]]] = []
    for action in _ACTION.finditer(text):
        code = _STRING.sub(lambda match: '""' + "\n" * match[0].count("\n"), action[1])
        for chain in _CHAIN.finditer(code):
            line = text.count("\n", 0, action.start()) + code.count("\n", 0, chain.start()) + 1
            found.append((line, tuple(chain[0].split(".")[1:])))
    return tuple(found)


@lru_cache(maxsize=256)
def _made(text: str) -> frozenset[str]:
    """Keys of the dicts that a template makes for others."""
    actions = (action[1] for action in _ACTION.finditer(_COMMENT.sub("", text)))
    return frozenset(word for code in actions if "dict" in code for word in _MADE.findall(code))


@lru_cache(maxsize=8)
def _words(schema: str) -> frozenset[str]:
    return frozenset(_properties(json.loads(schema)))


def _properties(schema: Any) -> Iterator[str]:
    """Every name that a schema declares anywhere."""
    if isinstance(schema, Mapping):
        declared = schema.get("properties")
        if isinstance(declared, Mapping):
            yield from declared
        for part in schema.values():
            yield from _properties(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _properties(part)


def _is_declared(path: tuple[str, ...], root: Schema) -> bool:
    here: Schema = root
    for name in path:
        here = resolved(here, root)
        below = here.get("properties", {}).get(name, here.get("additionalProperties"))
        if not isinstance(below, Mapping):
            return False
        here = below
    return True
