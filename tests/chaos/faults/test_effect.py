"""With checks off each fault inside a worker really does harm, on a real engine of a tiny model.

A fault that changes nothing that anybody sees would make every detector look good.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tocsin.chaos.contract import faults
from tocsin.chaos.lease import Armoury
from tocsin.checker.attach.transformers import TransformersAdapter
from tocsin.core.calls import Call, DeviceMemoryCall
from tocsin.core.clock import ManualClock
from tocsin.core.faulting import Order, OrderStatus, Scope
from tocsin.core.requests import Request, TokenEvent
from tocsin.core.terms import Operator, Phase
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine

PAGES = 40
AFTER_STEP = 20
WORKER_FAULTS = [unit.id for unit in faults().values() if unit.scope is Scope.WORKER]
VARIANTS = [
    ("act.bitflip", {"operator": "residual"}),
    ("kv.poisoned_page", {"value": "inf"}),
    ("attn.cu_seqlens", {"kind": "decreasing"}),
    ("attn.cu_seqlens", {"kind": "int64"}),
    ("attn.cu_seqlens", {"kind": "max_seqlen"}),
    ("batch.oob_token", {"kind": "foreign"}),
    ("rope.table", {"factor": float("nan")}),
]


@dataclass
class Served:
    """What eight requests got, and what is left behind.

    Attributes:
        answers: tokens by request; an unfinished or refused one has fewer.
        wrong_pages: pages whose contents are not what was written.
        readings: free memory as a check would have heard it.
    """

    answers: dict[str, list[int]] = field(default_factory=dict)
    wrong_pages: tuple[int, ...] = ()
    readings: list[int] = field(default_factory=list)
    status: OrderStatus | None = None
    problems: list[str] = field(default_factory=list)


def _model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def clean() -> Served:
    """The right answers."""
    return _serve()


@pytest.fixture(autouse=True)
def _adapter_is_detached() -> Iterator[None]:
    """Hooks of one test's model never speak in another's."""
    yield
    while _ATTACHED:
        _ATTACHED.pop().detach()


_ATTACHED: list[TransformersAdapter] = []


def _serve(kind: str = "", /, seed: int = 7, **params: object) -> Served:
    """Serve eight requests with checks off, one fault armed."""
    engine = ReferenceEngine(
        _model(), config=EngineConfig(slots=4, pages=PAGES, max_model_len=128, prefix_cache=False)
    )
    _ATTACHED.append(TransformersAdapter(engine.model, engine.seams))
    served = Served()

    def hear(call: Call) -> None:
        if isinstance(call, DeviceMemoryCall):
            served.readings.append(call.free_bytes)

    armoury = Armoury(engine.model, engine.pages, engine.seams, ManualClock(), lambda status: None)
    engine.seams.add_check(Operator.DEVICE_MEMORY, Phase.BEFORE, hear)
    if kind:
        armoury.arm(Order("it@0", kind, seed, AFTER_STEP, 1e6, dict(params)))
    generator = torch.Generator().manual_seed(1)
    for number in range(8):
        prompt = torch.randint(0, 97, (9 + 7 * number % 23,), generator=generator)
        engine.submit(Request(f"r{number}", tuple(prompt.tolist()), 24))
    while engine.has_work:
        armoury.tick(engine.stats().step)
        for event in engine.step():
            if isinstance(event, TokenEvent):
                served.answers.setdefault(event.request_id, []).append(event.token)
    served.status = armoury.statuses()[0] if kind else None
    served.wrong_pages = engine.pages.verify(range(PAGES + 1))
    served.problems = engine.audit()["problems"]
    return served


def _harm(clean: Served, served: Served) -> set[str]:
    """What somebody could notice: a wrong answer, a wrong page, a reading that is not true."""
    found = set()
    if served.answers != clean.answers:
        found.add("answers")
    if served.wrong_pages:
        found.add("pages")
    if min(served.readings) < min(clean.readings) // 2:
        found.add("readings")
    return found


def test_without_a_fault_nothing_is_harmed_and_answers_repeat(clean: Served) -> None:
    """The comparison can say no."""
    assert {len(tokens) for tokens in clean.answers.values()} == {24}
    assert _harm(clean, _serve()) == set()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", WORKER_FAULTS)
def test_a_fault_with_its_defaults_does_harm(clean: Served, kind: str, seed: int) -> None:
    """Whatever place it draws."""
    served = _serve(kind, seed)
    assert served.status is not None
    assert served.status.fired_step >= AFTER_STEP
    expected = "readings" if kind == "host.mem_pressure" else "answers"
    assert expected in _harm(clean, served)


@pytest.mark.parametrize(("kind", "params"), VARIANTS)
def test_its_other_kinds_do_harm_too(clean: Served, kind: str, params: dict[str, Any]) -> None:
    """Each kind that an experiment may ask for."""
    assert "answers" in _harm(clean, _serve(kind, **params))


def test_a_flipped_key_bit_may_stay_without_effect_on_tokens_and_still_is_in_the_pages(
    clean: Served,
) -> None:
    """The lowest bit of a key changes no token here: a silent fault that only a sum can see."""
    engine_page = _serve("kv.bitflip", tensor="k", bit=0)
    assert engine_page.status is not None
    assert engine_page.status.evidence is not None
    assert engine_page.status.evidence.fired
    assert _harm(clean, engine_page) <= {"pages"}


def test_poison_spreads_to_requests_that_came_later(clean: Served) -> None:
    """Finding A: the page is freed with its NaN, and its next owner's answer is lost too."""
    served = _serve("kv.poisoned_page", seed=7)
    assert served.status is not None
    assert served.status.evidence is not None
    (victim,) = served.status.evidence.requests
    lost = {request for request, tokens in served.answers.items() if tokens[-1] == 0}
    hurt = {r for r in clean.answers if served.answers.get(r) != clean.answers[r]}
    assert victim in hurt
    assert hurt - {victim}
    assert lost & hurt


@pytest.mark.parametrize("kind", ["kv.page_alias", "kv.write_race", "kv.stale_after_preempt"])
def test_page_faults_do_not_upset_the_books_of_the_engine(kind: str) -> None:
    """The harm is silent: no page is lost or doubled, nothing is raised."""
    served = _serve(kind)
    assert served.problems == []
    assert {len(tokens) for tokens in served.answers.values()} == {24}
