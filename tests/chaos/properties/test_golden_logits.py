"""The numbers behind the tokens are golden too."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.histories import with_record
from tests.chaos.properties.told import CLEAN, T0, conclusion, event, first, with_events
from tocsin.chaos.case import Case
from tocsin.core.history import EventKind

ID = "golden.logits"
CRCS = CLEAN.golden["p0"].logit_crcs


def _sampled(index: int = 3, *, crc: int | None = None, **changes: Any) -> Case:
    """One step of request 0."""
    told = event(EventKind.LOGITS, T0, index=index, crc=CRCS[index] if crc is None else crc)
    named = replace(told, request_id="r00000")
    return with_events(named, observes=("logits",), **changes)


@pytest.mark.parametrize("index", [0, 3, 7])
def test_the_same_numbers_pass_and_others_do_not(index: int) -> None:
    """The token may be right all the same."""
    assert conclusion(ID, _sampled(index)) == "pass"
    assert f"the logits of token {index} on replica-0" in first(ID, _sampled(index, crc=1))


def test_after_a_wrong_token_and_in_labelled_answers_nothing_is_compared() -> None:
    """Other tokens before it, or another kernel: other numbers."""
    wrong = _sampled(3, crc=1)
    chunks = list(CLEAN.records[0].chunks)
    chunks[2] = replace(chunks[2], token=1)
    for case in (with_record(wrong, 0, chunks=chunks), with_record(wrong, 0, degraded=("why",))):
        assert conclusion(ID, case) == "unknown"


def test_what_the_engine_marks_as_degraded_is_not_compared() -> None:
    """A token that left a dying replica may never reach the client, whose answer has no label."""
    told = event(EventKind.LOGITS, T0, index=3, crc=1, degraded=True)
    named = replace(told, request_id="r00000")
    assert conclusion(ID, with_events(named, observes=("logits",))) == "unknown"


def test_without_certificate_or_telling_it_is_vacuous() -> None:
    """Bits are only promised with the one, and only seen with the other."""
    assert conclusion(ID, _sampled(3, crc=1, certificate={"bit_exact": False})) == "vacuous"
    assert conclusion(ID, with_events()) == "vacuous"
    assert conclusion(ID, with_events(observes=("logits",))) == "unknown"
