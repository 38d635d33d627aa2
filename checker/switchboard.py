"""The switchboard: which profile runs where, changed at run time, back by itself after its TTL."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tocsin.core.clock import Clock, SystemClock
from tocsin.core.history import Event, EventKind
from tocsin.core.protocols import Sink
from tocsin.core.terms import Layer, Operator, Profile

AUDIT_MAX = 256

Turn = tuple[Operator, Layer]
"""An operator in one layer."""


class Level(StrEnum):
    """How an operator is checked when nobody has given an order for it.

    Proposed by `tocsin scan --plan` from how often the checks of the operator alarm.
    """

    ALL = "all"
    """Every check of all four layers, whatever the profile is (unless that is off)."""
    GUARD = "guard"
    """The guard profile's checks, even where the profile is full."""
    NUMERICAL = "numerical"
    """The profile's checks of the numerical layer alone."""


class SwitchOrder(BaseModel):
    """What a person may ask for; neither layer nor operator means everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layer: Layer | None = None
    operator: Operator | None = None
    profile: Profile
    ttl_s: float = Field(gt=0, le=86_400)
    reason: str = Field(min_length=1, max_length=500)

    @model_validator(mode="after")
    def _one_scope(self) -> "SwitchOrder":
        if self.layer is not None and self.operator is not None:
            raise ValueError(
                f"switch: layer {self.layer} and operator {self.operator} were both given, "
                "expected at most one of them; send two orders"
            )
        return self

    @property
    def scope(self) -> str:
        """`everything`, `layer:…` or `operator:…`."""
        if self.operator is not None:
            return f"operator:{self.operator}"
        return f"layer:{self.layer}" if self.layer is not None else "everything"


@dataclass(frozen=True, slots=True)
class _Entry:
    order: SwitchOrder
    until_ns: int


class Switchboard:
    """A profile for everything, overridden by layer, overridden by operator.

    Attributes:
        profile: what runs when no order is in force.
        revision: grows with every change; a runtime compares it once a step.
        changes: how many of them, by who made them (`core.metrics.ACTORS`).
    """

    def __init__(
        self,
        profile: Profile | str = Profile.FULL,
        *,
        clock: Clock | None = None,
        sink: Sink | None = None,
        replica: str = "",
    ) -> None:
        """Nothing is overridden yet."""
        self.profile = Profile(profile)
        self.revision = 0
        self.changes: Counter[str] = Counter()
        self._clock: Clock = clock or SystemClock()
        self._sink = sink
        self._replica = replica
        self._entries: dict[str, _Entry] = {}
        self._audit: deque[dict[str, Any]] = deque(maxlen=AUDIT_MAX)
        self._levels: dict[Operator, Level] = {}
        self._sampled = False
        self._turn: Turn | None = None

    def switch(self, order: SwitchOrder, actor: str = "api") -> None:
        """Put an order in force; a later one for the same scope replaces it.

        Args:
            actor: a person through the API, or "auto" after too many failures.
        """
        self.changes[actor] += 1
        until_ns = self._clock.now_ns() + int(order.ttl_s * 1e9)
        before = self._profile_of_scope(order.scope)
        self._entries = {**self._entries, order.scope: _Entry(order, until_ns)}
        self._record(order.scope, before, order.profile, order.reason, order.ttl_s)

    def lift(self, scope: str, reason: str, actor: str = "auto") -> None:
        """Take an order back before its time is over; where there is none nothing changes."""
        entry = self._entries.get(scope)
        if entry is None:
            return
        self.changes[actor] += 1
        self._entries = {s: e for s, e in self._entries.items() if s != scope}
        after = self._profile_of_scope(scope)
        self._record(scope, entry.order.profile, after, reason, None)

    def set_profile(self, profile: Profile | str, reason: str) -> None:
        """Change what runs when no order is in force; this does not time out."""
        self.changes["config"] += 1
        before, self.profile = self.profile, Profile(profile)
        self._record("everything", before, self.profile, reason, None)

    def set_levels(self, levels: Mapping[Operator, Level], reason: str) -> None:
        """How single operators are checked; all others as the profile says. Does not time out."""
        if dict(levels) == self._levels:
            return
        self.changes["config"] += 1
        before, self._levels = self._levels, dict(levels)
        for operator in sorted(before.keys() | self._levels.keys()):
            old, new = (str(one.get(operator, self.profile)) for one in (before, self._levels))
            if old != new:
                self._record(f"operator:{operator}", old, new, reason, None)

    def attend(self, sampled: bool, turn: Turn | None) -> None:
        """What the next step is checked with beyond the guard profile; nobody is told.

        Args:
            sampled: everything, since a request of the sample is in it.
            turn: the operator and layer whose expensive checks run now.
        """
        if self.profile is Profile.OFF or (self.profile is Profile.FULL and not self._levels):
            sampled, turn = False, None  # they would change nothing, and a change costs something
        if (sampled, turn) != (self._sampled, self._turn):
            self._sampled, self._turn = sampled, turn
            self.revision += 1

    def expire(self) -> None:
        """Take back the orders whose time is over; call it once a step."""
        if not self._entries:
            return
        now_ns = self._clock.now_ns()
        for scope, entry in tuple(self._entries.items()):
            if now_ns >= entry.until_ns:
                self.changes["auto"] += 1
                self._entries = {s: e for s, e in self._entries.items() if s != scope}
                after = self._profile_of_scope(scope)
                self._record(scope, entry.order.profile, after, "the TTL ended", None)

    def profile_for(self, operator: Operator, layer: Layer) -> Profile:
        """The profile in force for one operator in one layer.

        An order comes first, then the sample, then the operator's level, then its turn.
        """
        if self._entries:
            for scope in (f"operator:{operator}", f"layer:{layer}", "everything"):
                entry = self._entries.get(scope)
                if entry is not None:
                    return entry.order.profile
        if self.profile is Profile.OFF:
            return Profile.OFF
        if self._sampled:
            return Profile.FULL
        level = self._levels.get(operator)
        if level is Level.ALL:
            return Profile.FULL
        if level is Level.NUMERICAL and layer is not Layer.NUMERICAL:
            return Profile.OFF
        if self._turn == (operator, layer):
            return Profile.FULL
        return Profile.GUARD if level is Level.GUARD else self.profile

    def status(self) -> dict[str, Any]:
        """JSON-safe: the profile, the orders in force with the seconds left, the audit log."""
        self.expire()
        now_ns = self._clock.now_ns()
        return {
            "profile": str(self.profile),
            "revision": self.revision,
            "orders": [
                {
                    "scope": scope,
                    "profile": str(entry.order.profile),
                    "reason": entry.order.reason,
                    "ttl_left_s": round((entry.until_ns - now_ns) / 1e9, 3),
                }
                for scope, entry in self._entries.items()
            ],
            "levels": {str(operator): str(level) for operator, level in self._levels.items()},
            "sampled": self._sampled,
            "turn": "" if self._turn is None else "/".join(self._turn),
            "audit": list(self._audit),
        }

    def _profile_of_scope(self, scope: str) -> Profile:
        entry = self._entries.get(scope) or self._entries.get("everything")
        return entry.order.profile if entry is not None else self.profile

    def _record(
        self, scope: str, before: str, after: str, reason: str, ttl_s: float | None
    ) -> None:
        self.revision += 1
        data: dict[str, Any] = {
            "scope": scope,
            "before": str(before),
            "after": str(after),
            "reason": reason,
            "ttl_s": ttl_s,
            "revision": self.revision,
        }
        self._audit.append({"wall_s": self._clock.wall_s(), **data})
        if self._sink is not None:
            self._sink.emit(
                Event(EventKind.SWITCHED, self._clock.now_ns(), self._replica, data=data)
            )
