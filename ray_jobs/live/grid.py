"""The grid of operators and layers, and the switchboard's orders, from the replicas' heartbeats."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tocsin.checker.contract import registry
from tocsin.core.terms import Cause, Layer, Operator
from tocsin.dashboards.live.lights import ALARM_S, least, light
from tocsin.dashboards.live.state import AuditRow, Cell, FailureRow, OrderRow
from tocsin.ray_jobs.degradations import name_of

Fleet = Mapping[str, Mapping[str, Any]]
_TOGETHER_S = 2.0
"""One order reaches all replicas within this time: their entries are one row."""


@cache
def declared() -> Counter[tuple[str, str]]:
    """How many checks look at an operator in a layer."""
    found: Counter[tuple[str, str]] = Counter()
    for check in registry().values():
        layer = check.id.partition(".")[0]
        found.update((str(operator), layer) for operator in check.operators)
    return found


def living(fleet: Fleet) -> list[Mapping[str, Any]]:
    """Heartbeats of the replicas that live."""
    return [heard for heard in fleet.values() if heard["alive"]]


def evaluations(fleet: Fleet) -> Counter[tuple[str, str]]:
    """Checks evaluated by operator and layer, by the dead replicas too."""
    total: Counter[tuple[str, str]] = Counter()
    for heard in fleet.values():
        for key, count in heard.get("counters", {}).get("checks", {}).items():
            operator, layer, _ = key.split("/")
            total[operator, layer] += count
    return total


def cells(
    fleet: Fleet,
    profile: str,
    per_second: Mapping[tuple[str, str], float],
    findings: Iterable[FailureRow],
    wall_s: float,
) -> tuple[Cell, ...]:
    """Every operator and layer for which there is a check.

    Args:
        profile: what runs where no order is in force.
        findings: one row a finding, of all failures that are remembered.
    """
    by_cell: dict[tuple[str, str], list[FailureRow]] = defaultdict(list)
    for row in findings:
        by_cell[row.operator, row.layer].append(row)
    total = evaluations(fleet)
    boards = [heard.get("switchboard") or {} for heard in living(fleet)]
    made = []
    for operator in map(str, Operator):
        for layer in map(str, Layer):
            checks = declared()[operator, layer]
            if not checks:
                continue
            held = least([profile_at(board, operator, layer) for board in boards], profile)
            rows = by_cell[operator, layer]
            recent = [row for row in rows if wall_s - row.wall_s <= ALARM_S]
            rate = per_second.get((operator, layer), 0.0)
            made.append(
                Cell(
                    operator=operator,
                    layer=layer,
                    light=light(
                        checks=checks,
                        profile=held,
                        per_second=rate,
                        recent=[row.priority for row in recent],
                        unrepaired=any(row.cause == Cause.UNRESOLVED for row in recent),
                        noted=bool(rows),
                    ),
                    profile=held,
                    checks=checks,
                    per_second=rate,
                    evaluations=total[operator, layer],
                    alarms_60s=len(recent),
                    quiet_s=max(wall_s - max(row.wall_s for row in rows), 0.0) if rows else None,
                )
            )
    return tuple(made)


def profile_at(board: Mapping[str, Any], operator: str, layer: str) -> str:
    """The profile in force on one replica, as its switchboard tells it."""
    orders = {order["scope"]: order["profile"] for order in board.get("orders", ())}
    for scope in (f"operator:{operator}", f"layer:{layer}", "everything"):
        if scope in orders:
            return str(orders[scope])
    return str(board.get("profile", ""))


def fleet_profile(living: Iterable[Mapping[str, Any]], profile: str) -> str:
    """What runs where no order is in force: the least of the replicas, while a config spreads.

    Args:
        profile: what holds where no replica says it.
    """
    boards = [heard.get("switchboard") or {} for heard in living]
    return least([str(board["profile"]) for board in boards if "profile" in board], profile)


def orders(fleet: Fleet) -> tuple[OrderRow, ...]:
    """Orders in force, one row for those that the replicas share."""
    held: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for heard in living(fleet):
        for order in (heard.get("switchboard") or {}).get("orders", ()):
            left_s = max(order["ttl_left_s"] - heard.get("age_s", 0.0), 0.0)
            held[order["scope"], order["profile"], order["reason"]].append(left_s)
    return tuple(
        OrderRow(scope, wanted, reason, max(left), len(left))
        for (scope, wanted, reason), left in sorted(held.items())
    )


def degradations(fleet: Fleet, board: Mapping[str, Any]) -> tuple[OrderRow, ...]:
    """What serves instead of what should: the board's orders and the replicas' own."""
    held: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for heard in living(fleet):
        for one in heard.get("degradations") or ():
            key = (one["operator"], one.get("backend") or "", one["reason"])
            held[key].append(one["ttl_left_s"])
    rows = [
        OrderRow(operator, backend or "full", reason, max(left), len(left))
        for (operator, backend, reason), left in sorted(held.items())
    ]
    known = {(row.scope, row.reason) for row in rows}
    for one in board.get("orders", ()):
        order = one["order"]
        if (order["operator"], name_of(order)) not in known:
            row = OrderRow(order["operator"], order["backend"] or "", order["reason"], 0.0, 0)
            rows.append(replace(row, left_s=float(one["left_s"])))
    return tuple(rows)


def audit(fleet: Fleet, board: Mapping[str, Any]) -> tuple[AuditRow, ...]:
    """All changes that the living replicas and the board remember, newest first.

    What several replicas did within `_TOGETHER_S` is one row.
    """
    entries = sorted(
        (
            (entry["wall_s"], entry)
            for heard in living(fleet)
            for entry in (heard.get("switchboard") or {}).get("audit", ())
        ),
        key=lambda pair: pair[0],
    )
    rows: list[AuditRow] = []
    latest: dict[tuple[str, str, str, str], int] = {}
    for wall_s, entry in entries:
        key = (entry["scope"], entry["before"], entry["after"], entry["reason"])
        place = latest.get(key)
        if place is not None and wall_s - rows[place].wall_s <= _TOGETHER_S:
            row = rows[place]
            rows[place] = replace(row, replicas=row.replicas + 1)
            continue
        latest[key] = len(rows)
        rows.append(AuditRow(wall_s, *key, actor=str(entry.get("actor") or ""), replicas=1))
    rows += [
        AuditRow(
            wall_s=one["wall_s"],
            scope=f"degrade {one['operator']}",
            before="",
            after=(one["backend"] or "fallback") if one["ttl_s"] else "taken back",
            reason=str(one["reason"]),
            actor=str(one["actor"]),
            replicas=0,
        )
        for one in board.get("audit", ())
    ]
    return tuple(sorted(rows, key=lambda row: -row.wall_s))


def table(made: Iterable[Cell]) -> dict[str, dict[str, dict[str, Any]]]:
    """The cells as `GET /health/checker_status` shows them: by operator, then by layer."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for cell in made:
        found.setdefault(cell.operator, {})[cell.layer] = {
            "profile": cell.profile,
            "checks": cell.checks,
            "evaluations": cell.evaluations,
            "alarms_60s": cell.alarms_60s,
            "light": str(cell.light),
        }
    return found
