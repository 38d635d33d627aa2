"""What an Alertmanager holds of this drill, told as the alerts that a chaos run is judged by."""

import contextlib
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
_WHO = "alertmanager"
_MISSES_MAX = 5
_NOT_PEOPLE = frozenset({DEGRADE, DEADMAN})
_NAMES = ("model", "operator", "check", "detector", "layer", "backend", "replica")
"""Labels that tell one incident from another; what a place adds besides does not."""
_MISTAKES = (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError)


class AlertReading:
    """Reads the alerts of a drill from an Alertmanager (API v2), as long as it lasts.

    Each is told once for each receiver that it is routed to, as ALERT_SENT: `ok`, or why it is
    held back; and ALERT_ENDED when it fires no more. Alertmanager does not tell whether that
    receiver took it. Two that fire at the same time and name the same incident, as when a push
    lacks a label of its rule, are told as two. What serves in earnest is not looked at.

    Args:
        url: of the Alertmanager.
        model: the served one: another's drill is not ours.
        labels: what the rules of this place put on every alert, such as its namespace.
    """

    def __init__(
        self,
        url: str,
        model: str,
        labels: Sequence[tuple[str, str]] = (),
        *,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Nothing is asked yet."""
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        wanted = {DRILL: "true", **dict(labels)}
        self._filter = ['alertname=~"Tocsin.+"', *(f'{k}="{v}"' for k, v in wanted.items())]
        self._model = model
        self._client = httpx.Client(timeout=_TIMEOUT_S, trust_env=False, transport=transport)
        self._told: dict[tuple[str, str], str] = {}
        self._times: dict[str, int] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Ask once.

        Raises:
            EnvironmentFault: there is no Alertmanager.
        """
        try:
            self._alive()
        except _MISTAKES as error:
            raise EnvironmentFault(
                f"alerts: {self._url} gave no list of alerts ({type(error).__name__}: {error}), "
                "expected an Alertmanager; correct TOCSIN_ALERTMANAGER_URL, or unset it"
            ) from None

    def start(self, tell: Callable[[Event], None]) -> None:
        """Look once a second in a thread, what fires already included; again: nothing more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(tell,), daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(2 * _TIMEOUT_S)
        self._client.close()

    def look(self) -> list[Event]:
        """What was not told yet: alerts that began, and that ended."""
        alive = {(str(one["fingerprint"]), str(one["startsAt"])): one for one in self._alive()}
        events = []
        for key, one in alive.items():
            if key in self._told:
                continue
            incident = _incident(one)
            together = any(
                told.rpartition(" #")[0] == incident and other in alive and other[0] != key[0]
                for other, told in self._told.items()
            )
            if not together:
                self._times[incident] = self._times.get(incident, 0) + 1
            self._told[key] = f"{incident} #{self._times[incident]}"
            events += _events(one, self._told[key])
        ended = [key for key in self._told if key not in alive]
        for key in ended:
            data = {"incident": self._told.pop(key)}
            events.append(Event(EventKind.ALERT_ENDED, time.monotonic_ns(), _WHO, data=data))
        return events

    def _alive(self) -> list[Mapping[str, Any]]:
        """Alerts of this drill that fire and that Alertmanager has looked at."""
        answer = self._client.get(self._url, params={"filter": self._filter})
        answer.raise_for_status()
        return [
            one
            for one in answer.json()
            if one["status"]["state"] != "unprocessed"
            and one["labels"].get("priority") not in (None, "none")
            and one["labels"].get("model", self._model) == self._model
        ]

    def _run(self, tell: Callable[[Event], None]) -> None:
        misses = 0
        while not self._over.wait(_EVERY_S):
            try:
                for event in self.look():
                    tell(event)
                misses = 0
            except Exception as error:  # noqa: BLE001 - it is asked again, and the run is told
                misses += 1
                if misses == _MISSES_MAX:
                    data = {"why": f"{self._url}: {type(error).__name__}: {error}"}
                    event = Event(EventKind.ALERTS_UNREAD, time.monotonic_ns(), _WHO, data=data)
                    with contextlib.suppress(Exception):
                        tell(event)


def alert_reading(model: str, say: Callable[[str], None]) -> AlertReading | None:
    """Of the Alertmanager that pushes go to, the first of several; None: nobody named one.

    Raises:
        EnvironmentFault: it does not answer.
    """
    paging = paging_of_environment()
    if not paging.alertmanagers:
        return None
    say(f"alerts are read back from {paging.alertmanagers[0]}, and each incident must have one")
    reading = AlertReading(paging.alertmanagers[0], model, paging.labels)
    reading.check()
    return reading


def _incident(alert: Mapping[str, Any]) -> str:
    labels = alert["labels"]
    return " ".join([labels["alertname"], *(labels[name] for name in _NAMES if labels.get(name))])


def _events(alert: Mapping[str, Any], incident: str) -> list[Event]:
    """One for each of its receivers that are people's, or one that names nobody."""
    labels, words = alert["labels"], alert.get("annotations", {})
    # The Prometheus Operator puts namespace and object before a receiver's own name.
    receivers = [str(one["name"]).rpartition("/")[2] for one in alert["receivers"]]
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
        Event(EventKind.ALERT_SENT, now_ns, _WHO, data={**data, "route": route}) for route in people
    ]


def _result(status: Mapping[str, Any]) -> str:
    """What became of it: it is routed, a graver one speaks for it, or a person silenced it."""
    if status["state"] == "active":
        return "ok"
    return "inhibited" if status.get("inhibitedBy") else "silenced"
