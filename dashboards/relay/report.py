"""A debug report: one folder and one page with all that is known of a failure, for its ticket."""

import datetime
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tocsin.dashboards.relay.evidence import Evidence
from tocsin.dashboards.relay.letter import Notes
from tocsin.dashboards.relay.notification import AlertBody
from tocsin.dashboards.relay.style import Markdown, one_line

_FACTS = (
    ("failure_id", "failure"),
    ("ts", "time"),
    ("check", "check"),
    ("operator", "operator"),
    ("layer", "layer"),
    ("layer_idx", "depth of the layer"),
    ("business_impact", "impact"),
    ("cause", "cause"),
    ("action", "action"),
    ("replica", "replica"),
    ("model", "model"),
    ("request_id", "request"),
    ("step", "step"),
    ("kind", "kind of step"),
    ("backend", "backend"),
    ("settled_on", "settled on"),
    ("duration_ms", "time to settle, ms"),
    ("trace_id", "trace"),
    ("error", "error"),
)


def write_report(
    folder: Path, alert: AlertBody, evidence: Evidence, notes: Notes, wall_s: float
) -> Path:
    """Write `report.md` and its data into a new folder below `folder`; returns the page's path.

    Raises:
        OSError: the disk does not take it.
    """
    time = datetime.datetime.fromtimestamp(wall_s, tz=datetime.UTC)
    name = "-".join(
        (time.strftime("%Y%m%dT%H%M%S.%f")[:-3], _word(alert.name), _word(alert.operator or "all"))
    )
    target = folder / name
    target.mkdir(parents=True, mode=0o700, exist_ok=True)
    parts: dict[str, Any] = {
        "alert.json": alert.model_dump(mode="json", by_alias=True),
        "record.json": evidence.record,
        "call.json": evidence.call,
        "spans.json": list(evidence.spans),
        "environment.json": evidence.environment,
    }
    kept = {part: data for part, data in parts.items() if data}
    for part, data in kept.items():
        text = json.dumps(data, ensure_ascii=False, indent=2, default=str)
        (target / part).write_text(text + "\n", encoding="utf-8")
    page = target / "report.md"
    page.write_text(_page(alert, evidence, notes, time, tuple(kept)), encoding="utf-8")
    return page


def prune_reports(folder: Path, keep: int) -> None:
    """Remove the oldest reports; names begin with the time, so they sort by age."""
    for old in sorted(path for path in folder.glob("*-*") if path.is_dir())[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def _page(
    alert: AlertBody,
    evidence: Evidence,
    notes: Notes,
    time: datetime.datetime,
    parts: tuple[str, ...],
) -> str:
    plain = Markdown().plain
    lines = [
        f"# {alert.priority} {alert.name} {alert.operator}".rstrip(),
        "",
        plain(alert.annotations.get("summary", "")),
        "",
        f"Written {time:%Y-%m-%d %H:%M:%S} UTC. The alert began {alert.starts_at:%H:%M:%S} UTC.",
        "",
        "## See it again",
        "",
        "```sh",
        one_line(notes.command or alert.annotations.get("repro", "tocsin reproduce latest")),
        "```",
    ]
    if notes.path:
        lines += ["", f"Written already: `{one_line(notes.path)}`"]
    lines += ["", "## The failure", "", "| what | value |", "|---|---|"]
    record = evidence.record
    lines += [
        f"| {words} | {_cell(record[key])} |"
        for key, words in _FACTS
        if record.get(key) not in (None, "")
    ]
    lines += _findings(record)
    lines += _tensors(evidence.call)
    if evidence.snapshot is not None:
        lines += ["", f"Recorded call: `{evidence.snapshot}`"]
    lines += _spans(evidence)
    lines += ["", "## Environment", "", "| what | value |", "|---|---|"]
    lines += [f"| {_cell(key)} | {_cell(value)} |" for key, value in evidence.environment.items()]
    lines += ["", "## Links", ""]
    links = ("runbook_url", "dashboard_url")
    lines += [f"- {url}" for name in links if (url := alert.annotations.get(name, ""))]
    lines += [f"- [{part}]({part})" for part in parts]
    return "\n".join(lines) + "\n"


def _findings(record: Mapping[str, Any]) -> list[str]:
    findings = record.get("findings") or []
    if not findings:
        return []
    lines = [
        "",
        "## Findings",
        "",
        "| check | module | depth | ratio | message |",
        "|---|---|---|---|---|",
    ]
    for one in findings:
        cells = (one.get(key) for key in ("check", "module", "depth", "ratio", "message"))
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _tensors(call: Mapping[str, Any]) -> list[str]:
    tensors = call.get("tensors") or {}
    if not tensors:
        return []
    lines = ["", "## The call", "", "| tensor | shape | dtype | more |", "|---|---|---|---|"]
    for name, known in tensors.items():
        rest = {key: value for key, value in known.items() if key not in ("shape", "dtype")}
        more = ", ".join(f"{key} {value}" for key, value in rest.items())
        cells = (name, known.get("shape"), known.get("dtype"), more)
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _spans(evidence: Evidence) -> list[str]:
    if not evidence.spans:
        return []
    lines = ["", "## The request's trace", "", "| span | ms | status |", "|---|---|---|"]
    for span in evidence.spans[:40]:
        ms = (int(span.get("end_ns", 0)) - int(span.get("start_ns", 0))) / 1e6
        lines.append(f"| {_cell(span.get('name'))} | {ms:.2f} | {_cell(span.get('status'))} |")
    return lines


def _cell(value: Any) -> str:
    return one_line("" if value is None else str(value)).replace("|", "\\|")


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", text)[:60] or "none"
