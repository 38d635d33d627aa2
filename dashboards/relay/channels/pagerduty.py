"""PagerDuty, Events API v2: an alert triggers an incident under its own key and resolves it."""

import hashlib
from typing import Any

import httpx

from tocsin.dashboards.relay.channels.contract import Refusal, post
from tocsin.dashboards.relay.config import PagerDutyConfig
from tocsin.dashboards.relay.cut import cut_utf8
from tocsin.dashboards.relay.letter import Letter, Notes
from tocsin.dashboards.relay.notification import AlertBody
from tocsin.dashboards.relay.rendering import render, summary_of
from tocsin.dashboards.relay.secret import read_secret
from tocsin.dashboards.relay.style import Bare, is_link, one_line

_SUMMARY_BYTES_MAX = 1024
_SEVERITY = {"P0": "critical", "P1": "error", "P2": "warning"}
_CLIENT = "Tocsin"


class PagerDuty:
    """One event an alert: what PagerDuty merges and resolves is one key, not a group."""

    kind = "pagerduty"

    def __init__(self, name: str, config: PagerDutyConfig) -> None:
        """Nothing is read yet."""
        self._where = f"receivers.{name}.routing_key_file"
        self._config = config

    def check(self) -> None:
        """Read the key once."""
        read_secret(self._config.routing_key_file, self._where)

    async def send(self, letter: Letter, http: httpx.AsyncClient) -> Refusal | None:
        """All events of the letter; sent again they change nothing, because keys stay the same."""
        routing_key = read_secret(self._config.routing_key_file, self._where)
        for event in self._events(letter):
            body = {"routing_key": routing_key, **event}
            answer = await post(http, self._config.url, body, self._config.timeout_s)
            if isinstance(answer, Refusal):
                return answer
        return None

    def _events(self, letter: Letter) -> list[dict[str, Any]]:
        if letter.about == "reproduction":
            return []  # no second page: the command was in the first, the path is in the report
        if letter.notification is None or letter.about != "alert":
            return [self._note(letter)]
        alerts = letter.notification
        triggered = [
            self._trigger(one, letter.notes.get(one.key, Notes())) for one in alerts.firing
        ]
        resolved = [
            {"event_action": "resolve", "dedup_key": dedup_key(one)} for one in alerts.resolved
        ]
        return triggered + resolved

    def _trigger(self, alert: AlertBody, notes: Notes) -> dict[str, Any]:
        summary = summary_of(alert, self._config.language) or alert.name
        words = f"[{alert.priority}] {alert.name} {alert.operator}: {one_line(summary)}"
        details = {
            **alert.labels,
            "failure_id": alert.annotations.get("failure_id", ""),
            "reproduce": notes.command or alert.annotations.get("repro", ""),
            "reproduction": notes.path,
            "debug_report": notes.report,
        }
        links = [
            {"href": url, "text": text}
            for text in ("runbook", "dashboard")
            if is_link(url := alert.annotations.get(f"{text}_url", ""))
        ]
        return {
            "event_action": "trigger",
            "dedup_key": dedup_key(alert),
            "client": _CLIENT,
            "links": links,
            "payload": {
                "summary": cut_utf8(words, _SUMMARY_BYTES_MAX),
                "source": alert.labels.get("model", "") or _CLIENT,
                "severity": _SEVERITY.get(alert.priority, "info"),
                "timestamp": alert.starts_at.isoformat(),
                "component": alert.operator,
                "class": alert.name,
                "custom_details": {name: text for name, text in details.items() if text},
            },
        }

    def _note(self, letter: Letter) -> dict[str, Any]:
        """A summary or a drill: an event that opens no page of its own severity."""
        text = render(letter, self._config.language, Bare())
        return {
            "event_action": "trigger",
            "dedup_key": f"tocsin-{letter.about}-{letter.receiver}",
            "client": _CLIENT,
            "payload": {
                "summary": cut_utf8(text.title, _SUMMARY_BYTES_MAX),
                "source": _CLIENT,
                "severity": "info",
                "custom_details": {"text": text.body},
            },
        }


def dedup_key(alert: AlertBody) -> str:
    """The same for trigger and resolve, within PagerDuty's 255 characters."""
    return hashlib.sha256(alert.key.encode()).hexdigest()
