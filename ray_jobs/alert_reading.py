"""What an Alertmanager holds of a drill, told as the alerts that a chaos run is judged by."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from tocsin.core.errors import EnvironmentFault
from tocsin.core.history import Event, EventKind
from tocsin.dashboards.contract import alerts
from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.render.alertmanager import DEADMAN, DEGRADE
from tocsin.ray_jobs.pager import paging_of_environment

ALERTED_WITHIN_S = 90.0
"""Two scrapes and an evaluation at their usual intervals of 15 and 30 s, and Alertmanager's own."""
_TIMEOUT_S = 4.0
_EVERY_S = 1.0
_NOT_PEOPLE = frozenset({DEGRADE, DEADMAN})
_NAMES = ("model", "operator", "check", "detector", "layer", "backend", "replica")
"""Labels that tell one incident from another; what a place adds besides does not."""


class AlertReading:
    """Reads the alerts of `tocsin`'s rules and pushes from an Alertmanager (API v2), all through.

    Each is told once for each receiver that it is routed to, as ALERT_SENT: `ok`, or why it is
    held back. Alertmanager does not tell whether that receiver took it. Two that fire at the same
    time and name the same incident, as when a push lacks a label of its rule, are told as two.
    """

    def __init__(self, url: str, *, transport: httpx.BaseTransport | None = None) -> None:
        """Nothing is asked yet."""
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        self._client = httpx.Client(timeout=_TIMEOUT_S, trust_env=False, transport=transport)
        self._told: set[tuple[str, str]] = set()
        self._firing: dict[str, set[str]] = {}
        self._times: dict[str, int] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, tell: Callable[[Event], None]) -> None:
        """Look once, and from then on once a second in a thread.

        Raises:
            EnvironmentFault: the first look found no Alertmanager.
        """
        try:
            found = self.look()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise EnvironmentFault(
                f"alerts: {self._url} gave no list of alerts ({type(error).__name__}: {error}), "
                "expected an Alertmanager; correct TOCSIN_ALERTMANAGER_URL, or unset it"
            ) from None
        for event in found:
            tell(event)
        self._thread = threading.Thread(target=self._run, args=(tell,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(2 * _TIMEOUT_S)
        self._client.close()

    def look(self) -> list[Event]:
        """What was not told yet."""
        answer = self._client.get(self._url, params={"filter": 'alertname=~"Tocsin.+"'})
        answer.raise_for_status()
        alive = [one for one in answer.json() if one["status"]["state"] != "unprocessed"]
        now = {_incident(one): set[str]() for one in alive}
        for one in alive:
            now[_incident(one)].add(str(one["fingerprint"]))
        events = []
        for one in alive:
            key, incident = (str(one["fingerprint"]), str(one["startsAt"])), _incident(one)
            if key in self._told or one["labels"].get("priority") in (None, "none"):
                continue
            self._told.add(key)
            if not self._firing.get(incident, set()) & now[incident] - {key[0]}:
                self._times[incident] = self._times.get(incident, 0) + 1
            self._firing.setdefault(incident, set()).add(key[0])
            events += _events(one, f"{incident} #{self._times[incident]}")
        self._firing = now
        return events

    def _run(self, tell: Callable[[Event], None]) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                found = self.look()
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                continue  # it is asked again; what nobody could read counts as not told
            for event in found:
                tell(event)


def alert_reading(say: Callable[[str], None]) -> AlertReading | None:
    """Of the Alertmanager that pushes go to, the first of several; None: nobody named one."""
    urls = paging_of_environment().alertmanagers
    if not urls:
        return None
    say(f"alerts are read back from {urls[0]}, and each incident must have one")
    return AlertReading(urls[0])


def _incident(alert: Mapping[str, Any]) -> str:
    labels = alert["labels"]
    return " ".join([labels["alertname"], *(labels[name] for name in _NAMES if labels.get(name))])


def _events(alert: Mapping[str, Any], incident: str) -> list[Event]:
    """One for each of its receivers that are people's, or one that names nobody."""
    labels, words = alert["labels"], alert.get("annotations", {})
    receivers: Sequence[str] = [str(one["name"]) for one in alert["receivers"]]
    people = [one for one in receivers if one not in _NOT_PEOPLE] or [""]
    declared = {unit.name: unit for unit in alerts().values()}.get(labels["alertname"])
    detector = labels.get("check") or labels.get("detector")
    data = {
        "alert": labels["alertname"],
        "priority": labels["priority"],
        "incident": incident,
        "detector": detector or (declared.detector if declared else ""),
        "subject": labels.get("replica", ""),
        "failure_id": words.get("failure_id", ""),
        "repro": words.get("repro", ""),
        "drill": labels.get(DRILL) == "true",
        "result": _result(alert["status"]),
    }
    now_ns = time.monotonic_ns()
    return [
        Event(EventKind.ALERT_SENT, now_ns, "alertmanager", data={**data, "route": route})
        for route in people
    ]


def _result(status: Mapping[str, Any]) -> str:
    """What became of it: it is routed, a graver one speaks for it, or a person silenced it."""
    if status["state"] == "active":
        return "ok"
    return "inhibited" if status.get("inhibitedBy") else "silenced"
