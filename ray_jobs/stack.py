"""One checked engine in one process: model, engine, guard, gate, breaker and armoury, wired."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tocsin.chaos.lease import Armoury
from tocsin.checker.breaker import Breaker
from tocsin.checker.gate import GuardGate
from tocsin.checker.guard import attach
from tocsin.checker.journal import Journal
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.switchboard import Switchboard
from tocsin.checker.weights import WeightStore
from tocsin.core.clock import Clock, SystemClock
from tocsin.core.faulting import OrderStatus
from tocsin.core.protocols import Sink
from tocsin.engine.engine import NoSink, ReferenceEngine
from tocsin.engine.weights import load
from tocsin.ray_jobs.options import DTYPES, ServeOptions


@dataclass(frozen=True, slots=True)
class Stack:
    """The parts of one replica; made by `build`."""

    engine: ReferenceEngine
    gate: GuardGate
    breaker: Breaker
    switchboard: Switchboard
    armoury: Armoury
    tokenizer: Any


def build(
    options: ServeOptions,
    *,
    replica: str = "",
    sink: Sink | None = None,
    clock: Clock | None = None,
    report: Callable[[OrderStatus], None] = lambda status: None,
    journal: Path | None = None,
    loaded: tuple[nn.Module, Any] | None = None,
) -> Stack:
    """Load the model and wire everything around it, on the thread that will step.

    Args:
        report: hears of every change of a fault order's state.
        journal: file of the failure records; None: they stay in memory.
        loaded: model and tokenizer that are there already; None: loaded from `options.path`.
    """
    clock, sink = clock or SystemClock(), sink or NoSink()
    torch.set_num_threads(options.threads)
    path = Path(options.path)
    model, tokenizer = loaded or load(path, DTYPES[options.dtype])
    settings = CheckerSettings(profile=options.profile, cooldown_s=options.breaker_cooldown_s)
    config = options.engine_config()
    breaker = Breaker(
        config.backends,
        failures_max=settings.failures_max,
        cooldown_s=settings.cooldown_s,
        clock=clock,
        sink=sink,
        replica=replica,
    )
    engine = ReferenceEngine(
        model, tokenizer, config, choice=breaker, sink=sink, clock=clock, replica=replica
    )
    switchboard = Switchboard(settings.profile, clock=clock, sink=sink, replica=replica)
    guard = attach(
        model,
        seams=engine.seams,
        switchboard=switchboard,
        thresholds=settings.thresholds,
        clock=clock,
        sink=sink,
        replica=replica,
    )
    # Half precision is cast from the files: only the copy in memory has the bits that serve.
    files = sorted(path.glob("*.safetensors")) if options.dtype == "fp32" and not loaded else []
    weights = WeightStore(model, files=files)
    counters = guard.runtime.counters
    kept = Journal(journal, counters=counters) if journal else Journal(counters=counters)
    engine.gate = gate = GuardGate(
        guard,
        breaker,
        weights,
        pages=engine.pages,
        sink=sink,
        journal=kept,
        clock=clock,
        settings=settings,
        replica=replica,
        model_name=options.served_name,
    )
    armoury = Armoury(model, engine.pages, engine.seams, clock, report)
    return Stack(engine, gate, breaker, switchboard, armoury, tokenizer)
