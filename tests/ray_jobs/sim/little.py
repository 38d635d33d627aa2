"""Little experiments: three prompts, a handful of requests, a tail of tenths of a second."""

import json
from pathlib import Path
from typing import Any

from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import parse_experiment

PROMPTS = (
    ("river", "Name a river.", "alder"),
    ("count", "Count to three.", "birch"),
    ("dark", "Why is it dark?", "cedar"),
)
MALFORMED = ("out_of_range", "negative", "empty", "too_long", "wrong_dtype", "ragged")


def prompt_file(folder: Path) -> Path:
    """The three prompts as a prompt set."""
    path = folder / "prompts.json"
    path.write_text(json.dumps([{"id": i, "text": t, "canary": c} for i, t, c in PROMPTS]))
    return path


def experiment(prompts: Path, *faults: dict[str, Any], **system: Any) -> Experiment:
    """Two replicas, six requests of four tokens, and these faults."""
    document = {
        "apiVersion": "chaos/v1",
        "kind": "Experiment",
        "name": "little",
        "seed": 5,
        "system": {"model": "tiny", "slots": 4, "pages": 64, "max_length": 128, **system},
        "workload": {
            "prompts": str(prompts),
            "concurrency": 3,
            "requests": 6,
            "max_new_tokens": 4,
            "abort_ratio": 0.0,
        },
        "steady_state": {"warmup": 2, "window": "100ms", "good_windows": 1},
        "faults": list(faults),
        "safety": {
            "scope": "isolated",
            "max_concurrent_faults": 3,
            "max_targets": 1.0,
            "keep_alive": 1,
            "ttl": "30s",
        },
    }
    return parse_experiment(document)


def malformed(n: int, kind: str, *at: int) -> dict[str, Any]:
    """A malformed request of a kind, at some counts of requests."""
    when = {"clock": "request", "at": list(at)}
    return {"id": f"bad-{n}", "kind": "batch.malformed", "params": {"kind": kind}, "when": when}


def on_requests(name: str, kind: str, *at: int, **params: Any) -> dict[str, Any]:
    """A fault that is due at some counts of requests."""
    when = {"clock": "request", "at": list(at)}
    return {"id": name, "kind": kind, "params": params, "when": when}
