"""A made-up state in which everything that the page can show happens at once."""

from tocsin.dashboards.live.figures import FIGURES, panel_of
from tocsin.dashboards.live.state import (
    AuditRow,
    Cell,
    FailureRow,
    FaultRow,
    Figure,
    Light,
    Line,
    LiveState,
    OrderRow,
    ReplicaRow,
)

NOW_S = 1_795_981_000.0
HOSTILE = "<script>alert(1)</script>\"'& [/red] {{ 7 }}"


def cell(operator: str, layer: str, light: Light, **changes: object) -> Cell:
    values = {
        "profile": "full",
        "checks": 2,
        "per_second": 120.0,
        "evaluations": 9_000,
        "alarms_60s": 0,
        "quiet_s": None,
        **changes,
    }
    return Cell(operator, layer, light, **values)  # type: ignore[arg-type]


def failure(number: int = 0, **changes: object) -> FailureRow:
    values = {
        "failure_id": f"01J{number:023d}",
        "wall_s": NOW_S - number,
        "operator": "kv_update",
        "layer": "state",
        "check": "state.kv_page_sum",
        "priority": "P0",
        "cause": "state",
        "action": "recompute",
        "replica": "replica-abcdef123456",
        "step": 1203,
        "ratio": "1.2e+03",
        "message": f"page 7 changed under us {HOSTILE}",
        "requests": 2,
        **changes,
    }
    return FailureRow(**values)  # type: ignore[arg-type]


def busy() -> LiveState:
    """Alarms, a lost replica, an open circuit, faults in all stages, orders and an audit log."""
    return LiveState(
        wall_s=NOW_S,
        model=f"model {HOSTILE}",
        profile="full",
        version="1.2.3",
        switchable=True,
        replicas_expected=2,
        last_token_s=0.2,
        chaos=True,
        replicas=(
            ReplicaRow(
                "replica-abcdef123456", "up", 40, 2, 1, 900, 0.42, "full",
                {"flash": "open", "sdpa": "closed", "math": "closed"}, "sdpa", 0.1,
            ),
            ReplicaRow("gone", "down", 12, 0, 0, 80, 0.0, "full", {"flash": "closed"}, "", 12.0),
        ),
        cells=(
            cell("rope", "numerical", Light.OK),
            cell("rope", "memory", Light.OFF, profile="off"),
            cell("rms_norm", "numerical", Light.NOTE, quiet_s=200.0),
            cell("linear", "numerical", Light.WARN, alarms_60s=3, quiet_s=4.0),
            cell("kv_update", "state", Light.BAD, alarms_60s=7, quiet_s=1.0),
            cell("sampler", "semantic", Light.IDLE, profile="guard", per_second=0.0),
        ),
        failures=tuple(failure(number) for number in range(60)),
        failures_total=60,
        missed=5,
        faults=(
            FaultRow("kv@0", "kv.bitflip", "r", "healed", NOW_S - 60, NOW_S - 50, NOW_S - 49.9,
                     NOW_S - 40, "state.kv_page_sum", "page 7"),
            FaultRow("rope@0", "rope.table", "r", "armed", NOW_S - 5),
            FaultRow("kill@0", "actor.kill", "r", "unhealed", NOW_S - 9, NOW_S - 8),
        ),
        orders=(OrderRow("layer:numerical", "guard", f"load test {HOSTILE}", 299.2, 2),),
        degradations=(OrderRow("attention", "sdpa", "p0:attention", 540.0, 1),),
        audit=(AuditRow(NOW_S - 3, "layer:numerical", "full", "guard", "load test", "api", 2),),
        figures=tuple(
            Figure(
                figure,
                (Line("first", 0.04, ((NOW_S - 1, 0.03), (NOW_S, 0.04))), Line("second", None)),
            )
            for figure in FIGURES
        ),
    )  # fmt: skip


def quiet(**changes: object) -> LiveState:
    """Nothing has happened yet."""
    values = {
        "wall_s": NOW_S,
        "model": "tiny",
        "profile": "full",
        "version": "1.2.3",
        "switchable": False,
        "replicas_expected": 1,
        **changes,
    }
    return LiveState(**values)  # type: ignore[arg-type]


TITLES = tuple(panel_of(figure).title for figure in FIGURES)
