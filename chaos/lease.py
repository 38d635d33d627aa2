"""Faults inside a serving process, under a lease: not renewed in time, they take themselves away.

An order's way: armed → fired → healed, or unhealed when its place still reads wrong. Before it
has fired it may end as expired (lease) or disarmed (taken back, refused, or its injector failed).
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import nn

from tocsin.chaos.contract import Fault, Raises, Target, faults
from tocsin.core.calls import BatchCall, Call
from tocsin.core.clock import Clock
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Order, OrderStatus, Scope
from tocsin.core.protocols import PageStore
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator, Phase

Report = Callable[[OrderStatus], None]
_OPEN = ("armed", "fired")
_WITHOUT_EFFECT = ("expired", "disarmed")


@dataclass(slots=True)
class _Armed:
    """One order and all that belongs to it; `calls_left` 0: it will change nothing more."""

    order: Order
    fault: Fault
    target: Target
    status: OrderStatus
    deadline_ns: int
    calls_left: int
    removers: list[Callable[[], None]] = field(default_factory=list)

    def take_out(self) -> None:
        """Leave the seams."""
        self.calls_left = 0
        for remove in self.removers:
            remove()
        self.removers.clear()


class Armoury:
    """All orders that one worker suffers; driven by `tick`, with `expire` for idle times.

    Orders come from a command thread and leases may end on a timer thread while the engine is in
    a step: one lock guards the book, and reports go out after it was released.
    """

    def __init__(
        self, model: nn.Module, pages: PageStore, seams: Seams, clock: Clock, report: Report
    ) -> None:
        """Nothing is armed yet; `report` hears of every change of an order's state."""
        self._model = model
        self._pages = pages
        self._seams = seams
        self._clock = clock
        self._report = report
        self._lock = threading.RLock()
        self._book: dict[str, _Armed] = {}
        self._refused: dict[str, OrderStatus] = {}
        self._news: list[OrderStatus] = []
        self._step = -1
        self._request_ids: tuple[str, ...] = ()
        self._forget_rows: Callable[[], None] | None = None

    def arm(self, order: Order) -> OrderStatus:
        """Take an order; a second order for an occurrence counts only if the first had no effect.

        Returns:
            Its status: `disarmed` with an error for an order that cannot be carried out.
        """
        with self._lock:
            known = self._find(order.occurrence)
            if known is None or known.state in _WITHOUT_EFFECT:
                known = self._take(order)
        self._tell()
        return known

    def tick(self, step: int) -> None:
        """A step is about to begin: end leases, see what has healed.

        Args:
            step: number of the step, the worker's logical clock.
        """
        with self._lock:
            self._step = step
            self._review()
        self._tell()

    def expire(self) -> None:
        """The same without a step, from a timer: an idle engine's leases end too."""
        with self._lock:
            self._review()
        self._tell()

    def renew(self, ttl_s: float) -> None:
        """The controller is alive: every lease begins anew."""
        with self._lock:
            for armed in self._book.values():
                armed.deadline_ns = self._clock.now_ns() + int(ttl_s * 1e9)

    def disarm(self, occurrence: str) -> None:
        """Take an order back and heal what it did; unknown and settled ones are left alone."""
        with self._lock:
            armed = self._book.get(occurrence)
            if armed is not None and armed.status.state in (*_OPEN, "unhealed"):
                self._end(armed, "disarmed")
        self._tell()

    def disarm_all(self) -> None:
        """Take every order back: the worker drains, or chaos was switched off."""
        for occurrence in tuple(self._book):
            self.disarm(occurrence)

    def statuses(self) -> tuple[OrderStatus, ...]:
        """Where every order stands, refused ones last."""
        with self._lock:
            return (*(armed.status for armed in self._book.values()), *self._refused.values())

    def _find(self, occurrence: str) -> OrderStatus | None:
        armed = self._book.get(occurrence)
        return armed.status if armed is not None else self._refused.get(occurrence)

    def _take(self, order: Order) -> OrderStatus:
        """Enter an order into the book and its listeners at the seams, or refuse it."""
        status = OrderStatus(order.occurrence, "armed")
        try:
            fault, target, calls = self._aim(order)
        except SpecError as error:
            status = replace(status, state="disarmed", error=str(error))
            self._book.pop(order.occurrence, None)
            self._refused[order.occurrence] = status
            self._news.append(status)
            return status
        deadline_ns = self._clock.now_ns() + int(order.ttl_s * 1e9)
        armed = _Armed(order, fault, target, status, deadline_ns, calls)
        self._refused.pop(order.occurrence, None)
        self._book[order.occurrence] = armed
        if self._forget_rows is None:  # heard before any fault, which then knows whose rows it sees
            self._forget_rows = self._seams.add_fault(
                Operator.BATCH, Phase.BEFORE, self._remember_rows
            )
        for operator in fault.operators:
            armed.removers.append(
                self._seams.add_fault(operator, fault.phase, lambda call: self._hear(armed, call))
            )
        self._news.append(status)
        return status

    def _aim(self, order: Order) -> tuple[Fault, Target, int]:
        """The fault, its target and how many calls it changes, or why it cannot be."""
        if _switched_off():
            raise SpecError(f"{order.occurrence}: CHAOS_DISABLE is 1; unset it to allow chaos")
        fault = faults().get(order.kind)
        if fault is None or fault.scope is not Scope.WORKER:
            raise SpecError(
                f"{order.occurrence}: {order.kind} is no fault inside a worker; "
                f"known are {[f.id for f in faults().values() if f.scope is Scope.WORKER]}"
            )
        if order.ttl_s <= 0:
            raise SpecError(f"{order.occurrence}: ttl_s is {order.ttl_s}, expected more than 0")
        params = fault.resolve(order.params)
        times = params.get("times", 1)
        if not isinstance(times, int) or times < 1:
            raise SpecError(f"{order.occurrence}: times is {times!r}, expected an integer above 0")
        target = Target(self._model, self._pages, params, order.seed, clock=self._clock)
        return fault, target, times

    def _remember_rows(self, call: Call) -> None:
        if isinstance(call, BatchCall):
            self._request_ids = call.request_ids

    def _hear(self, armed: _Armed, call: Call) -> None:
        """An operator call passes by: let the fault try it.

        Raises:
            BackendError: the fault is an exception that the engine must meet.
        """
        with self._lock:
            if armed.calls_left == 0 or self._step < armed.order.after_step:
                return
            armed.target.step = self._step
            armed.target.request_ids = self._request_ids
            try:
                outcome = armed.fault.inject(call, armed.target)
            except Exception as error:  # noqa: BLE001 - recorded; chaos must not break serving
                self._fail(armed, error)
                outcome = None
            evidence = outcome.evidence if isinstance(outcome, Raises) else outcome
            if evidence is not None:
                self._note(armed, evidence)
        self._tell()
        if isinstance(outcome, Raises):
            raise outcome.error

    def _note(self, armed: _Armed, evidence: Evidence) -> None:
        """Count what the fault changed; without a change it has not fired, and may try again."""
        if not evidence.fired:
            error = f"{evidence.place}: injected, and still reads {evidence.after}"
            if armed.status.state == "armed" and armed.status.error != error:
                self._change(armed, evidence=evidence, error=error)
            return
        armed.calls_left -= 1
        if armed.status.state == "armed":
            self._change(
                armed,
                state="fired",
                evidence=evidence,
                fired_ns=self._clock.now_ns(),
                fired_step=self._step,
                error="",
            )
        if armed.calls_left == 0:
            armed.take_out()

    def _fail(self, armed: _Armed, error: Exception) -> None:
        """An injector broke: record it, take it out, heal what it may have done by then."""
        kind = "" if isinstance(error, SpecError) else f"{armed.fault.id}: {type(error).__name__}: "
        text = f"{kind}{error}"
        self._end(armed, "disarmed")
        self._change(armed, error=text)

    def _review(self) -> None:
        """Settle what has healed, end what has no lease any more."""
        off = _switched_off()
        for armed in self._book.values():
            if armed.status.state not in _OPEN:
                continue
            if off:
                self._end(armed, "disarmed")
            elif self._clock.now_ns() >= armed.deadline_ns:
                self._end(armed, "expired")
            elif armed.status.state == "fired" and armed.calls_left == 0:
                error, healed = self._verify(armed)
                if healed or error:
                    self._settle(armed, healed, error)
        if self._forget_rows is not None and not any(a.removers for a in self._book.values()):
            self._forget_rows()
            self._forget_rows = None

    def _end(self, armed: _Armed, unfired_state: str) -> None:
        """Take an order out of the seams; heal it if it has fired."""
        armed.take_out()
        if armed.status.state == "armed":
            self._change(armed, state=unfired_state)
            if not armed.target.memory:
                return
        error, healed = self._verify(armed)
        if not healed and armed.fault.heal_with is not None:
            try:
                armed.fault.heal_with(armed.target)
            except Exception as failure:  # noqa: BLE001 - recorded as unhealed
                error = f"{armed.fault.id}: heal: {type(failure).__name__}: {failure}"
            else:
                error, healed = self._verify(armed)
        if armed.status.state in ("fired", "unhealed"):
            self._settle(armed, healed, error)

    def _verify(self, armed: _Armed) -> tuple[str, bool]:
        """Why it could not be told, and whether the place reads as it should."""
        if armed.fault.verify_heal_with is None:
            return "", True
        try:
            return "", armed.fault.verify_heal_with(armed.target)
        except Exception as failure:  # noqa: BLE001 - recorded as unhealed
            return f"{armed.fault.id}: heal_verify: {type(failure).__name__}: {failure}", False

    def _settle(self, armed: _Armed, healed: bool, error: str) -> None:
        state, healed_ns = ("healed", self._clock.now_ns()) if healed else ("unhealed", 0)
        self._change(armed, state=state, healed_ns=healed_ns, error=error)

    def _change(self, armed: _Armed, **fields: object) -> None:
        before = armed.status
        armed.status = replace(before, **fields)  # type: ignore[arg-type]
        if armed.status != before:
            self._news.append(armed.status)

    def _tell(self) -> None:
        """Report what changed, without the lock."""
        with self._lock:
            news, self._news = self._news, []
        for status in news:
            self._report(status)


def _switched_off() -> bool:
    """The environment can only switch chaos off, never on."""
    return os.environ.get("CHAOS_DISABLE") == "1"
