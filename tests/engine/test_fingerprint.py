"""The fingerprint of the logits behind a token: of the right bits, and of them alone."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from tests.engine.tiny import CONFIG, drain, prompt, request, tiny_model
from tocsin.core.errors import SpecError
from tocsin.core.history import Event, EventKind
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.fingerprint import is_told, logits_crc
from tocsin.engine.golden import GoldenPrompt, golden

NEW = 9


class Told:
    """Fingerprints by request and index."""

    def __init__(self) -> None:
        """None so far."""
        self.crcs: dict[str, dict[int, int]] = defaultdict(dict)

    def emit(self, event: Event) -> None:
        """Keep those of logits."""
        if event.kind is EventKind.LOGITS:
            self.crcs[event.request_id][event.data["index"]] = event.data["crc"]


def test_any_bit_of_the_largest_changes_it_and_no_other_does() -> None:
    """The 64 largest count; where they stand, and what is below them, does not."""
    logits = torch.randn(500, generator=torch.Generator().manual_seed(3))
    order = logits.argsort(descending=True)
    crc = logits_crc(logits)
    assert logits_crc(logits[torch.randperm(500)]) == crc
    for place, same in ((0, False), (63, False), (64, True), (499, True)):
        changed = logits.clone()
        changed.view(torch.int32)[order[place]] ^= 1
        assert (logits_crc(changed) == crc) is same
    assert logits_crc(logits[:10]) != crc
    assert logits_crc(logits.bfloat16()) == logits_crc(logits.bfloat16().float())


@pytest.mark.parametrize("every", [1, 4])
def test_in_any_company_it_is_golden(every: int) -> None:
    """Preempted, replayed and crowded requests have those of the quiet engine; each fourth one."""
    lengths = [5 + 6 * n for n in range(6)]
    prompts = [GoldenPrompt(f"r{n}", prompt(length, n), NEW) for n, length in enumerate(lengths)]
    right = golden(tiny_model(), None, prompts, CONFIG)
    told = Told()
    config = replace(CONFIG, logits_told_every=every, pages=8, max_model_len=48)
    engine = ReferenceEngine(tiny_model(), config=config, sink=told)
    for n, length in enumerate(lengths):
        engine.submit(request(f"r{n}", length, new=NEW, start=n))
    drain(engine)
    assert engine.stats().preemptions > 0
    for name, crcs in told.crcs.items():
        assert len(crcs) in ((NEW,) if every == 1 else (NEW // every, NEW // every + 1))
        assert all(is_told(index, name, every) for index in crcs)
        assert crcs == {index: right[name].logit_crcs[index] for index in crcs}
    assert len(told.crcs) == len(lengths)


def test_a_weight_that_changes_by_a_rounding_is_seen() -> None:
    """Every token is still right: nothing else would tell."""
    one = [GoldenPrompt("a", prompt(5), NEW)]
    right = golden(tiny_model(), None, one, CONFIG)["a"]
    model = tiny_model()
    model.lm_head.weight.data *= 1 + 2**-20  # type: ignore[union-attr, operator]
    wrong = golden(model, None, one, CONFIG)["a"]
    assert wrong.tokens == right.tokens
    assert not set(wrong.logit_crcs) & set(right.logit_crcs)


def test_nobody_who_did_not_ask_is_told() -> None:
    """An engine by itself tells nothing of the kind; a number below 0 is refused."""
    told = Told()
    engine = ReferenceEngine(tiny_model(), config=CONFIG, sink=told)
    engine.submit(request("a"))
    drain(engine)
    assert not told.crcs
    with pytest.raises(SpecError, match="logits_told_every is -1, expected 0"):
        EngineConfig(logits_told_every=-1)
