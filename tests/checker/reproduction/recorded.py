"""Failures recorded on disk as a node does it, for those who reproduce them."""

import json
from pathlib import Path
from typing import Any

import torch

from tests.checker.calls import generator
from tests.checker.changes import fresh
from tests.checker.faulty import FAULTS
from tests.checker.valid import VALID
from tocsin.checker.contract import registry
from tocsin.checker.journal import plain_json
from tocsin.checker.shrink import read
from tocsin.checker.snapshot import save_call
from tocsin.core.calls import Call
from tocsin.core.ids import new_ulid

WALL_MS = 1_796_000_000_000


def record(node: Path, call: Call, of: str, /, *, number: int = 0, **about: Any) -> str:
    """Record a failure as a journal does; returns its id."""
    failure_id = new_ulid(WALL_MS + number, number.to_bytes(10, "big"))
    unit = registry()[of]
    document = {
        "failure_id": failure_id,
        "check": of,
        "ratio": read(unit, call).ratio,
        "thresholds": dict(unit.thresholds),
        "full": True,
        **about,
    }
    snapshots = node / "journal" / "snapshots"
    snapshots.mkdir(parents=True, exist_ok=True)
    save_call(call, snapshots / failure_id, plain_json(document))
    line = {
        "ts": "2026-11-29T19:02:33.123+00:00",
        "failure_id": failure_id,
        "replica": "replica-1",
        "model": "SmolLM2-135M-Instruct",
        "step": 812,
        "request_ids": ["r00021"],
        "business_impact": "a token is wrong",
        "cause": "transient",
    }
    with (node / "journal" / "failures-replica-1.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    return failure_id


def failing(check: str, dtype: torch.dtype = torch.float32) -> Call:
    """The first faulty call of a check."""
    (place, fault) = next(iter(FAULTS[check].values()))
    call = fresh(VALID[place[0]][place[1]](generator(), dtype))
    fault(call)
    return call
