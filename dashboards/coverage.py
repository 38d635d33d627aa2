"""Which panels have no data: every query of every dashboard, asked of a real Prometheus.

A panel that was right once goes empty when a metric is renamed; nothing but asking shows it.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from tocsin.core.clock import Clock, SystemClock
from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.dashboards.panel import Dashboard, substitute
from tocsin.dashboards.panels import DASHBOARDS


@dataclass(frozen=True, slots=True)
class Missing:
    """A query that brought nothing to look at."""

    dashboard: str
    panel: str
    expr: str
    why: str

    def __str__(self) -> str:
        """One line for a terminal."""
        return f"{self.dashboard}/{self.panel}: {self.why}: {self.expr}"


def missing(
    url: str,
    *,
    values: Mapping[str, str] | None = None,
    range_s: float = 300.0,
    boards: Iterable[Dashboard] = DASHBOARDS,
    timeout_s: float = 5.0,
    clock: Clock | None = None,
) -> tuple[Missing, ...]:
    """The queries that have no number in the last `range_s` seconds; none is the aim.

    Queries are asked as a browser would: over the range in up to 100 steps, or for now only where
    the panel shows one number. `$__range` is the range.

    Args:
        url: of Prometheus.
        values: of variables, as for `panel.substitute`: `__rate_interval` should be at least four
            scrapes (default 1m); `model`, `operator` and `replica` match all unless named.
        clock: whose wall time is the end of the range.

    Raises:
        EnvironmentFault: Prometheus does not answer at all.
        SpecError: the address is none.
    """
    if not _is_address(url):
        raise SpecError(f"coverage: {url!r} was given, expected the http(s) address of Prometheus")
    end_s = (clock or SystemClock()).wall_s()
    chosen = {"__range": f"{max(1, round(range_s))}s", **(values or {})}
    found: list[Missing] = []
    for board in boards:
        for panel in board.panels:
            for query in panel.queries:
                expr = substitute(query.expr, chosen)
                span_s = 0.0 if query.instant else range_s
                why = _why_empty(url, expr, end_s, span_s, timeout_s)
                if why:
                    found.append(Missing(board.id, panel.id, expr, why))
    return tuple(found)


def _is_address(url: str) -> bool:
    """Whether urllib can ask there; it raises half a dozen kinds of error where it cannot."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, (parts.hostname or "").encode("idna")
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and port != 0


def _why_empty(url: str, expr: str, end_s: float, span_s: float, timeout_s: float) -> str:
    """Why the query shows nothing; empty where it shows a number."""
    answer = _ask(url, expr, end_s, span_s, timeout_s)
    if answer.get("status") != "success":
        return f"refused ({answer.get('error', 'without a reason')})"
    try:
        series = answer["data"]["result"]
        numbers = [
            float(sample[1])
            for each in series
            for sample in (each["values"] if "values" in each else [each["value"]])
        ]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EnvironmentFault(
            f"coverage: {url} answered a success without numbers ({error!r:.80}), expected "
            "Prometheus; correct the address"
        ) from error
    if not series:
        return "no series"
    return "" if any(not math.isnan(number) for number in numbers) else "only NaN"


def _ask(url: str, expr: str, end_s: float, span_s: float, timeout_s: float) -> Mapping[str, Any]:
    if span_s:
        step_s = max(1.0, span_s / 100)
        path = "query_range"
        asked = {"query": expr, "start": end_s - span_s, "end": end_s, "step": step_s}
    else:
        path, asked = "query", {"query": expr, "time": end_s}
    where = f"{url.rstrip('/')}/api/v1/{path}"
    request = Request(where, data=urlencode(asked).encode())
    try:
        with urlopen(request, timeout=timeout_s) as response:
            body = response.read()
    except HTTPError as error:
        body = error.read()  # Prometheus says in the body what it does not like
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise EnvironmentFault(
            f"coverage: {where} does not answer ({error}), expected Prometheus; start it, or "
            "correct the address"
        ) from error
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise EnvironmentFault(
            f"coverage: {where} answered no JSON, expected Prometheus; correct the address"
        ) from error
    if not isinstance(answer, dict):
        raise EnvironmentFault(
            f"coverage: {where} answered a {type(answer).__name__}, expected Prometheus; "
            "correct the address"
        )
    return answer
