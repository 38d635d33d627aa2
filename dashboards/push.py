"""The direct push: a P0 goes straight to Alertmanager, past scrape and evaluation intervals.

It carries the labels of the rule's own alert, so Alertmanager takes both for one.
"""

import asyncio
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from tocsin.dashboards.contract import Alert, alerts, filled
from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.render.options import RenderOptions
from tocsin.dashboards.render.rules import annotations

OPERATOR_FAILING, CROSS_REQUEST_DATA = "operator_failing", "cross_request_data"
_PATH = "/api/v2/alerts"
_WHY_CHARS_MAX = 200


def p0_alert(
    alert_id: str,
    *,
    model: str,
    operator: str,
    value: float,
    starts_s: float,
    failure_id: str = "",
    drill: bool = False,
    also: Mapping[str, str] | None = None,
    options: RenderOptions | None = None,
) -> dict[str, Any]:
    """One alert as Alertmanager's API takes it.

    It has no `endsAt`: Alertmanager then ends it by itself when neither the rule nor another push
    speaks of it again, and the rule's own end counts.

    Args:
        alert_id: of a declared alert (`dashboards.contract.alerts()`).
        value: what the rule's expression would give: failures in the window, or signs.
        starts_s: seconds since the epoch.
        failure_id: makes the reproduction that of this failure, not of the operator's latest.
        drill: the model is attacked on purpose.
        also: labels that the rule of this place adds besides, such as its namespace.
    """
    unit = alerts()[alert_id]
    known = {"model": model, "operator": operator, **({DRILL: "true"} if drill else {})}
    words = _words(unit, known, value, options or RenderOptions())
    if failure_id:
        words |= {"failure_id": failure_id, "repro": f"tocsin reproduce {failure_id}"}
    starts = datetime.datetime.fromtimestamp(starts_s, tz=datetime.UTC)
    return {
        "labels": {"alertname": unit.name, **unit.labels, **(also or {}), **known},
        "annotations": words,
        "startsAt": starts.isoformat(timespec="milliseconds"),
    }


async def push_p0(
    urls: Sequence[str],
    pushed: Sequence[Mapping[str, Any]],
    *,
    http: httpx.AsyncClient | None = None,
    timeout_s: float = 2.0,
) -> dict[str, str]:
    """Tell every Alertmanager at the same time; trouble with one is told, never raised.

    Args:
        urls: addresses of Alertmanagers: all of a cluster, because they only gossip what they sent.
        http: a client that is warm already; None: one for this call, which costs tens of ms.

    Returns:
        URL → empty, or why it did not take them.
    """
    if http is None:
        async with httpx.AsyncClient(trust_env=False) as own:
            return await push_p0(urls, pushed, http=own, timeout_s=timeout_s)
    found = await asyncio.gather(*(_push(url, pushed, http, timeout_s) for url in urls))
    return dict(zip(urls, found, strict=True))


async def _push(
    url: str, pushed: Sequence[Mapping[str, Any]], http: httpx.AsyncClient, timeout_s: float
) -> str:
    try:
        async with asyncio.timeout(timeout_s):
            answer = await http.post(url.rstrip("/") + _PATH, json=list(pushed), timeout=timeout_s)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{type(error).__name__}: {error}"[:_WHY_CHARS_MAX]
    if answer.is_success:
        return ""
    return f"HTTP {answer.status_code}: {answer.text}"[:_WHY_CHARS_MAX]


def _words(
    unit: Alert, labels: Mapping[str, str], value: float, options: RenderOptions
) -> dict[str, str]:
    """The rule's annotations, filled in as Prometheus does."""
    return {name: filled(text, labels, value) for name, text in annotations(unit, options).items()}
