"""The relay: takes notifications, adds what is known of the failures, hands letters to couriers."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx

from tocsin.core.clock import Clock, SystemClock
from tocsin.core.errors import CapacityError, SpecError, TocsinError
from tocsin.core.terms import Priority
from tocsin.dashboards.relay.channels import channel_of
from tocsin.dashboards.relay.config import RelayConfig
from tocsin.dashboards.relay.courier import Count, Courier
from tocsin.dashboards.relay.evidence import FindEvidence, Reproduce, Reproduction
from tocsin.dashboards.relay.letter import Letter, Notes
from tocsin.dashboards.relay.notification import AlertBody, Notification
from tocsin.dashboards.relay.report import prune_reports, write_report
from tocsin.dashboards.relay.spool import Spool

Found = TypeVar("Found")

_REPRODUCED_AGAIN_S = 600.0
_REMEMBERED = 256
_REPORT_WAIT_S = 5.0


class Relay:
    """Implements the way from a webhook body to people.

    Args:
        reproduce: writes the reproduction of a failure; called in a thread, at most once in ten
            minutes for one failure.
        evidence: finds what is known of a failure, for the debug report.
        count: hears of every delivery.
    """

    def __init__(
        self,
        config: RelayConfig,
        *,
        reproduce: Reproduce | None = None,
        evidence: FindEvidence | None = None,
        count: Count = lambda kind, result: None,
        clock: Clock | None = None,
    ) -> None:
        """Read every secret once, so that a mistake is found now and not by the first alert.

        Raises:
            SpecError: a secret is missing or not private.
            EnvironmentFault: a library that a receiver needs is not installed.
        """
        self.config = config
        self._reproduce = reproduce
        self._evidence = evidence
        self._clock: Clock = clock or SystemClock()
        self._spool = Spool(config.state)
        self._http = httpx.AsyncClient(follow_redirects=False)
        self._preparing: set[asyncio.Task[Any]] = set()
        self._runs: list[asyncio.Task[None]] = []
        self._reproductions: OrderedDict[
            tuple[str, float], tuple[float, asyncio.Task[Reproduction | None]]
        ] = OrderedDict()
        self.stopping = False
        self.couriers: dict[str, Courier] = {}
        for name, receiver in config.receivers.items():
            channel = channel_of(name, receiver, self._clock)
            channel.check()
            self.couriers[name] = Courier(
                name,
                channel,
                self._spool,
                self._http,
                per_minute=receiver.per_minute,
                attempts_max=receiver.attempts_max,
                clock=self._clock,
                count=count,
            )

    def start(self) -> None:
        """Begin to deliver, with what an earlier process left; call it on the event loop."""
        for letter in self._spool.waiting():
            if letter.receiver in self.couriers:
                self.couriers[letter.receiver].put(letter)
        self._runs = [asyncio.ensure_future(one.run()) for one in self.couriers.values()]

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take nothing more, deliver what can be delivered at once, keep the rest on disk."""
        self.stopping = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.emptied(), grace_s)
        tasks = [*self._preparing, *self._runs]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for courier in self.couriers.values():
            courier.give_up()
        await self._http.aclose()

    async def emptied(self) -> None:
        """Wait until no letter is prepared or on its way."""
        while self._preparing or any(courier.queued for courier in self.couriers.values()):
            await asyncio.sleep(0.02)

    def accept(self, receiver: str, notification: Notification) -> Letter:
        """Keep a notification on disk and see to it; returns at once.

        Raises:
            KeyError: there is no such receiver.
            CapacityError: it could not be kept; who sent it must send it again.
        """
        courier = self.couriers[receiver]
        if self.stopping:
            raise CapacityError("relay: it is stopping; send the notification again")
        notes = {
            alert.key: Notes(command=_command(alert))
            for alert in notification.firing
            if _command(alert)
        }
        letter = Letter(
            receiver=receiver,
            notification=notification,
            notes=notes,
            accepted_s=self._clock.wall_s(),
        )
        self._spool.keep(letter)
        if letter.urgent and self._reproduce is not None:
            self._go(self._with_reproduction(courier, letter))
        elif _wants_report(notification) and self._evidence is not None:
            self._go(self._with_report(courier, letter))
        else:
            courier.put(letter)
        return letter

    def drill(self, receiver: str) -> Letter:
        """Send a message that says that nothing is wrong.

        Raises:
            KeyError: there is no such receiver.
            CapacityError: it could not be kept.
        """
        courier = self.couriers[receiver]
        letter = Letter(receiver=receiver, about="drill", accepted_s=self._clock.wall_s())
        self._spool.keep(letter)
        courier.put(letter)
        return letter

    def redeliver(self, receiver: str | None = None) -> list[Letter]:
        """Take dead letters, of one receiver or of all, and send them again.

        Raises:
            SpecError: there is no such receiver.
            CapacityError: they could not be kept.
        """
        if receiver is not None and receiver not in self.couriers:
            raise SpecError(
                f"relay: there is no receiver {receiver!r}, expected one of {sorted(self.couriers)}"
            )
        letters = self._spool.dig_up(
            lambda letter: letter.receiver in self.couriers and receiver in (None, letter.receiver)
        )
        for letter in letters:
            self.couriers[letter.receiver].put(letter)
        return letters

    def undelivered(self) -> list[Letter]:
        """Letters on disk: those on their way and the dead."""
        return [*self._spool.waiting(), *self._spool.dead()]

    def health(self) -> dict[str, Any]:
        """JSON-safe: how many letters wait, and how many of this process died."""
        return {
            "status": "stopping" if self.stopping else "ok",
            "receivers": {
                name: {
                    "kind": courier.channel.kind,
                    "queued": courier.queued,
                    "dead": courier.dead,
                }
                for name, courier in self.couriers.items()
            },
            "dead_letters": len(self._spool.dead()),
        }

    # --- what is added to a letter ---

    async def _with_reproduction(self, courier: Courier, letter: Letter) -> None:
        """A page waits a little for its reproduction; one that is slower is told by itself."""
        if letter.notification is None:
            return
        alerts = [alert for alert in letter.notification.firing if alert.failure]
        found = await self._gather(alerts, self.config.reproduce_wait_s)
        self._hand_over(courier, letter, found)
        late = [alert for alert in alerts if alert.key not in found]
        if not late:
            return
        more = await self._gather(late, None)
        if more:
            notification = letter.notification.model_copy(
                update={"alerts": tuple(alert for alert in late if alert.key in more)}
            )
            follow_up = Letter(
                receiver=letter.receiver,
                about="reproduction",
                notification=notification,
                notes=more,
                accepted_s=self._clock.wall_s(),
            )
            with contextlib.suppress(CapacityError):  # the page itself is out
                self._spool.keep(follow_up)
                courier.put(follow_up)

    async def _gather(self, alerts: list[AlertBody], wait_s: float | None) -> dict[str, Notes]:
        """Notes of those alerts whose reproduction is there in time."""
        tasks = {alert.key: self._reproduction(alert) for alert in alerts}
        if not tasks:
            return {}
        await asyncio.wait(set(tasks.values()), timeout=wait_s)
        found = {}
        for key, task in tasks.items():
            reproduction = task.result() if task.done() and not task.cancelled() else None
            if reproduction is not None:
                found[key] = Notes(command=reproduction.command, path=str(reproduction.path))
        return found

    def _reproduction(self, alert: AlertBody) -> asyncio.Task[Reproduction | None]:
        """The running or finished task for a failure; several receivers share it."""
        now_s = self._clock.now_ns() / 1e9
        wanted = alert.failure, alert.failed_since_s
        known = self._reproductions.get(wanted)
        if known is not None and now_s - known[0] < _REPRODUCED_AGAIN_S:
            return known[1]
        reproduce = self._reproduce
        task = self._go(_in_thread(lambda: reproduce(*wanted) if reproduce else None))
        self._reproductions[wanted] = (now_s, task)
        while len(self._reproductions) > _REMEMBERED:
            self._reproductions.popitem(last=False)
        return task

    async def _with_report(self, courier: Courier, letter: Letter) -> None:
        """A ticket carries a debug report, if one can be written in time."""
        if letter.notification is None:
            return
        found = {}
        for alert in letter.notification.firing:
            if alert.priority == Priority.P1 and alert.failure:
                known = letter.notes.get(alert.key, Notes())
                task = asyncio.ensure_future(_in_thread(self._report_writer(alert, known)))
                done, _ = await asyncio.wait({task}, timeout=_REPORT_WAIT_S)
                report = task.result() if done else None
                if report:
                    found[alert.key] = known.model_copy(update={"report": report})
        self._hand_over(courier, letter, found)

    def _report_writer(self, alert: AlertBody, notes: Notes) -> Callable[[], str | None]:
        folder = self.config.state / "reports"
        find = self._evidence

        def write() -> str | None:
            evidence = find(alert.failure, alert.failed_since_s) if find is not None else None
            if evidence is None:
                return None
            page = write_report(folder, alert, evidence, notes, self._clock.wall_s())
            prune_reports(folder, self.config.reports_max)
            return str(page)

        return write

    def _hand_over(self, courier: Courier, letter: Letter, found: dict[str, Notes]) -> None:
        if found:
            letter = letter.model_copy(update={"notes": {**letter.notes, **found}})
            with contextlib.suppress(CapacityError):  # the spool has it without the notes
                self._spool.keep(letter)
        courier.put(letter)

    def _go(self, work: Awaitable[Found]) -> asyncio.Task[Found]:
        task = asyncio.ensure_future(work)
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)
        return task


def _command(alert: AlertBody) -> str:
    """What to type to see an alert's failure again: by id where it is known."""
    failure_id = alert.annotations.get("failure_id", "")
    if failure_id:
        return f"tocsin reproduce {failure_id}"
    return alert.annotations.get("repro", "") or (
        f"tocsin reproduce {alert.failure}" if alert.failure else ""
    )


def _wants_report(notification: Notification) -> bool:
    return any(alert.priority == Priority.P1 for alert in notification.firing)


async def _in_thread(function: Callable[[], Found | None]) -> Found | None:
    """The function's result; None where it failed: an alert goes out with less, but it goes out."""
    try:
        return await asyncio.to_thread(function)
    except (TocsinError, OSError, ValueError, KeyError, RuntimeError):
        return None
