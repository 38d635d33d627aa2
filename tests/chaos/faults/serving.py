"""Six requests on a real engine of a tiny model, with one fault, with and without checks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tocsin.chaos.lease import Armoury
from tocsin.checker.breaker import Breaker
from tocsin.checker.gate import GuardGate
from tocsin.checker.guard import attach
from tocsin.checker.weights import WeightStore
from tocsin.core.calls import Call, DeviceMemoryCall
from tocsin.core.clock import ManualClock, OffsetClock
from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.history import NOTICED_BY, Event, EventKind
from tocsin.core.requests import Finish, FinishEvent, Request, TokenEvent
from tocsin.core.terms import Operator, Phase, Profile
from tocsin.engine.config import BACKENDS, EngineConfig
from tocsin.engine.engine import ReferenceEngine

TOKENS = 14
PAGES = 24
AFTER_STEP = 12
STEP_S = 0.05
LASTING = frozenset({"kv.eviction_storm", "clock.jump", "clock.skew"})
"""Faults that serving contains and cannot end: they are taken back, as a run does."""


@dataclass
class Served:
    """What six requests got, what was told on the way, and what is left behind.

    Attributes:
        answers: tokens by request; an unfinished or refused one has fewer.
        margins: of each token, the distance between the two best logits.
        finishes: how each ended.
        unverified: tokens that left before a verdict.
        hurt_pages: pages whose contents were not what was written, after any step.
        wrong_pages: the same at the end.
        readings: free memory as a check heard it.
        problems: what the engine's own books complain about at the end; hurt_books: after any step.
        preemptions: requests that lost their pages to others.
        took_s: what all of it took; drifted_s: how far its wall clock was off at most.
    """

    answers: dict[str, list[int]] = field(default_factory=dict)
    margins: dict[str, list[float]] = field(default_factory=dict)
    finishes: dict[str, Finish] = field(default_factory=dict)
    unverified: int = 0
    events: list[Event] = field(default_factory=list)
    hurt_pages: set[int] = field(default_factory=set)
    wrong_pages: tuple[int, ...] = ()
    readings: list[int] = field(default_factory=list)
    status: OrderStatus | None = None
    problems: list[str] = field(default_factory=list)
    hurt_books: set[str] = field(default_factory=set)
    preemptions: int = 0
    took_s: float = 0.0
    drifted_s: float = 0.0

    def emit(self, event: Event) -> None:
        """Take an event: this is the engine's and the gate's sink."""
        self.events.append(event)

    def hear(self, call: Call) -> None:
        """Take a reading of free memory, after a fault had its way with it."""
        if isinstance(call, DeviceMemoryCall):
            self.readings.append(call.free_bytes)

    def detectors(self) -> dict[str, int]:
        """Detector → the first step in which it saw something."""
        found: dict[str, int] = {}
        for event in self.events:
            names = [finding["check"] for finding in event.data.get("findings", [])]
            if event.kind is EventKind.BACKEND_ERROR:
                names.append("service.backend_error")
            if event.data.get("cause") == "check_error":
                names.append("service.check_error")
            if event.kind in NOTICED_BY:
                names.append(NOTICED_BY[event.kind])
            for name in names:
                found.setdefault(name, event.step)
        return found


def serve(
    kind: str = "",
    /,
    *,
    profile: Profile | None = None,
    seed: int = 7,
    like: str = "",
    **params: object,
) -> Served:
    """Serve six requests to their end, one fault armed with its own parameters.

    Args:
        kind: id of the fault, empty for none; like: the requests that this fault needs.
        profile: of the checks; None: the bare engine, whose gate lets everything pass.
    """
    served, clock = Served(), OffsetClock(ManualClock())
    with _guarded_engine(served, clock, profile, prefixes=_repeats(kind or like)) as engine:
        armoury = Armoury(engine.model, engine.pages, engine.seams, clock, lambda status: None)
        engine.seams.add_check(Operator.DEVICE_MEMORY, Phase.BEFORE, served.hear)
        # Pages are summed for whoever listens there; without a sum no harm to them could be seen.
        engine.seams.add_check(Operator.KV_READ, Phase.BEFORE, lambda call: None)
        if kind:
            armoury.arm(Order("it@0", kind, seed, AFTER_STEP, 1e6, dict(params)))
        for request in _requests(kind or like):
            engine.submit(request)
        while engine.has_work:
            armoury.tick(engine.stats().step)
            clock.sleep(STEP_S)
            for event in engine.step():
                if isinstance(event, TokenEvent):
                    served.answers.setdefault(event.request_id, []).append(event.token)
                    served.margins.setdefault(event.request_id, []).append(event.margin)
                    served.unverified += not event.verified
                elif isinstance(event, FinishEvent):
                    served.finishes[event.request_id] = event.finish
            served.hurt_pages.update(engine.pages.verify(range(PAGES + 1)))
            served.hurt_books.update(engine.audit()["problems"])
            served.drifted_s = max(served.drifted_s, abs(clock.offset_s()))
        if kind in LASTING:
            armoury.disarm("it@0")
        served.preemptions, served.took_s = engine.stats().preemptions, clock.now_ns() / 1e9
        armoury.tick(engine.stats().step)
        served.status = armoury.statuses()[0] if kind else None
        served.wrong_pages = engine.pages.verify(range(PAGES + 1))
        served.problems = engine.audit()["problems"]
    return served


@cache
def right(kind: str = "") -> Served:
    """What the requests of a fault get when nothing is wrong and nobody looks."""
    return serve(like=kind)


@contextmanager
def _guarded_engine(
    served: Served, clock: OffsetClock, profile: Profile | None, *, prefixes: bool
) -> Iterator[ReferenceEngine]:
    """An engine wired as in a worker; the hooks leave the model's family at the end."""
    breaker = Breaker(BACKENDS, failures_max=3, cooldown_s=1.0, clock=clock, sink=served)
    config = EngineConfig(slots=3, pages=PAGES, max_model_len=128, prefix_cache=prefixes)
    engine = ReferenceEngine(
        _model(), config=config, choice=breaker, sink=served, clock=clock, replica="r"
    )
    # Attached in any case: faults of activations need the model's seams too.
    guard = attach(
        engine.model, profile or Profile.OFF, seams=engine.seams, clock=clock, sink=served
    )
    if profile is not None:
        weights = WeightStore(engine.model)
        gate = GuardGate(guard, breaker, weights, pages=engine.pages, sink=served, clock=clock)
        engine.gate, engine.aside = gate, gate.aside
    yield engine
    guard.detach()


def _model() -> LlamaForCausalLM:
    """Untied and of large weights, so that its answers depend on all that it reads."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def _repeats(kind: str) -> bool:
    """Whether a fault strikes what requests of one beginning share."""
    return kind == "kv.prefix_hash_collision"


def _requests(kind: str) -> list[Request]:
    """Two requests for each slot; prompts of 9 to 30 tokens, or one of two that fill two pages.

    Where a fault is about pages that run out, answers are three times as long.
    """
    generator = torch.Generator().manual_seed(1)
    lengths = [40 if _repeats(kind) else 9 + 7 * n % 23 for n in range(6)]
    prompts = [tuple(torch.randint(0, 97, (n,), generator=generator).tolist()) for n in lengths]
    if _repeats(kind):
        prompts = [prompts[n % 2] for n in range(6)]
    tokens = 3 * TOKENS if kind == "kv.eviction_storm" else TOKENS
    return [Request(f"r{n}", prompt, tokens) for n, prompt in enumerate(prompts)]
