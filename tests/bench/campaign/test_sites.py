"""Every injector changes what it says, in its own row only, and says what it changed."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.bench.campaign.tiny import ROWS, subject_of, world_of
from tocsin.bench.campaign.quotas import strata
from tocsin.bench.campaign.sites import PAGE_SITES, SITES, Fault
from tocsin.bench.campaign.subject import Subject, World, replay
from tocsin.bench.campaign.words import SIGN, STRATA
from tocsin.core.errors import FaultDidNotFire


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Subject, World]]:
    subject = subject_of(profile="off")
    yield subject, world_of(subject)
    subject.close()


def logits_of(
    world: tuple[Subject, World], start: int, faults: list[Fault], steps: int = 2
) -> list[Tensor]:
    return [logits for logits, _ in replay(*world, start, steps, faults)]


@pytest.mark.parametrize("start", [0, 2], ids=["prefill", "decode"])
@pytest.mark.parametrize(("site", "bits"), strata())
def test_a_fault_fires_and_stays_in_its_row(
    world: tuple[Subject, World], site: str, bits: str, start: int
) -> None:
    """Evidence of a changed word; every other row has its golden bits in all steps."""
    fault = Fault(site, bits, row=1, seed=2, key=f"{site}-{bits}-{start}")
    results = logits_of(world, start, [fault])
    world[0].injector.require_fired([fault])
    others = [row for row in range(ROWS) if row != 1]
    for step, logits in enumerate(results):
        assert torch.equal(logits[others], world[1].logits[start + step][others])


@pytest.mark.parametrize("site", sorted(SITES))
def test_a_fault_of_many_bits_reaches_the_logits(world: tuple[Subject, World], site: str) -> None:
    """Of several faults of the top exponent bit at least one moves its row: the place is live."""
    moved = False
    for number in range(6):
        fault = Fault(site, "exponent_top", row=number % ROWS, seed=3, key=f"{site}{number}")
        (logits,) = logits_of(world, 2, [fault], steps=1)
        moved = moved or not torch.equal(logits[fault.row], world[1].logits[2][fault.row])
    assert moved


def test_only_stored_values_stay_wrong(world: tuple[Subject, World]) -> None:
    """A weight's fault acts in each step, an output's in one: the rest is what it left behind."""
    subject = world[0]
    for site, persistent in (("weight_lm_head", True), ("logits", False)):
        fault = Fault(site, SIGN, row=0, seed=1, key=site)
        results = logits_of(world, 1, [fault], steps=3)
        wrong = [
            not torch.equal(logits[0], world[1].logits[1 + step][0])
            for step, logits in enumerate(results)
        ]
        subject.injector.require_fired([fault])
        assert wrong == [True, persistent, persistent]


def test_a_weight_s_fault_is_that_of_a_changed_weight(world: tuple[Subject, World]) -> None:
    """The row that is changed by its output agrees with a model whose weight is really changed."""
    subject, golden = world
    fault = Fault("weight_down", SIGN, row=2, seed=9, key="weight")
    emulated = logits_of(world, 1, [fault], steps=1)[0][2]
    names = [n for n, _ in subject.model.named_modules() if n.endswith("down_proj")]
    weight = subject.model.get_submodule(names[fault.below(len(names), "module")]).weight
    assert isinstance(weight, Tensor)
    at = (fault.below(weight.shape[0], "feature"), fault.below(weight.shape[1], "element"))
    with torch.no_grad():
        weight[at] *= -1
        real = logits_of(world, 1, [], steps=1)[0][2]
        weight[at] *= -1
    assert not torch.equal(emulated, golden.logits[1][2])
    torch.testing.assert_close(emulated, real, rtol=1e-4, atol=1e-6)


def test_a_fault_without_evidence_is_no_trial(world: tuple[Subject, World]) -> None:
    """Its run would count as masked and nobody would know that nothing was injected."""
    fault = Fault("swiglu", SIGN, row=0, seed=1, key="never")
    world[0].injector.arm([fault])
    with pytest.raises(FaultDidNotFire, match="left no evidence"):
        world[0].injector.require_fired([fault])


def test_a_stored_key_stays_wrong_in_the_trial_only(world: tuple[Subject, World]) -> None:
    """The golden keys are as they were: the changed layer was a copy."""
    kept = [(k.clone(), v.clone()) for k, v in world[1].layers]
    for site in sorted(PAGE_SITES):
        logits_of(world, 2, [Fault(site, "exponent_top", row=0, seed=1, key=site)])
    for (k, v), (k_before, v_before) in zip(world[1].layers, kept, strict=True):
        assert torch.equal(k, k_before)
        assert torch.equal(v, v_before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_without_a_fault_a_low_precision_step_has_its_bits(dtype: torch.dtype) -> None:
    """And a fault of each site fires there too, in a word of the model's dtype."""
    subject = subject_of(dtype, "off")
    golden = world_of(subject)
    faults = [
        Fault(site, STRATA[number % 4], number % ROWS, 1, f"{site}{number}")
        for number, site in enumerate(sorted(SITES))
    ]
    for fault in faults:
        list(replay(subject, golden, 1, 1, [fault]))
        subject.injector.require_fired([fault])
    (logits, _), *_ = replay(subject, golden, 1, 1, [])
    assert torch.equal(logits, golden.logits[1])
    subject.close()
