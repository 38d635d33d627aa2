"""Small experiments for the tests, as documents that a test may change."""

import copy
from typing import Any

_SMALL: dict[str, Any] = {
    "apiVersion": "chaos/v1",
    "kind": "Experiment",
    "name": "small",
    "seed": 5,
    "system": {"replicas": 2},
    "workload": {
        "arrival": "closed",
        "concurrency": 4,
        "requests": 40,
        "abort_ratio": 0.1,
        "max_new_tokens": 8,
        "deadline": "5s",
    },
    "steady_state": {"warmup": 3, "window": "50ms", "good_windows": 2},
    "faults": [
        {
            "id": "weights",
            "kind": "weight.bitflip",
            "when": {"clock": "decode_step", "at": [10]},
            "expect": {"within": "500ms", "recover_within": "2s"},
        },
        {
            "id": "bad",
            "kind": "batch.malformed",
            "when": {"clock": "request", "at": [4]},
        },
    ],
    # The small runs serve nothing degraded, so that property would be vacuous.
    "checks": [
        {"id": name}
        for name in (
            "golden.tokens",
            "stream.prefix",
            "lifecycle.exactly_one_terminal",
            "lifecycle.no_lost",
            "exec.no_duplicate_effect",
            "isolation.canary",
            "kv.conservation",
            "detection.matrix",
            "recovery.bound",
            "service.availability",
        )
    ],
    "safety": {
        "scope": "isolated",
        "max_targets": 1.0,
        "max_duration": "20s",
        "ttl": "2s",
    },
}


def small(**changes: Any) -> dict[str, Any]:
    """The small experiment with some top-level sections changed: mappings are merged."""
    document = copy.deepcopy(_SMALL)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(document.get(key), dict):
            document[key] = {**document[key], **value}
        else:
            document[key] = value
    return document


def patient(**changes: Any) -> dict[str, Any]:
    """The small experiment with so much time that its verdict is the same on a busy machine."""
    document = small(
        workload={"deadline": "60s"},
        safety={"max_duration": "120s", "ttl": "30s"},
        faults=[
            {**fault, "expect": {"within": "30s", "recover_within": "60s"}}
            for fault in _SMALL["faults"]
        ],
        checks=[one for one in _SMALL["checks"] if one["id"] != "recovery.bound"],
    )
    for key, value in changes.items():
        mapped = isinstance(value, dict) and isinstance(document.get(key), dict)
        document[key] = {**document[key], **value} if mapped else value
    return document
