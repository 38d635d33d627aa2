"""The ways in which a template goes wrong: each takes one line and makes faulty ones of it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.helm.gate.proofs.wrong_values import misspelling

Lines = Sequence[str]
Operator = Callable[[Lines, int], Iterator[Lines]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One seeded fault.

    Attributes:
        path: of the file below the chart.
        line: where it begins, from 1.
        before, after: the text that changed, in one line each.
        text: the whole file with the fault in it.
        near: the lines around it, as they were: the values that it is about stand there.
    """

    operator: str
    path: str
    line: int
    before: str
    after: str
    text: str = field(repr=False)
    near: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """Operator, place, and what was made of what."""
        return f"{self.operator} {self.path}:{self.line} {self.before!r} → {self.after!r}"


_KEY = re.compile(r"^(\s*(?:- )?)([A-Za-z][\w.-]*):(?=\s|$)")
_TEMPLATE_ONLY = re.compile(r"^\s*\{\{.*\}\}\s*$")
_CONTROL = re.compile(r"\{\{-?\s*(if|with|range|define|end|else)\b")
_WORDS: Mapping[str, str] = {
    "RuntimeDefault": "Unconfined",
    "- ALL": "- CHOWN",
    "Never": "OnFailure",
    "Forbid": "Allow",
    "- Ingress": "- Egress",
    "- Egress": "- Ingress",
    "ClusterIP": "NodePort",
    "medium: Memory": 'medium: ""',
    "Recreate": "RollingUpdate",
    "protocol: TCP": "protocol: UDP",
    "operator: In": "operator: NotIn",
    "failurePolicy: Fail": "failurePolicy: Ignore",
    "- Deny": "- Audit",
    "path: /": "path: /x",
    "HeadOnly": "Disabled",
    "hook: test": "hook: post-install",
}
_INCLUDES: Mapping[str, str] = {
    '"tocsin.selectorLabels"': '"tocsin.labels"',
    '"tocsin.labels"': '"tocsin.selectorLabels"',
    '"tocsin.serviceAccount.chaos"': '"tocsin.serviceAccount.worker"',
    '"tocsin.serviceAccount.head"': '"tocsin.serviceAccount.chaos"',
    '"tocsin.serviceAccount.worker"': '"tocsin.serviceAccount.head"',
    '"tocsin.serviceAccount.test"': '"tocsin.serviceAccount.chaos"',
    '"tocsin.configMap.chaos"': '"tocsin.configMap.serve"',
    '"tocsin.configMap.serve"': '"tocsin.configMap.checker"',
    '"tocsin.containerSecurityContext"': '"tocsin.podSecurityContext"',
    '"tocsin.podSecurityContext"': '"tocsin.containerSecurityContext"',
    '"tocsin.service.head"': '"tocsin.service.serve"',
    '"component" "': '"component" "x',
}
_BLOCKS = (
    "securityContext",
    "resources",
    "limits",
    "requests",
    "ports",
    "env",
    "volumeMounts",
    "startupProbe",
    "readinessProbe",
    "livenessProbe",
    "podSelector",
    "resourceNames",
    "capabilities",
    "seccompProfile",
    "subjects",
    "selector",
    "labels",
    "metadata",
    "from",
)
_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
_RESOURCES = ("pods", "namespaces", "leases", "pods/resize", "rayclusters")


def drop_line(lines: Lines, at: int) -> Iterator[Lines]:
    """A field, or an entry of a list, is left out."""
    line = lines[at]
    if _is_content(line) and not _opens_block(lines, at):
        yield []


def drop_block(lines: Lines, at: int) -> Iterator[Lines]:
    """A whole section is left out."""
    match = _KEY.match(lines[at])
    if match and match[2] in _BLOCKS and lines[at].rstrip().endswith(":"):
        end = _block_end(lines, at)
        if end > at + 1 and _balanced(lines[at:end]):
            yield [f"\x00{end - at}"]


def swap_boolean(lines: Lines, at: int) -> Iterator[Lines]:
    """True for false."""
    match = re.match(r"^(\s*(?:- )?[\w./-]+: )(true|false)\s*$", lines[at])
    if match:
        yield [match[1] + ("false" if match[2] == "true" else "true")]


def change_port(lines: Lines, at: int) -> Iterator[Lines]:
    """A port that nobody listens on, or another user than the image has."""
    match = re.match(r'^(\s*(?:- )?\w*[pP]ort: |\s*value: ")(\d+)("?)\s*$', lines[at])
    if match:
        yield [f"{match[1]}{int(match[2]) + 1}{match[3]}"]
    match = re.match(r"^(\s*(?:runAs\w+|fsGroup): )\d+$", lines[at])
    if match:
        yield [match[1] + "0"]


def misspell_field(lines: Lines, at: int) -> Iterator[Lines]:
    """A field that the API does not know."""
    match = _KEY.match(lines[at])
    if match and "{{" not in match[0]:
        yield [match[1] + misspelling(match[2]) + lines[at][match.end(2) :]]


def rename_label(lines: Lines, at: int) -> Iterator[Lines]:
    """A label under another key."""
    match = re.search(r"(app\.kubernetes\.io|tocsin\.dev|ray\.io)/([a-z-]+)", lines[at])
    if match and "fail" not in lines[at]:
        yield [lines[at].replace(match[0], f"{match[1]}/{misspelling(match[2])}", 1)]


def widen_rights(lines: Lines, at: int) -> Iterator[Lines]:
    """A verb or a resource more than there was."""
    match = re.match(r'^(\s*- )"?([a-z/]+)"?\s*$', lines[at])
    if match and match[2] in _VERBS:
        yield [match[1] + '"*"']
        yield [lines[at], f"{match[1]}{'create' if match[2] != 'create' else 'delete'}"]
    if match and match[2] in _RESOURCES:
        yield [match[1] + "secrets"]
        yield [match[1] + '"*"']


def drop_pipe(lines: Lines, at: int) -> Iterator[Lines]:
    """A value that is not quoted, not made YAML, not a whole number."""
    for match in re.finditer(r"\s*\|\s*(quote|toYaml|int|int64|trim|toString)\b", lines[at]):
        if "fail" not in lines[at]:
            yield [lines[at][: match.start()] + lines[at][match.end() :]]


def wrong_indent(lines: Lines, at: int) -> Iterator[Lines]:
    """A part that hangs below another one."""
    match = re.search(r"\b(n?indent) (\d+)", lines[at])
    if match:
        for change in (-2, 2):
            width = max(0, int(match[2]) + change)
            yield [lines[at].replace(match[0], f"{match[1]} {width}", 1)]
    elif re.match(r"^ {4,}[\w-]+: \S", lines[at]) and "{{" not in lines[at]:
        yield [lines[at][2:]]


def other_include(lines: Lines, at: int) -> Iterator[Lines]:
    """The wrong one of two templates with like names."""
    for name, other in _INCLUDES.items():
        if name in lines[at] and "define" not in lines[at]:
            yield [lines[at].replace(name, other, 1)]


def fixed_place(lines: Lines, at: int) -> Iterator[Lines]:
    """A name or a namespace that is the same in every release."""
    for name, fixed in ((".Release.Namespace", '"default"'), (".Release.Name", '"tocsin"')):
        match = re.search(rf"\$?(?:\.root)?{re.escape(name)}\b", lines[at])
        if match and "fail" not in lines[at]:
            yield [lines[at].replace(match[0], fixed, 1)]


def drop_guard(lines: Lines, at: int) -> Iterator[Lines]:
    """A refusal that is not there."""
    if re.match(r"^\s*\{\{-?\s*fail\b", lines[at]):
        yield []


def other_condition(lines: Lines, at: int) -> Iterator[Lines]:
    """A condition turned round, or loosened."""
    match = re.match(r"^(.*\{\{-?\s*(?:else )?if )(.+?)(\s*-?\}\}.*)$", lines[at])
    if not match:
        return
    yield [f"{match[1]}not ({match[2]}){match[3]}"]
    for word, other in (("and ", "or "), ("or ", "and "), ("eq ", "ne "), ("gt ", "lt ")):
        if match[2].startswith(word):
            yield [f"{match[1]}{other}{match[2].removeprefix(word)}{match[3]}"]


def other_flag(lines: Lines, at: int) -> Iterator[Lines]:
    """A command line that the program does not take, or takes for something else."""
    match = re.match(r"^(\s*- )(--[a-z-]+)(.*)$", lines[at])
    if match:
        yield [f"{match[1]}{match[2]}x{match[3]}"]
    for word, other in (("- run", "- runs"), ("- tocsin", "- toxin"), ("- probe", "- prove")):
        if lines[at].strip() == word:
            yield [lines[at].replace(word, other)]
    match = re.search(r'"(--[a-z-]+)"', lines[at])
    if match:
        yield [lines[at].replace(match[1], f"{match[1]}x", 1)]


def other_word(lines: Lines, at: int) -> Iterator[Lines]:
    """A word with another meaning."""
    for word, other in _WORDS.items():
        if word in lines[at]:
            yield [lines[at].replace(word, other, 1)]
    match = re.match(r"^(apiVersion: .*)v1(alpha1)?$", lines[at])
    if match:
        yield [match[1] + "v1beta7"]
    match = re.match(r"^(\s*(?:mountPath|value): )(/[\w/.-]+)$", lines[at])
    if match:
        yield [f"{match[1]}{match[2]}x"]


def misread_value(lines: Lines, at: int) -> Iterator[Lines]:
    """A value asked for under a name that it does not have: nothing is rendered, silently."""
    for match in re.finditer(r"\.([a-z][A-Za-z]{4,})\b(?![.(])", lines[at]):
        if "{{" in lines[at][: match.start()] and "fail" not in lines[at]:
            name = misspelling(match[1])
            yield [lines[at][: match.start(1)] + name + lines[at][match.end(1) :]]


def other_default(lines: Lines, at: int) -> Iterator[Lines]:
    """Something that is on, or off, without a word from anybody (values.yaml)."""
    match = re.match(r"^(\s*(?:enabled|dryRun|chaosTarget|suspend): )(true|false)\s*$", lines[at])
    if match:
        yield [match[1] + ("false" if match[2] == "true" else "true")]


OPERATORS: tuple[Operator, ...] = (
    drop_line,
    drop_block,
    swap_boolean,
    change_port,
    misspell_field,
    rename_label,
    widen_rights,
    drop_pipe,
    wrong_indent,
    other_include,
    fixed_place,
    drop_guard,
    other_condition,
    other_flag,
    other_word,
    misread_value,
)


def mutants(chart: Path) -> list[Mutant]:
    """Every fault that the operators know for this chart, in the order of files and lines."""
    found: list[Mutant] = []
    for path in sorted((chart / "templates").rglob("*")):
        # The notes are words for people, and no part of what is installed.
        if path.suffix in (".yaml", ".tpl") and "notes" not in path.name.lower():
            found += _of_file(path.relative_to(chart).as_posix(), path, OPERATORS)
    found += _of_file("values.yaml", chart / "values.yaml", (other_default,))
    return found


def _of_file(name: str, path: Path, operators: Sequence[Operator]) -> Iterator[Mutant]:
    lines = path.read_text(encoding="utf-8").split("\n")
    commented = _commented(lines)
    for at, line in enumerate(lines):
        if commented[at] or not line.strip() or line.lstrip().startswith("#"):
            continue
        for operator in operators:
            for made in operator(lines, at):
                span = 1
                if made and made[0].startswith("\x00"):
                    span, made = int(made[0][1:]), []
                text = "\n".join([*lines[:at], *made, *lines[at + span :]])
                after = " / ".join(part.strip() for part in made)
                near = "\n".join(lines[max(0, at - 3) : at + span + 2])
                yield Mutant(operator.__name__, name, at + 1, line.strip(), after, text, near)


def _is_content(line: str) -> bool:
    return not (_TEMPLATE_ONLY.match(line) and _CONTROL.search(line)) and line.strip() != "---"


def _opens_block(lines: Lines, at: int) -> bool:
    """Whether what follows belongs to this line."""
    return _CONTROL.search(lines[at]) is not None or _block_end(lines, at) > at + 1


def _block_end(lines: Lines, at: int) -> int:
    indent = len(lines[at]) - len(lines[at].lstrip())
    end = at + 1
    while end < len(lines) and lines[end].strip():
        below = len(lines[end]) - len(lines[end].lstrip())
        if below <= indent and not (below == indent and lines[end].lstrip().startswith("- ")):
            break
        if below == indent and lines[at].lstrip().startswith("- "):
            break
        end += 1
    return end


def _balanced(lines: Lines) -> bool:
    depth = 0
    for line in lines:
        for match in _CONTROL.finditer(line):
            if match[1] in ("if", "with", "range", "define"):
                depth += 1
            elif match[1] == "end":
                depth -= 1
            if depth < 0:
                return False
    return depth == 0


def _commented(lines: Lines) -> list[bool]:
    inside, found = False, []
    for line in lines:
        opens = "{{/*" in line or "{{- /*" in line
        found.append(inside or opens)
        if opens:
            inside = True
        if inside and "*/" in line:
            inside = False
    return found
