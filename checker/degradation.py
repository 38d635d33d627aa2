"""How a replica degrades: a lighter backend, or full checks on an operator, for a while."""

from dataclasses import dataclass
from typing import Any

from tocsin.checker.breaker import Breaker
from tocsin.checker.switchboard import Switchboard, SwitchOrder
from tocsin.core.clock import Clock
from tocsin.core.degrade import DEGRADE_TTL_S
from tocsin.core.terms import Operator, Profile

_BY_BACKEND = (Operator.ATTENTION, Operator.FLASH_ATTN_VARLEN, Operator.KV_UPDATE, Operator.KV_READ)
"""Operators that another attention backend carries out another way."""


@dataclass(frozen=True, slots=True)
class _Order:
    operator: Operator
    backend: str
    until_ns: int


class Degrader:
    """Takes degrade orders and takes them back when their time is over.

    An operator that the attention backends share is served by the next backend down; of any other
    there is one kind only, so all its checks run, and each of its faults is caught and repaired.
    """

    def __init__(self, breaker: Breaker, switchboard: Switchboard, clock: Clock) -> None:
        """Nothing is degraded."""
        self._breaker = breaker
        self._switchboard = switchboard
        self._clock = clock
        self._orders: dict[str, _Order] = {}

    def degrade(
        self,
        operator: str,
        *,
        reason: str,
        ttl_s: float = DEGRADE_TTL_S,
        backend: str | None = None,
    ) -> None:
        """Put an order in force; given again it lasts longer.

        Args:
            operator: of `core.terms.Operator`.
            reason: orders of one reason are one order.
            backend: to serve from; None: the next one below the one that serves.

        Raises:
            ValueError: there is no such operator.
        """
        known = Operator(operator)
        if known in _BY_BACKEND:
            held = self._orders.get(reason)
            if backend is None and held is not None:
                backend = held.backend
            elif backend is None:
                serving = self._breaker.peek()
                backend = self._breaker.fallback(serving) or serving
            self._breaker.force(reason, backend)
        else:
            text = f"{reason}: all its checks run"[:500]
            order = SwitchOrder(operator=known, profile=Profile.FULL, ttl_s=ttl_s, reason=text)
            self._switchboard.switch(order, actor="auto")
        until_ns = self._clock.now_ns() + int(ttl_s * 1e9)
        self._orders[reason] = _Order(known, backend or "", until_ns)

    def lift(self, operator: str, *, reason: str) -> None:
        """Take an order back before its time is over; one that is not there is no matter."""
        order = self._orders.pop(reason, None)
        if order is None:
            return
        if order.operator in _BY_BACKEND:
            self._breaker.unforce(reason)
        else:
            self._switchboard.lift(f"operator:{operator}", f"{reason} was taken back")

    def in_force(self, reason: str) -> bool:
        """Whether an order of this reason still lasts."""
        return reason in self._orders

    def expire(self) -> None:
        """Take back what has lasted long enough; call it once a step."""
        if not self._orders:
            return
        now_ns = self._clock.now_ns()
        for reason, order in tuple(self._orders.items()):
            if now_ns >= order.until_ns:
                del self._orders[reason]
                if order.operator in _BY_BACKEND:  # the switchboard watches its own orders
                    self._breaker.unforce(reason)

    def status(self) -> list[dict[str, Any]]:
        """JSON-safe: the orders in force with the seconds left; `backend` empty for full checks."""
        now_ns = self._clock.now_ns()
        return [
            {
                "operator": str(order.operator),
                "backend": order.backend,
                "reason": reason,
                "ttl_left_s": round((order.until_ns - now_ns) / 1e9, 3),
            }
            for reason, order in tuple(self._orders.items())  # heartbeats read it meanwhile
        ]
