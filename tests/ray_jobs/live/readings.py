"""Made-up readings of a board, one second apart."""

from typing import Any

from tocsin.ray_jobs.live.reading import Reading

WALL_S = 1_795_981_000.0
NOW_NS = 5_000_000_000_000


def at(second: float, **changes: Any) -> Reading:
    """What was heard that many seconds after the beginning."""
    return Reading(wall_s=WALL_S + second, now_ns=NOW_NS + int(second * 1e9), **changes)


def t_ns(second: float) -> int:
    return NOW_NS + int(second * 1e9)


def heartbeat(**changes: Any) -> dict[str, Any]:
    return {
        "alive": True,
        "stalled": False,
        "age_s": 0.1,
        "step": 12,
        "stats": {
            "running": 2,
            "waiting": 1,
            "tokens_released": 40,
            "pages_used": 32,
            "pages_total": 64,
            "backend": "flash",
        },
        "counters": {"checks": {"rope/numerical/ok": 100, "rope/numerical/alarm": 1}},
        "breaker": {"flash": "closed", "sdpa": "closed", "math": "closed"},
        "switchboard": {"profile": "full", "revision": 0, "orders": [], "audit": []},
        "degradations": [],
        **changes,
    }


def failed(
    second: float,
    check: str = "state.kv_page_sum",
    *,
    operator: str = "kv_read",
    priority: str = "P0",
    replica: str = "a",
    cause: str = "state",
) -> dict[str, Any]:
    layer = check.partition(".")[0]
    return {
        "kind": "check_failed",
        "t_ns": t_ns(second),
        "replica": replica,
        "step": 7,
        "request_id": "",
        "data": {
            "failure_id": f"01J{int(second * 1000):023d}",
            "operator": operator,
            "layer": layer,
            "check": check,
            "priority": priority,
            "cause": cause,
            "action": "recompute",
            "request_ids": ["r1", "r2"],
            "findings": [
                {
                    "check": check,
                    "operator": operator,
                    "layer": layer,
                    "priority": priority,
                    "ratio": 12.3456,
                    "message": "page 7 changed",
                }
            ],
        },
    }


def status(state: str, *, fired: float = 0.0, healed: float = 0.0) -> dict[str, Any]:
    return {
        "state": state,
        "evidence": {"place": "page 7", "before": "0", "after": "1", "requests": []},
        "fired_ns": t_ns(fired) if fired else 0,
        "fired_step": 3 if fired else -1,
        "healed_ns": t_ns(healed) if healed else 0,
        "error": "",
    }


def told(second: float, kind: str, **data: Any) -> dict[str, Any]:
    """An event of any kind, of the replica that its data names."""
    return {
        "kind": kind,
        "t_ns": t_ns(second),
        "replica": data["replica"],
        "step": -1,
        "request_id": "",
        "data": data,
    }
