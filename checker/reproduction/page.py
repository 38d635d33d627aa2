"""The pytest file of a reproduction: what was found, and the tests that fail because of it."""

import re
import textwrap
from collections.abc import Mapping
from typing import Any

from tocsin.checker.contract import Check
from tocsin.checker.finding import make_finding
from tocsin.checker.reproduction.axes import elements
from tocsin.checker.reproduction.diagnosis import Diagnosis
from tocsin.checker.reproduction.literal import source_of
from tocsin.checker.shrink import Shrunk
from tocsin.core.calls import Call

_WIDTH = 96


def page_name(check_id: str) -> str:
    """File name of the reproduction of a failure of one check."""
    return f"test_{check_id.replace('.', '_')}.py"


def page(
    unit: Check,
    recorded: Call,
    record: Mapping[str, Any],
    diagnosis: Diagnosis,
    shrunk: Shrunk | None,
    ratio: float,
) -> str:
    """The text of the file.

    Args:
        recorded: the call as it was recorded; ratio: the worst one, here and now.
        record: the journal line and the snapshot's document; what is missing is left out.
        shrunk: the minimal case; None: only the recorded call is run.
    """
    changed = record.get("thresholds") or {}
    thresholds = {
        name: float(value)
        for name, value in changed.items()
        if name in unit.thresholds and value != unit.thresholds[name]
    }
    limits = "".join(f", {name}={value!r}" for name, value in thresholds.items())
    head = _docstring(unit, recorded, record, diagnosis, shrunk, ratio)
    names = f'CHECK = "{unit.id}"\nRECORDED = Path(__file__).parent / "recorded"'
    parts = [f"{head}\n\n{_HEADER}\n{names}", _OPERATOR]
    if shrunk is not None:
        parts.append(
            "def minimal() -> calls.Call:\n"
            f'    """{_minimal_line(shrunk)}"""\n'
            f"    return {source_of(shrunk.call)}\n"
        )
        parts.append(
            "def test_the_minimal_call_is_within_the_limits() -> None:\n"
            f'    """Fails with the fault: ratio {_ratio(shrunk.ratio)}, at most 1 is right."""\n'
            f"    replay(by_the_operator(minimal()), CHECK{limits})\n"
        )
        changes = _differences(shrunk)
        if changes:
            parts.append(
                "def test_the_same_call_without_the_fault_passes() -> None:\n"
                '    """Passes: what is wrong is the fault alone, not the call around it."""\n'
                f"    healthy = replace(\n        minimal(),\n{changes}    )\n"
                f"    assert replay(healthy, CHECK{limits}) <= 1.0\n"
            )
    parts.append(
        "def test_the_recorded_call_is_within_the_limits() -> None:\n"
        f'    """Fails as recorded: ratio {_ratio(ratio)}, at most 1 is right."""\n'
        f"    replay(by_the_operator(load_call(RECORDED{_number(record)})), CHECK{limits})\n"
    )
    return "\n\n\n".join(one.strip("\n") for one in parts) + "\n"


def _docstring(
    unit: Check,
    recorded: Call,
    record: Mapping[str, Any],
    diagnosis: Diagnosis,
    shrunk: Shrunk | None,
    ratio: float,
) -> str:
    where = recorded.module or str(recorded.operator)
    lines = [f'"""Failure {record.get("failure_id", "")} of {where}: {unit.id}.', ""]
    facts = {
        "Found": _message(unit, recorded, record, ratio),
        "When": _when(record),
        "Request": _request(record),
        "Impact": f"{unit.priority}: {record.get('impact') or unit.impact}",
        "Recovery": _recovery(record),
        "Reference": diagnosis.words,
        "Minimal": "" if shrunk is None else _shrinking(recorded, shrunk),
        "Recorded": _stored(recorded, record),
        "Run": f"python -m pytest {page_name(unit.id)} (tocsin, pytest and safetensors; no model, "
        "no GPU). It fails as recorded while the fault is there. To test a fix, put your own "
        "operator into by_the_operator().",
    }
    for name, words in facts.items():
        if words:
            lines += textwrap.wrap(
                _plain(words), _WIDTH, initial_indent=f"{name:<11}", subsequent_indent=" " * 11
            )
    return "\n".join([*lines, '"""'])


def _message(unit: Check, call: Call, record: Mapping[str, Any], ratio: float) -> str:
    for finding in record.get("findings") or ():
        if finding.get("check") == unit.id and finding.get("message"):
            return str(finding["message"])
    return make_finding(unit, call.operator, ratio, module=call.module, depth=call.depth).message


def _when(record: Mapping[str, Any]) -> str:
    if not record.get("ts"):
        return ""
    parts = [str(record["ts"])]
    for words, name in (("step", "step"), ("replica", "replica"), ("model", "model")):
        if record.get(name) not in (None, ""):
            parts.append(f"{words} {record[name]}")
    return ", ".join(parts)


def _request(record: Mapping[str, Any]) -> str:
    names = record.get("request_ids") or []
    shown = ", ".join(map(str, names[:4]))
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _stored(recorded: Call, record: Mapping[str, Any]) -> str:
    """What lies in recorded/, and what does not."""
    said = f"{elements(recorded):,} tensor elements, in recorded/"
    if record.get("reduced"):
        said += f"; of {', '.join(record['reduced'])} only what the check reads"
    if record.get("redacted"):
        said += f"; {', '.join(record['redacted'])} renumbered or left out: prompts are private"
    return said


_CAUSES = {
    "transient": "transient: the same step, run again, was clean",
    "persistent": "persistent: only another attention backend was clean",
    "state": "state: a KV page or a weight had changed under the operator",
    "legitimate": "legitimate: sums were exact and backends agreed, the alarm was refuted",
    "unresolved": "unresolved: no run of the step was clean, the request was refused",
}


def _recovery(record: Mapping[str, Any]) -> str:
    cause = str(record.get("cause") or "")
    return _CAUSES.get(cause, cause)


def _shrinking(recorded: Call, shrunk: Shrunk) -> str:
    times = shrunk.before // max(1, shrunk.after)
    words = f"{shrunk.before:,} tensor elements became {shrunk.after:,} (1/{times:,})"
    words += (
        ", by cutting axes and rounding numbers while the same check failed for the same reason"
    )
    if shrunk.twin is not None:
        words += "; with what the reference computes in place of the fault it passes"
    return words + "."


def _minimal_line(shrunk: Shrunk) -> str:
    return f"The recorded fault in {shrunk.after:,} of {shrunk.before:,} elements."


def _differences(shrunk: Shrunk) -> str:
    """Assignments that take the fault out of the minimal call."""
    if shrunk.twin is None:
        return ""
    lines = []
    healthy, faulty = source_of(shrunk.twin), source_of(shrunk.call)
    if healthy == faulty:
        return ""
    for mine, other in zip(_assignments(healthy), _assignments(faulty), strict=False):
        if mine != other:
            lines.append(textwrap.indent(textwrap.dedent(mine), "        ") + "\n")
    return "".join(lines)


def _assignments(source: str) -> list[str]:
    """The arguments of a call's source, one each."""
    inner = source.split("(\n", 1)[1].rsplit("\n", 1)[0]
    return re.split(r"\n(?=        \w+=)", inner)


def _ratio(value: float) -> str:
    return f"{value:.4g}".replace("nan", "NaN").replace("inf", "infinite")


def _number(record: Mapping[str, Any]) -> str:
    number = int(record.get("number") or 1)
    return "" if number == 1 else f", {number}"


def _plain(words: str) -> str:
    """Text of a record inside a docstring: it must not end it."""
    return words.replace("\\", "/").replace('"""', "'''")


_HEADER = """from dataclasses import replace
from math import inf, nan  # noqa: F401
from pathlib import Path

import torch
from torch import tensor

from tocsin.checker.reproduction.replay import replay
from tocsin.checker.snapshot import load_call
from tocsin.core import calls
"""

_OPERATOR = '''def by_the_operator(call: calls.Call) -> calls.Call:
    """The call with its result as recorded; return `replace(call, output=yours)` to test a fix."""
    return call
'''
