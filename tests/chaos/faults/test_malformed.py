"""Bodies of malformed requests: each is wrong in one way, and only in its prompt."""

import json
from typing import Any

import pytest

from tocsin.chaos.contract import faults
from tocsin.chaos.faults.batch.malformed import KINDS, ServedModel
from tocsin.core.errors import SpecError

SERVED = ServedModel("m", vocab_size=100, max_length=64)


def _honest(prompt: Any) -> bool:
    """Whether a server of this model has to serve the prompt."""
    return (
        isinstance(prompt, list)
        and 0 < len(prompt) < SERVED.max_length
        and all(type(token) is int and 0 <= token < SERVED.vocab_size for token in prompt)
    )


def test_the_rule_of_honesty_knows_an_honest_prompt() -> None:
    """The tests below can fail."""
    assert _honest([1, 2, 99])


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_body_is_json_with_a_prompt_that_cannot_be_served(kind: str) -> None:
    """The rest of the body is what an honest client sends."""
    body = faults()["batch.malformed"].inject(kind, SERVED)
    assert json.loads(json.dumps(body)) == body
    assert not _honest(body["prompt"])
    assert body["model"] == "m"
    assert body["max_tokens"] > 0


def test_the_five_kinds_of_the_catalogue_are_there() -> None:
    """Out-of-range token, empty, too long, wrong dtype, ragged rows."""
    assert set(KINDS) >= {"out_of_range", "empty", "too_long", "wrong_dtype", "ragged"}


def test_an_unknown_kind_is_refused() -> None:
    """With the list of the known ones."""
    with pytest.raises(SpecError, match="expected one of"):
        faults()["batch.malformed"].inject("sideways", SERVED)
