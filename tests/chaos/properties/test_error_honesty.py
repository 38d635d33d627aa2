"""What says that it is whole is whole; everything else says why."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.histories import LENGTH, clean_case, with_record
from tests.chaos.properties.told import CLEAN, T0, conclusion, first
from tocsin.core.history import NO_ERROR_BODY, Outcome

CHUNKS = CLEAN.records[0].chunks
REFUSED: dict[str, Any] = {"outcome": Outcome.FAIL, "finish_reason": "", "http_status": 500}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"usage_tokens": -1}, "pass"),
        ({"usage_tokens": LENGTH + 1}, "fail"),
        ({"http_status": 206}, "fail"),
        ({"error": "something"}, "fail"),
        ({"finish_reason": "stop"}, "fail"),
        ({"chunks": CHUNKS[:5], "usage_tokens": 5}, "fail"),
        ({"chunks": CHUNKS[:5], "usage_tokens": 5, "degraded": ("why",)}, "pass"),
        ({"chunks": [*CHUNKS, CHUNKS[-1]]}, "pass"),
        ({"outcome": Outcome.INFO}, "fail"),
        ({"outcome": Outcome.INFO, "finish_reason": ""}, "pass"),
        ({"outcome": Outcome.CANCELLED}, "pass"),
        ({**REFUSED, "error": "the step failed twice"}, "pass"),
        ({**REFUSED, "error": ""}, "fail"),
        ({**REFUSED, "error": NO_ERROR_BODY}, "fail"),
        ({**REFUSED, "error": "why", "finish_reason": "stop"}, "fail"),
    ],
)
def test_an_answer_is_what_it_says(fields: dict[str, Any], expected: str) -> None:
    """Count, status, end and golden rest; a broken connection is the affair of `no_lost`."""
    assert conclusion("error.honesty", with_record(clean_case(), 0, **fields)) == expected


def test_the_words_say_what_is_missing() -> None:
    """Whoever reads them knows how much of the answer its client did not get."""
    case = with_record(clean_case(), 0, chunks=CHUNKS[:5], usage_tokens=5)
    assert "3 tokens are missing" in first("error.honesty", case)


def test_a_wrong_token_is_not_a_lie_about_the_end() -> None:
    """`golden.tokens` speaks of it."""
    chunks = [*CHUNKS[:3], replace(CHUNKS[3], token=1), *CHUNKS[4:7]]
    case = with_record(clean_case(), 0, chunks=chunks, usage_tokens=7)
    assert conclusion("error.honesty", case) == "pass"


def test_a_stream_that_the_end_of_the_run_cut_is_not_the_services() -> None:
    """The run was stopped under it."""
    stopped = clean_case(aborted="SIGINT was received", t_aborted_ns=T0)
    assert conclusion("error.honesty", with_record(stopped, 0, outcome=Outcome.INFO)) == "pass"


def test_a_refused_malformed_request_is_held_to_its_words_too() -> None:
    """A bare 400 helps nobody."""
    bare = {**REFUSED, "http_status": 400, "malformed": "ragged", "prompt_id": ""}
    case = with_record(clean_case(), 0, **bare, error=NO_ERROR_BODY)
    assert "HTTP 400" in first("error.honesty", case)


def test_a_history_of_cancelled_requests_says_nothing() -> None:
    """Nobody claimed anything."""
    record = replace(CLEAN.records[0], outcome=Outcome.CANCELLED)
    assert conclusion("error.honesty", clean_case(records=(record,))) == "vacuous"
