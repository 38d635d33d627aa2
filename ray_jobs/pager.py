"""The board's pager: hears every failure, and pushes what pages at once to Alertmanager."""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tocsin.core.clock import Clock, SystemClock
from tocsin.core.terms import CROSSING_CHECKS
from tocsin.dashboards.push import CROSS_REQUEST_DATA, OPERATOR_FAILING, p0_alert, push_p0
from tocsin.dashboards.render.options import RenderOptions

_AGAIN_S = 5.0
"""The same alert is pushed again only after this time: Alertmanager has it."""
_TRIES_AFTER_S = (0.1, 0.5, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0, 60.0)
"""Four minutes: a receiver that is down for less misses nothing, and the rule has paged by then."""
_PUSHES_MAX = 64
_REMEMBERED = 256
ALERTMANAGER = "alertmanager"


@dataclass(frozen=True, slots=True)
class Paging:
    """Who is told directly; plain data that travels to the board.

    Attributes:
        alertmanagers: URLs; none: nothing is pushed, Prometheus alone pages.
        gateway_url: for links to the live page.
        drill: failures are made on purpose, and their alerts say so.
        labels: what the rules of this place put on every alert (name, value): a push without them
            is another alert to Alertmanager, and under an operator it is routed to nobody.
    """

    alertmanagers: tuple[str, ...] = ()
    gateway_url: str = ""
    drill: bool = False
    labels: tuple[tuple[str, str], ...] = ()


def paging_of_environment(gateway_url: str = "") -> Paging:
    """What `TOCSIN_ALERTMANAGER_URL` (several: comma between them) and `TOCSIN_DRILL` say.

    Labels come from `TOCSIN_ALERT_LABELS`: name=value, comma between them.

    Args:
        gateway_url: where people reach the gateway; empty: as `TOCSIN_GATEWAY_URL` says.
    """
    pairs = (one.partition("=") for one in os.environ.get("TOCSIN_ALERT_LABELS", "").split(","))
    urls = os.environ.get("TOCSIN_ALERTMANAGER_URL", "").split(",")
    return Paging(
        tuple(url.strip() for url in urls if url.strip()),
        gateway_url or os.environ.get("TOCSIN_GATEWAY_URL", ""),
        os.environ.get("TOCSIN_DRILL") == "1",
        tuple((name.strip(), text.strip()) for name, _, text in pairs if name.strip()),
    )


class Pager:
    """Pushes on the event loop of the board; neither failures nor a dead Alertmanager hold it up.

    Args:
        count: hears of each push: `core.metrics.DELIVERY_RESULTS`.
        start: starts a push; by default as a task of the running loop.
    """

    def __init__(
        self,
        paging: Paging,
        *,
        clock: Clock | None = None,
        count: Callable[[str, str], None] = lambda receiver, result: None,
        start: Callable[[Coroutine[Any, Any, None]], Any] | None = None,
    ) -> None:
        """Nothing was pushed yet."""
        self.paging = paging
        self.outcomes: OrderedDict[str, str] = OrderedDict()
        self._clock: Clock = clock or SystemClock()
        self._count = count
        self._start = start or self._as_task
        self._options = RenderOptions(gateway_url=paging.gateway_url or RenderOptions().gateway_url)
        self._http: httpx.AsyncClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pushed_ns: dict[tuple[str, str, str], int] = {}
        self._failure_ids: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._attacked_ns = 0
        if paging.alertmanagers:
            # Made now, because that costs more than a push may; straight, past any proxy.
            self._http = httpx.AsyncClient(trust_env=False)

    def hear(self, event: Mapping[str, Any]) -> None:
        """An event of the board; a sign that one request met another's data pages at once."""
        if self._http is None or event.get("kind") != "check_failed":
            return
        record = event["data"]
        model, failure_id = str(record.get("model", "")), str(record.get("failure_id", ""))
        findings: Sequence[Mapping[str, Any]] = record.get("findings") or ()
        if record.get("snapshot", failure_id):  # what was recorded in full can be reproduced
            for finding in findings:
                self._remember(model, str(finding.get("operator", "")), failure_id)
        for finding in findings:
            if finding.get("check") in CROSSING_CHECKS:
                self._page(CROSS_REQUEST_DATA, model, str(finding.get("operator", "")), 1)

    def window_crossed(self, model: str, operator: str, count: int = 11) -> None:
        """An operator failed too often in one minute."""
        self._page(OPERATOR_FAILING, model, operator, count)

    def attacked(self, seconds: float) -> None:
        """From now on, for so long, failures are an experiment's doing."""
        self._attacked_ns = self._clock.now_ns() + int(seconds * 1e9)

    async def close(self) -> None:
        """End the pushes that are on their way."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()

    def _remember(self, model: str, operator: str, failure_id: str) -> None:
        self._failure_ids[model, operator] = failure_id
        self._failure_ids.move_to_end((model, operator))
        while len(self._failure_ids) > _REMEMBERED:
            self._failure_ids.popitem(last=False)

    def _page(self, alert_id: str, model: str, operator: str, value: float) -> None:
        """Push one alert, with the operator's last failure that can be reproduced."""
        if self._http is None:
            return
        key, now_ns = (alert_id, model, operator), self._clock.now_ns()
        last_ns = self._pushed_ns.get(key)
        if last_ns is not None and now_ns - last_ns < _AGAIN_S * 1e9:
            return
        if len(self._tasks) >= _PUSHES_MAX:
            self._count(ALERTMANAGER, "dead_letter")  # the rule still pages
            return
        self._pushed_ns[key] = now_ns
        alert = p0_alert(
            alert_id,
            model=model,
            operator=operator,
            value=value,
            starts_s=self._clock.wall_s(),
            failure_id=self._failure_ids.get((model, operator), ""),
            drill=self.paging.drill or now_ns < self._attacked_ns,
            also=dict(self.paging.labels),
            options=self._options,
        )
        self._start(self._push(alert))

    async def _push(self, alert: dict[str, Any]) -> None:
        """To every Alertmanager, again to those that did not take it, then leave it to the rule."""
        urls = list(self.paging.alertmanagers)
        for wait_s in (*_TRIES_AFTER_S, None):
            found = await push_p0(urls, [alert], http=self._http)
            self.outcomes.update(found)
            urls = [url for url, why in found.items() if why]
            for url in found:
                failed = "dead_letter" if wait_s is None else "retried"
                self._count(ALERTMANAGER, failed if url in urls else "ok")
            if not urls or wait_s is None:
                return
            await asyncio.sleep(wait_s)

    def _as_task(self, push: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(push)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
