"""Requests that no honest client would send: what each asks, and that the front door refuses it."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from tocsin.chaos.contract import faults
from tocsin.chaos.faults.batch.malformed import ServedModel
from tocsin.chaos.faults.prompt import poison
from tocsin.chaos.faults.sampler import param_poison
from tocsin.chaos.load import malformed_request
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope
from tocsin.ray_jobs.bodies import CompletionBody
from tocsin.ray_jobs.prompting import Prompting

SERVED = ServedModel("m", vocab_size=1000, max_length=256)
KINDS = {"sampler.param_poison": param_poison.KINDS, "prompt.poison": poison.KINDS}
CASES = [(fault, kind) for fault, kinds in KINDS.items() for kind in kinds]


class _Tokenizer:
    """Twelve letters a token, whatever they are: kinder to a text than any real one."""

    eos_token_id = 0

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [1] * (len(text) // 12)}


def _refusal(body: dict[str, Any]) -> str:
    """Why the server's own rules refuse a body that came over the wire; empty: they do not."""
    try:
        read = CompletionBody.model_validate(json.loads(json.dumps(body)))
    except ValidationError as error:
        return str(error)
    prompting = Prompting(_Tokenizer(), SERVED.vocab_size, SERVED.max_length)
    ids = prompting.text(read.prompt) if isinstance(read.prompt, str) else tuple(read.prompt)
    return prompting.complaint(ids, read.max_tokens or 1) or ""


def test_an_honest_body_is_not_refused() -> None:
    """The rule of the tests below can say no."""
    honest = {"model": "m", "prompt": [1, 2], "max_tokens": 4, "temperature": 0.7, "top_k": 5}
    assert _refusal(honest) == ""


@pytest.mark.parametrize(("fault", "kind"), CASES)
def test_each_kind_is_refused_at_the_front_door(fault: str, kind: str) -> None:
    """By the body's own rules or by its length, before a replica hears of it."""
    body = faults()[fault].inject(kind, SERVED)
    assert body["model"] == "m"
    assert _refusal(body)


@pytest.mark.parametrize("kind", param_poison.KINDS)
def test_a_poisoned_parameter_is_the_only_thing_wrong(kind: str) -> None:
    """Without it the body is one that has to be served."""
    body = faults()["sampler.param_poison"].inject(kind, SERVED)
    poisoned = {"temperature", "top_k", "top_p", "logit_bias"} & set(body)
    assert len(poisoned) == 1
    assert _refusal({name: value for name, value in body.items() if name not in poisoned}) == ""


@pytest.mark.parametrize("kind", poison.KINDS)
@pytest.mark.parametrize("max_length", [64, 200_000])
def test_a_poisoned_text_is_longer_than_any_prompt(kind: str, max_length: int) -> None:
    """Whatever the tokenizer makes of it, and not so long that the wire is what is tested."""
    text = faults()["prompt.poison"].inject(kind, ServedModel("m", 1000, max_length))["prompt"]
    assert 90_000 <= len(text) <= 101 * max(max_length, 1000)
    assert len(text) // poison._TOKEN_LONGEST >= max_length * 0.99


@pytest.mark.parametrize("fault", KINDS)
def test_an_unknown_kind_is_refused_in_words(fault: str) -> None:
    """With the list of the known ones."""
    with pytest.raises(SpecError, match="expected one of"):
        faults()[fault].inject("sideways", SERVED)


@pytest.mark.parametrize(
    "fault", [unit.id for unit in faults().values() if unit.scope is Scope.CLIENT]
)
def test_the_load_sends_the_body_of_the_fault_that_was_planned(fault: str) -> None:
    """Each client fault makes its own body: none is taken for another."""
    if "kind" not in faults()[fault].params:
        pytest.skip("sends more than one malformed body")
    one: Any = SimpleNamespace(id="it@0", kind=fault, params=dict(faults()[fault].params))
    spec: Any = SimpleNamespace(system=SimpleNamespace(model="m", max_length=256))
    facts = {"model": "m", "vocab_size": 1000, "max_length": 256}
    request = malformed_request(one, facts, spec)
    assert request.body == faults()[fault].inject(one.params["kind"], SERVED)
    assert request.malformed == one.params["kind"]
