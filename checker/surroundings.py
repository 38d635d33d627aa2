"""What a gate cannot know by itself and a record should say: requests, traces, chaos, build."""

import importlib.metadata
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from tocsin.core.protocols import StepAttempt
from tocsin.core.requests import Request

CHAOS_RUN = "TOCSIN_CHAOS_RUN"
"""Environment variable that holds the id of the chaos run which started this process."""


def _none(request_id: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Told to the gate by whoever wires it; every part has a silent default.

    Attributes:
        engine: shape of the engine, JSON-safe: slots, bucket, dtype, …
        request_of: the running request of an id, None when it is unknown.
        trace_of: its W3C traceparent, empty when it has none.
        chaos: fault orders in force now, JSON-safe.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    request_of: Callable[[str], Request | None] = _none
    trace_of: Callable[[str], str] = lambda request_id: ""
    chaos: Callable[[], Sequence[Mapping[str, Any]]] = tuple

    def trace(self, request_id: str) -> tuple[str, str]:
        """Trace id and span id of a request; empty ones when it has none."""
        parts = self.trace_of(request_id).split("-") if request_id else []
        return (parts[1], parts[2]) if len(parts) == 4 else ("", "")

    def seed(self, request_id: str) -> int | None:
        """The seed of a request's draws, None when it is unknown."""
        request = self.request_of(request_id) if request_id else None
        return request.sampling.seed if request is not None else None

    def environment(self) -> dict[str, Any]:
        """Where the failure happened: engine shape, threads, build."""
        return {**self.engine, "threads": torch.get_num_threads(), "build": build()}

    def request_document(self, attempt: StepAttempt, *, prompts: bool) -> dict[str, Any]:
        """What a replay of the step needs; ids of prompts only where they may be stored."""
        found = {one: self.request_of(one) for one in attempt.request_ids if one}
        known = {name: one for name, one in found.items() if one is not None}
        document = {
            "step": attempt.step,
            "kind": attempt.kind,
            "backend": attempt.backend,
            "request_ids": list(attempt.request_ids),
            "sampling": {name: asdict(one.sampling) for name, one in known.items()},
            "seeds": {name: one.sampling.seed for name, one in known.items()},
            "prompt_tokens": {name: len(one.prompt_ids) for name, one in known.items()},
            "max_new_tokens": {name: one.max_new_tokens for name, one in known.items()},
            "engine": self.environment(),
            "chaos_run": chaos_run(),
            "chaos": [dict(one) for one in self.chaos()],
        }
        if prompts:
            document["prompt_ids"] = {name: list(one.prompt_ids) for name, one in known.items()}
            document["delivered"] = {name: list(one.delivered) for name, one in known.items()}
        return document


def chaos_run() -> str:
    """Id of the chaos run that this process belongs to, empty outside one."""
    return os.environ.get(CHAOS_RUN, "")


def build() -> str:
    """Versions that decide what is computed: `tocsin 0.1.0, torch 2.13.0, python 3.11.2`."""
    global _build
    if not _build:
        try:
            own = importlib.metadata.version("tocsin")
        except importlib.metadata.PackageNotFoundError:
            own = "unpacked"
        _build = f"tocsin {own}, torch {torch.__version__}, python {platform.python_version()}"
    return _build


_build = ""
