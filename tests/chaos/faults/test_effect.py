"""With checks off each fault inside a worker really does harm, on a real engine of a tiny model.

A fault that changes nothing that anybody sees would make every detector look good.
"""

from typing import Any

import pytest

from tests.chaos.faults.serving import AFTER_STEP, TOKENS, Served, right, serve
from tocsin.chaos.contract import faults
from tocsin.core.faulting import Scope

pytestmark = pytest.mark.slow

ONLY_WITH_CHECKS = "check.self_fault"
WORKER_FAULTS = [
    unit.id
    for unit in faults().values()
    if unit.scope is Scope.WORKER and unit.id != ONLY_WITH_CHECKS
]
HARM = {
    "host.mem_pressure": {"readings"},
    # One row of one operator of one step: this model's winner is far ahead of all others.
    "rope.pos_jump": {"logits"},
    "rmsnorm.eps": {"logits"},
    "attn.mask_shift": {"logits"},
    "attn.workspace_clobber": {"logits"},
    "batch.mask_mismatch": {"logits"},
    # One token of some thirty: most answers change, all pages do.
    "kv.write_race": {"pages"},
    # No answer is wrong: fewer pages are left, work is done twice, time is lost or misread.
    "kv.leak_refcount": {"books"},
    "kv.eviction_storm": {"preemptions"},
    "actor.slow": {"time"},
    "actor.gil_lock": {"time"},
    "clock.jump": {"clock"},
    "clock.skew": {"clock"},
}
"""What must be harmed, where that is not the answers."""
VARIANTS = [
    ("act.bitflip", {"operator": "residual"}),
    ("kv.poisoned_page", {"value": "inf"}),
    ("attn.cu_seqlens", {"kind": "decreasing"}),
    ("attn.cu_seqlens", {"kind": "int64"}),
    ("attn.cu_seqlens", {"kind": "max_seqlen"}),
    ("batch.oob_token", {"kind": "foreign"}),
    ("rope.table", {"factor": float("nan")}),
    ("kv.off_by_one_pos", {"offset": 1}),
    ("rope.pos_jump", {"offset": -3}),
    ("act.nan", {"value": "inf"}),
    ("attn.mask_shift", {"keys": -1}),
    ("attn.softmax_inf", {"kind": "blind"}),
    ("attn.workspace_clobber", {"tensor": "k"}),
    ("batch.bad_dtype", {"kind": "stride"}),
    ("batch.mask_mismatch", {"kind": "length"}),
]
_NOTICED = 1e-3
"""Change of a margin, in logits, that is no rounding."""


@pytest.fixture(scope="module")
def clean() -> Served:
    """The right answers."""
    return right()


def _harm(clean: Served, served: Served) -> set[str]:
    """What somebody could notice: an answer, a logit, a page or a reading that is not right."""
    found = set()
    if any(
        len(margins) != len(served.margins.get(request, ()))
        or any(abs(a - b) > _NOTICED for a, b in zip(margins, served.margins[request], strict=True))
        for request, margins in clean.margins.items()
    ):
        found.add("logits")
    if served.answers != clean.answers:
        found.add("answers")
    if served.hurt_pages:
        found.add("pages")
    if min(served.readings) < min(clean.readings) // 2:
        found.add("readings")
    if served.hurt_books:
        found.add("books")
    if served.preemptions > clean.preemptions:
        found.add("preemptions")
    if served.took_s > 2 * clean.took_s:
        found.add("time")
    if served.drifted_s > 1.0:
        found.add("clock")
    return found


def test_without_a_fault_nothing_is_harmed_and_answers_repeat(clean: Served) -> None:
    """The comparison can say no."""
    assert {len(tokens) for tokens in clean.answers.values()} == {TOKENS}
    assert _harm(clean, serve()) == set()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", WORKER_FAULTS)
def test_a_fault_with_its_defaults_does_harm(kind: str, seed: int) -> None:
    """Whatever place it draws."""
    served = serve(kind, seed=seed)
    assert served.status is not None
    assert served.status.fired_step >= AFTER_STEP
    assert _harm(right(kind), served) & HARM.get(kind, {"answers"})


@pytest.mark.parametrize(("kind", "params"), VARIANTS)
def test_its_other_kinds_do_harm_too(clean: Served, kind: str, params: dict[str, Any]) -> None:
    """Each kind that an experiment may ask for."""
    assert _harm(clean, serve(kind, **params)) & HARM.get(kind, {"answers"})


def test_a_fault_of_the_checker_alone_harms_no_answer_with_checks_off(clean: Served) -> None:
    """What it changes is read by checks only: then it must be without any effect."""
    served = serve(ONLY_WITH_CHECKS)
    assert served.status is not None
    assert served.status.fired_step >= AFTER_STEP
    assert _harm(clean, served) == set()


def test_a_flipped_key_bit_may_stay_without_effect_on_tokens_and_still_is_in_the_pages(
    clean: Served,
) -> None:
    """The lowest bit of a key changes no token here: a silent fault that only a sum can see."""
    engine_page = serve("kv.bitflip", tensor="k", bit=0)
    assert engine_page.status is not None
    assert engine_page.status.evidence is not None
    assert engine_page.status.evidence.fired
    assert _harm(clean, engine_page) <= {"pages"}


def test_poison_spreads_to_requests_that_came_later(clean: Served) -> None:
    """Finding A: the page is freed with its NaN, and its next owner's answer is lost too."""
    served = serve("kv.poisoned_page", seed=7)
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
    served = serve(kind)
    assert served.problems == []
    assert {len(tokens) for tokens in served.answers.values()} == {TOKENS}
