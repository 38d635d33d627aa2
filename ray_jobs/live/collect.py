"""From readings to the `LiveState`: what must be remembered between two of them."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from tocsin.core.metrics import CHAOS_RUNNING
from tocsin.dashboards.live.figures import Recorder
from tocsin.dashboards.live.state import LiveState, ReplicaRow
from tocsin.ray_jobs.live import grid
from tocsin.ray_jobs.live.incidents import Failures, Faults
from tocsin.ray_jobs.live.reading import Reading

_RATE_S = 10.0
_AUDIT_MAX = 60
_DEAD_SHOWN_S = 300.0


class Collector:
    """Takes readings in order and says after each one what the page shows.

    Args:
        model, version: what is served.
        profile: what is checked where no replica says it.
        replicas: how many there should be, where no reading says it.
        switchable: a token is set.
    """

    def __init__(
        self, *, model: str, profile: str, version: str, replicas: int, switchable: bool
    ) -> None:
        """Nothing was read yet."""
        self._model = model
        self._profile = profile
        self._version = version
        self._expected = replicas
        self._switchable = switchable
        self._recorder = Recorder()
        self._failures = Failures()
        self._faults = Faults()
        self._missed = 0
        self._checks: deque[tuple[float, Mapping[tuple[str, str], int]]] = deque()

    @property
    def wanted(self) -> frozenset[str]:
        """Names of the metrics that a reading must bring."""
        return self._recorder.metrics | {CHAOS_RUNNING.name}

    def take(self, reading: Reading) -> LiveState:
        """One reading."""
        self._failures.take(reading)
        self._faults.take(reading)
        self._missed += reading.missed
        self._recorder.take(reading.wall_s, reading.samples)
        fleet = reading.fleet
        profile = grid.fleet_profile(grid.living(fleet), self._profile)
        findings = tuple(self._failures.findings)
        drill = any(one.metric is CHAOS_RUNNING and one.value for one in reading.samples)
        return LiveState(
            wall_s=reading.wall_s,
            model=self._model,
            profile=profile,
            version=self._version,
            switchable=self._switchable,
            replicas_expected=reading.expected or self._expected,
            last_token_s=reading.last_token_s,
            chaos=drill or self._faults.running,
            replicas=_replicas(fleet),
            cells=grid.cells(fleet, profile, self._rates(reading), findings, reading.wall_s),
            failures=tuple(self._failures.rows),
            failures_total=self._failures.total,
            missed=self._missed,
            faults=self._faults.rows,
            orders=grid.orders(fleet),
            degradations=grid.degradations(fleet, reading.degradations),
            audit=grid.audit(fleet, reading.degradations)[:_AUDIT_MAX],
            figures=self._recorder.figures(reading.wall_s),
        )

    def _rates(self, reading: Reading) -> dict[tuple[str, str], float]:
        """Evaluations a second over the last moments."""
        total = grid.evaluations(reading.fleet)
        self._checks.append((reading.wall_s, total))
        while len(self._checks) > 2 and self._checks[1][0] <= reading.wall_s - _RATE_S:
            self._checks.popleft()
        first_s, first = self._checks[0]
        took_s = reading.wall_s - first_s
        if took_s <= 0:
            return {}
        return {key: max(count - first.get(key, 0), 0) / took_s for key, count in total.items()}


def _replicas(fleet: Mapping[str, Mapping[str, Any]]) -> tuple[ReplicaRow, ...]:
    """All that live, and those that were lost lately."""
    rows = []
    for name, heard in fleet.items():
        if not heard["alive"] and heard["age_s"] > _DEAD_SHOWN_S:
            continue
        stats = heard.get("stats", {})
        status = "stalled" if heard["stalled"] else "up"
        rows.append(
            ReplicaRow(
                replica=name,
                status=status if heard["alive"] else "down",
                step=int(heard.get("step", 0)),
                running=stats.get("running", 0),
                waiting=stats.get("waiting", 0),
                tokens=stats.get("tokens_released", 0),
                kv_used=stats.get("pages_used", 0) / max(stats.get("pages_total", 0), 1),
                profile=str((heard.get("switchboard") or {}).get("profile", "")),
                breakers=dict(heard.get("breaker", {})),
                serving=str(stats.get("backend", "")),
                heard_s=heard["age_s"],
            )
        )
    return tuple(rows)
