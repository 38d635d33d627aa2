"""The same question of the reference engine: its decode step bare, and behind the gate."""

from collections.abc import Callable

import torch
from torch import nn

import tocsin
from tocsin.bench.competitors.twin import twin
from tocsin.bench.overhead.plan import Case
from tocsin.bench.overhead.rounds import Variant
from tocsin.bench.overhead.variants import BARE, Prepared
from tocsin.checker.breaker import Breaker
from tocsin.checker.gate import GuardGate
from tocsin.checker.weights import WeightStore
from tocsin.core.errors import ContractError
from tocsin.core.requests import FinishEvent, Request, TokenEvent
from tocsin.core.terms import Profile
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine

NAME = "tocsin (engine)"
NOISE = "A/A (engine)"

SPARE_TOKENS = 8
"""Steps that an engine makes beside the timed ones: filling, warming up, running beside others."""


def names() -> list[tuple[str, str]]:
    """(name, profile) of every row that a case of the engine must have."""
    return [(NOISE, BARE), *((NAME, str(profile)) for profile in Profile)]


def prepare(
    model: nn.Module,
    tokens: torch.Tensor,
    case: Case,
    on_variant: Callable[[str], None] = lambda name: None,
) -> Prepared:
    """One engine a variant, each with all slots decoding at the same positions.

    Args:
        model: without hooks of anybody; every engine runs a twin of it.
        tokens: int64 [N], tokens of a text at least as long as the case's positions.
        case: its batch is the number of slots, its positions the length of the prompts.
        on_variant: told which one is prepared now.
    """
    weights = WeightStore(model)  # the twins share the tensors, so one store serves them all
    prepared = Prepared()
    # An engine moves on with every step, so the second bare one must be an engine of its own.
    for name, note in ((BARE, ""), (NOISE, "a second engine")):
        on_variant(name)
        engine = _empty(model, case)
        _fill(engine, tokens, case)
        prepared.variants.append(Variant(name, BARE, _step(engine), _nothing, note))
    for profile in Profile:
        on_variant(f"{NAME} {profile}")
        engine = _empty(model, case)
        guard = tocsin.attach(engine.model, profile, seams=engine.seams)
        breaker = Breaker(engine.config.backends)
        engine.gate = GuardGate(guard, breaker, weights, pages=engine.pages)
        _fill(engine, tokens, case)
        prepared.variants.append(
            Variant(NAME, str(profile), _checked_step(engine, guard), _nothing, "", guard.detach)
        )
    return prepared


def _tokens_of_a_row(case: Case) -> int:
    return case.pairs_max + SPARE_TOKENS + case.batch * 2


def _empty(model: nn.Module, case: Case) -> ReferenceEngine:
    length = case.positions + _tokens_of_a_row(case)
    shape = EngineConfig(
        slots=case.batch,
        max_model_len=length,
        pages=case.batch * -(-length // 16) + 2,
        prefill_chunk=min(128, -(-case.positions // 16) * 16),
        prefix_cache=False,  # every row reads pages of its own
    )
    return ReferenceEngine(twin(model), config=shape)


def _fill(engine: ReferenceEngine, tokens: torch.Tensor, case: Case) -> None:
    """Requests in all slots, stepped until each has its first token."""
    text = tokens.tolist()
    for row in range(case.batch):
        prompt = tuple(text[row:] + text[:row])[: case.positions]
        new_tokens = _tokens_of_a_row(case)
        engine.submit(Request(f"row{row}", prompt, new_tokens, ignore_eos=True))
    begun: set[str] = set()
    while len(begun) < case.batch:
        begun |= {event.request_id for event in engine.step() if isinstance(event, TokenEvent)}


def _nothing() -> None:
    """An engine prepares its own steps."""


def _step(engine: ReferenceEngine) -> Callable[[], None]:
    rows = engine.config.slots

    def run() -> None:
        events = engine.step()
        released = sum(isinstance(event, TokenEvent) for event in events)
        if released != rows or any(isinstance(event, FinishEvent) for event in events):
            raise ContractError(
                f"bench: an engine step released {released} tokens, expected {rows} and no end; "
                "ask for fewer pairs"
            )

    return run


def _checked_step(engine: ReferenceEngine, guard: "tocsin.Guard") -> Callable[[], None]:
    step = _step(engine)

    def run() -> None:
        step()
        if guard.runtime.counters.failures:
            raise ContractError(
                "bench: a check alarmed on a clean engine step: "
                f"{sorted(guard.runtime.counters.failures)}"
            )

    return run
