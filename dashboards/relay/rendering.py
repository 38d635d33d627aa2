"""From a letter to the text that people read, in English or Chinese, in a channel's mark-up."""

import datetime
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tocsin.dashboards.relay.letter import Letter, Notes
from tocsin.dashboards.relay.notification import AlertBody
from tocsin.dashboards.relay.style import Style, Styled, one_line

TEMPLATES = Path(__file__).with_name("templates")
_TITLE_CHARS_MAX = 120


@dataclass(frozen=True, slots=True)
class Text:
    """A message as people read it: a title of one line without mark-up, and the body."""

    title: str
    body: str


def render(letter: Letter, language: str, style: Style) -> Text:
    """Fill the template of a language; the first line of it is the title."""
    notification = letter.notification
    values: dict[str, Any] = {
        "about": letter.about,
        "priority": notification.priority if notification else "none",
        "drill": notification is not None and notification.drill,
        "firing": [_seen(a, letter, language) for a in notification.firing] if notification else [],
        "resolved": (
            [_seen(a, letter, language) for a in notification.resolved] if notification else []
        ),
        "truncated": notification.truncated_alerts if notification else 0,
        "silence_url": notification.external_url if notification else "",
        "held": sorted(letter.held.items(), key=lambda item: (-item[1], item[0])),
    }
    text = _template(language, style).render(values)  # type: ignore[arg-type]
    title, _, body = text.partition("\n")
    lines = [line.rstrip() for line in body.splitlines()]
    return Text(one_line(title)[:_TITLE_CHARS_MAX], "\n".join(_single_gaps(lines)).strip("\n"))


def summary_of(alert: AlertBody, language: str) -> str:
    """The alert's own words in a language; in English where there is no translation."""
    words = alert.annotations
    return (words.get("summary_zh") if language == "zh" else "") or words.get("summary", "")


def _seen(alert: AlertBody, letter: Letter, language: str) -> dict[str, Any]:
    """What a template sees of an alert."""
    notes = letter.notes.get(alert.key, Notes())
    return {
        "name": alert.name,
        "priority": alert.priority,
        "model": alert.labels.get("model", ""),
        "operator": alert.operator,
        "summary": summary_of(alert, language),
        "failure_id": alert.annotations.get("failure_id", ""),
        "command": notes.command or alert.annotations.get("repro", ""),
        "path": notes.path,
        "report": notes.report,
        "runbook_url": alert.annotations.get("runbook_url", ""),
        "dashboard_url": alert.annotations.get("dashboard_url", ""),
        "source_url": alert.generator_url,
        "since": alert.starts_at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "lasted": _lasted(alert.duration_s, language),
    }


def _lasted(duration_s: float | None, language: str) -> str:
    """Hours and minutes, or minutes and seconds."""
    if duration_s is None:
        return ""
    hour, minute, second = ("小时", "分", "秒") if language == "zh" else ("h", "min", "s")
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} {hour} {minutes} {minute}"
    return f"{minutes} {minute} {seconds} {second}"


def _single_gaps(lines: list[str]) -> list[str]:
    """At most one empty line in a row."""
    return [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]


@cache
def _template(language: str, style: Style) -> Any:
    def finish(value: Any) -> str:
        return str(value) if isinstance(value, Styled) else style.plain(str(value))

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=False,  # not HTML: `finish` keeps others' text from being mark-up
        finalize=finish,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("bold", "code", "link", "tint"):
        environment.globals[name] = getattr(style, name)
    return environment.get_template(f"{language}.jinja")
