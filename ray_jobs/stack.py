"""One checked engine in one process: model, engine, guard, gate, breaker and armoury, wired."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tocsin.chaos.lease import Armoury
from tocsin.checker.breaker import Breaker
from tocsin.checker.gate import GuardGate, Recorded
from tocsin.checker.guard import attach
from tocsin.checker.journal import Journal
from tocsin.checker.surroundings import Surroundings
from tocsin.checker.switchboard import Switchboard
from tocsin.checker.weights import WeightStore
from tocsin.core.clock import Clock, OffsetClock, SystemClock
from tocsin.core.faulting import OrderStatus
from tocsin.core.protocols import Sink
from tocsin.engine.engine import NoSink, ReferenceEngine
from tocsin.engine.weights import load
from tocsin.ray_jobs.configured import settings_of
from tocsin.ray_jobs.options import DTYPES, ServeOptions

_IN_FORCE = frozenset({"armed", "fired", "unhealed"})


@dataclass(frozen=True, slots=True)
class Stack:
    """The parts of one replica; made by `build`."""

    engine: ReferenceEngine
    gate: GuardGate
    breaker: Breaker
    switchboard: Switchboard
    armoury: Armoury
    tokenizer: Any
    weights: WeightStore


def build(
    options: ServeOptions,
    *,
    replica: str = "",
    sink: Sink | None = None,
    clock: Clock | None = None,
    report: Callable[[OrderStatus], None] = lambda status: None,
    journal: Path | None = None,
    loaded: tuple[nn.Module, Any] | None = None,
    recorded: Recorded | None = None,
    trace_of: Callable[[str], str] = lambda request_id: "",
    device: str = "cpu",
) -> Stack:
    """Load the model and wire everything around it, on the thread that will step.

    Args:
        report: hears of every change of a fault order's state.
        journal: file of the failure records; None: they stay in memory.
        recorded: hears of every failure first, with the operator that failed.
        trace_of: W3C traceparent of a request, for the failure records; empty: it has none.
        loaded: model and tokenizer that are there already; None: loaded from the options' folder.
        device: where the model goes, and with it everything that the engine allocates.
    """
    clock, sink = OffsetClock(clock or SystemClock()), sink or NoSink()
    torch.set_num_threads(options.threads)
    path = Path() if loaded else options.folder()
    model, tokenizer = loaded or load(path, DTYPES[options.dtype])
    model.to(device)
    settings = settings_of(options)
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
    kept = Journal(journal, counters=counters, settings=settings.journal, clock=clock)
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
        recorded=recorded,
        surroundings=Surroundings(
            engine=options.shape(),
            request_of=engine.request,
            trace_of=trace_of,
            chaos=lambda: [_order(one) for one in armoury.statuses() if one.state in _IN_FORCE],
        ),
    )
    engine.aside = gate.aside
    armoury = Armoury(model, engine.pages, engine.seams, clock, report)
    return Stack(engine, gate, breaker, switchboard, armoury, tokenizer, weights)


def _order(status: OrderStatus) -> dict[str, Any]:
    """A fault order as the record of a failure names it."""
    place = status.evidence.place if status.evidence is not None else ""
    return {"occurrence": status.occurrence, "state": status.state, "place": place}
