"""What the live page and `tocsin top` show: plain typed data, JSON-safe through `asdict`.

Times are Unix seconds of the gateway's machine; ages and rests are seconds.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter

Points = tuple[tuple[float, float], ...]
"""Unix time and value, oldest first."""


class Light(StrEnum):
    """What a cell of the grid says; the gravest comes last."""

    ABSENT = "absent"  # no check of this layer looks at this operator
    IDLE = "idle"  # checks are on, none ran lately
    OFF = "off"  # switched off on at least one replica
    OK = "ok"  # checks ran and are silent
    NOTE = "note"  # alarmed within the ring, silent since
    WARN = "warn"  # a P1 or P2 alarm within the last minute
    BAD = "bad"  # a P0 alarm, or one that could not be repaired, within the last minute


@dataclass(frozen=True, slots=True)
class Cell:
    """One operator in one layer.

    Attributes:
        profile: the least that any replica runs here.
        checks: how many are declared.
        alarms_60s: findings of the last minute.
        quiet_s: seconds since the last finding, None when the ring holds none.
    """

    operator: str
    layer: str
    light: Light
    profile: str
    checks: int
    per_second: float
    evaluations: int
    alarms_60s: int
    quiet_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica: whether it serves, from which backend, and how full it is.

    Attributes:
        status: `up`, `stalled` or `down`.
        breakers: state by backend, in the order of the chain.
        serving: the backend that serves now, empty when that is not known.
        kv_used: share of the KV pages in use, 0 to 1.
    """

    replica: str
    status: str
    step: int
    running: int
    waiting: int
    tokens: int
    kv_used: float
    profile: str
    breakers: Mapping[str, str]
    serving: str
    heard_s: float


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One recorded failure."""

    failure_id: str
    wall_s: float
    operator: str
    layer: str
    check: str
    priority: str
    cause: str
    action: str
    replica: str
    step: int
    ratio: str
    message: str
    requests: int
    drill: bool = False

    @property
    def command(self) -> str:
        """What reproduces it."""
        return f"tocsin reproduce {self.failure_id}"


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One occurrence of an injected fault; times are None while it has not happened."""

    occurrence: str
    fault: str
    replica: str
    state: str
    injected_s: float
    fired_s: float | None = None
    detected_s: float | None = None
    healed_s: float | None = None
    detector: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class OrderRow:
    """An order of the switchboard, or a degradation, that is in force.

    Attributes:
        replicas: on how many replicas.
    """

    scope: str
    wanted: str
    reason: str
    left_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One change of what is checked or of what serves."""

    wall_s: float
    scope: str
    before: str
    after: str
    reason: str
    actor: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a figure; `last` is None when it has no present value."""

    name: str
    last: float | None
    points: Points = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """What a panel's queries gave; `id` is `<dashboard>.<panel>`."""

    id: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class LiveState:
    """One reading of everything.

    Attributes:
        last_token_s: age of the last token that left the gateway, None before the first.
        switchable: a token is set, so the switchboard can be used.
        failures: newest first; `failures_total` counts those that fell out of the list too.
        missed: events that came faster than they were read.
    """

    wall_s: float
    model: str
    profile: str
    version: str
    switchable: bool
    replicas_expected: int
    last_token_s: float | None = None
    chaos: bool = False
    replicas: tuple[ReplicaRow, ...] = ()
    cells: tuple[Cell, ...] = ()
    failures: tuple[FailureRow, ...] = ()
    failures_total: int = 0
    missed: int = 0
    faults: tuple[FaultRow, ...] = ()
    orders: tuple[OrderRow, ...] = ()
    degradations: tuple[OrderRow, ...] = ()
    audit: tuple[AuditRow, ...] = ()
    figures: tuple[Figure, ...] = ()

    @property
    def up(self) -> int:
        """Replicas that serve."""
        return sum(row.status == "up" for row in self.replicas)

    def to_json(self, points: int | None = None) -> dict[str, Any]:
        """The state as JSON-safe data.

        Args:
            points: at most so many a line, spread over all of its time; None: all.
        """
        plain = asdict(replace(self, figures=()))
        # By hand: `asdict` copies every number of fifteen minutes one by one.
        plain["figures"] = [
            {
                "id": figure.id,
                "lines": [
                    {"name": line.name, "last": line.last, "points": thinned(line.points, points)}
                    for line in figure.lines
                ],
            }
            for figure in self.figures
        ]
        return plain


def thinned(points: Points, most: int | None) -> Points:
    """Every so manieth point, the latest always among them."""
    if most is None or len(points) <= most:
        return points
    if most == 0:
        return ()
    every = -(-len(points) // most)
    return points[(len(points) - 1) % every :: every]


_ADAPTER = TypeAdapter(LiveState)


def from_json(data: Any) -> LiveState:
    """The state that `to_json` wrote.

    Raises:
        pydantic.ValidationError: it is something else.
    """
    return _ADAPTER.validate_python(data)
