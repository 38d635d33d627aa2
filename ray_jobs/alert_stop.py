"""Ends a chaos run when people are alerted: a new alert that is not of the chaos itself."""

from collections.abc import Sequence
from typing import Any

import httpx

from tocsin.chaos.policy import matcher
from tocsin.core.errors import SpecError

NOT_OF_CHAOS = 'chaos!="true"'
_TIMEOUT_S = 4.0
_MISSES_MAX = 2
_SHOWN = ("alertname", "severity", "namespace", "instance", "operator")

Key = tuple[str, str]
"""Fingerprint of an alert and when it began, as its server wrote it: one that fires anew differs.

Whether an alert is new is told from what the first look showed, not from clocks, which differ.
"""


class AlertStop:
    """Implements `core.guard.Guard` over an Alertmanager (API v2).

    Args:
        url: of the Alertmanager.
        matchers: which alerts count, all of them must match; those of chaos itself never do,
            unless a matcher names the label `chaos`.
    """

    def __init__(self, url: str, matchers: Sequence[str] = (), *, transport: Any = None) -> None:
        """Nothing is asked yet; the first look remembers what fires already.

        Raises:
            SpecError: a matcher is none.
        """
        try:
            wanted = [matcher(one) for one in matchers]
        except ValueError as error:
            raise SpecError(f"--stop-matchers: {error}") from None
        if not any(one.split("=")[0].rstrip("!~").strip() == "chaos" for one in wanted):
            wanted.append(NOT_OF_CHAOS)
        self._filter = wanted
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        self._client = httpx.Client(timeout=_TIMEOUT_S, transport=transport)
        self._before: frozenset[Key] | None = None
        self._misses = 0

    def why_not(self) -> str:
        """A new alert, or no answer twice in a row; before the run one miss is enough."""
        try:
            firing = self._firing()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            self._misses += 1
            if self._before is not None and self._misses < _MISSES_MAX:
                return ""
            looks = "two looks" if self._misses > 1 else "the first look"
            return (
                f"alerts: {looks} at {self._url} gave no data ({_words(error)}), expected a list "
                "of alerts; correct --stop-on-alert, or see that the Alertmanager is well"
            )
        self._misses = 0
        if self._before is None:
            self._before = frozenset(firing)
        new = {key: labels for key, labels in firing.items() if key not in self._before}
        if not new:
            return ""
        labels = next(iter(new.values()))
        more = f" and {len(new) - 1} more" if len(new) > 1 else ""
        return f"alerts: {_shown(labels)} began during the run{more}; look at the service first"

    def close(self) -> None:
        """Let the connections go."""
        self._client.close()

    def _firing(self) -> dict[Key, dict[str, str]]:
        """Active alerts that match, by what tells them apart."""
        asked = {
            "filter": self._filter,
            "active": "true",
            "silenced": "false",
            "inhibited": "false",
        }
        answer = self._client.get(self._url, params=asked)
        answer.raise_for_status()
        found = answer.json()
        if not isinstance(found, list):
            raise TypeError(f"{type(found).__name__} instead of a list")
        return {
            (str(one["fingerprint"]), str(one["startsAt"])): dict(one["labels"]) for one in found
        }


def _shown(labels: dict[str, str]) -> str:
    shown = [f"{name}={labels[name]}" for name in _SHOWN[1:] if labels.get(name)]
    return f"{labels.get('alertname', 'an alert')}" + (f" ({', '.join(shown)})" if shown else "")


def _words(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"status {error.response.status_code}"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer in {_TIMEOUT_S:g} s"
    return (str(error) or type(error).__name__).splitlines()[0]
