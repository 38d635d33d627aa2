"""Degrade orders between the board, which keeps them, and the replicas, which follow them."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tocsin.core.degrade import DegradeOrder

AUDIT_MAX = 256


class Degradations:
    """What the board keeps: the orders in force, by operator and reason, and who gave which.

    Args:
        wall_s: seconds since the epoch, for the audit log.
        now_s: by which orders end; None: the same. A clock that is set may end none.
    """

    def __init__(
        self, wall_s: Callable[[], float], now_s: Callable[[], float] | None = None
    ) -> None:
        """No order yet."""
        self._wall_s, self._now_s = wall_s, now_s or wall_s
        self._serial = 0
        self._orders: dict[tuple[str, str], dict[str, Any]] = {}
        self._audit: deque[dict[str, Any]] = deque(maxlen=AUDIT_MAX)

    def put(self, data: dict[str, Any], actor: str) -> dict[str, Any]:
        """Put an order in force, or take one back (`ttl_s` 0); returns its entry of the audit log.

        Args:
            actor: who gave it: one of `core.metrics.ACTORS`.
        """
        order = DegradeOrder.model_validate(data)
        self._serial += 1
        entry = {
            "serial": self._serial,
            "wall_s": self._wall_s(),
            "actor": actor,
            **order.model_dump(mode="json"),
        }
        key = (str(order.operator), order.reason)
        if order.takes_back:
            self._orders.pop(key, None)
        else:
            self._orders[key] = {
                "serial": self._serial,
                "order": order.model_dump(mode="json"),
                "until_s": self._now_s() + order.ttl_s,
            }
        self._audit.append(entry)
        return entry

    def in_force(self) -> list[dict[str, Any]]:
        """Serial, order and seconds left, of those whose time is not over."""
        now_s = self._now_s()
        self._orders = {key: one for key, one in self._orders.items() if one["until_s"] > now_s}
        return [
            {"serial": one["serial"], "order": one["order"], "left_s": one["until_s"] - now_s}
            for one in self._orders.values()
        ]

    def audit(self) -> list[dict[str, Any]]:
        """The last orders given and taken back, oldest first."""
        return list(self._audit)


class Degrades(Protocol):
    """`checker.degradation.Degrader`, as far as a follower needs it."""

    def degrade(self, operator: str, *, reason: str, ttl_s: float, backend: str | None) -> None:
        """Put an order in force; given again it lasts longer."""
        ...

    def lift(self, operator: str, *, reason: str) -> None:
        """Take an order back."""
        ...


class Follower:
    """A replica's side: does what is new, takes back what is no longer wanted."""

    def __init__(self) -> None:
        """Nothing was wanted yet."""
        self._followed: dict[int, tuple[str, str]] = {}

    def follow(self, wanted: Sequence[dict[str, Any]], degrader: Degrades) -> None:
        """Make the replica's orders those of the board; its own time ends them without it.

        Args:
            wanted: `Degradations.in_force` of the board.
        """
        serials = {one["serial"] for one in wanted}
        names = {name_of(one["order"]) for one in wanted}
        for serial, (operator, name) in list(self._followed.items()):
            if serial not in serials:
                del self._followed[serial]
                if name not in names:  # not merely given again
                    degrader.lift(operator, reason=name)
        for one in wanted:
            if one["serial"] in self._followed:
                continue
            order = one["order"]
            self._followed[one["serial"]] = (order["operator"], name_of(order))
            degrader.degrade(
                order["operator"],
                reason=name_of(order),
                ttl_s=max(one["left_s"], 0.001),
                backend=order["backend"],
            )


def name_of(order: dict[str, Any]) -> str:
    """The reason with its operator in it: within a replica one reason is one order."""
    operator, reason = str(order["operator"]), str(order["reason"])
    return reason if reason.endswith(f":{operator}") else f"{reason}:{operator}"
