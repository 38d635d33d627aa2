"""The client's record is the only truth about what a user got: it must not flatter."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tocsin.core.history import Outcome, RequestRecord
from tocsin.core.system import LoadRequest
from tocsin.ray_jobs.client import send

Handler = Callable[[httpx.Request], httpx.Response]


def data(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


def token(index: int, text: str, **own: Any) -> str:
    facts = {"index": index, "token": 100 + index, "degraded": [], "replica": "a", **own}
    choice = {"index": 0, "finish_reason": None, "delta": {"content": text}}
    return data({"choices": [choice], "tocsin": facts})


LAST = data(
    {
        "choices": [{"index": 0, "finish_reason": "length", "delta": {}}],
        "usage": {"completion_tokens": 2},
        "tocsin": {"degraded": [], "attempts": ["a", "b"]},
    }
)
DONE = "data: [DONE]\n\n"


async def record_of(body: str, status: int = 200, *, stream: bool = True, **headers: str) -> Any:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, text=body, headers=headers)

    return (await records_of(answer, stream=stream))[-1]


async def records_of(handler: Handler, *, stream: bool) -> list[RequestRecord]:
    request = LoadRequest("r1", "g00", "/v1/chat/completions", {"x": 1}, stream, 2)
    async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
        return [record async for record in send(client, "http://host", request)]


async def test_a_whole_stream_is_ok_with_every_token_in_its_place() -> None:
    """Text, tokens, usage, attempts and one ending."""
    record = await record_of(token(0, "a") + token(1, "b") + LAST + DONE)
    assert record.outcome is Outcome.OK
    assert (record.tokens, record.text, record.usage_tokens) == ((100, 101), "ab", 2)
    assert (record.terminals, record.attempts) == (1, ("a", "b"))
    assert record.t_invoke_ns <= record.t_first_ns <= record.t_end_ns


@pytest.mark.parametrize(
    "body",
    [token(0, "a"), token(0, "a") + LAST, token(0, "a") + DONE, ""],
    ids=["no ending", "no [DONE]", "[DONE] alone", "nothing"],
)
async def test_a_stream_that_is_cut_is_never_ok(body: str) -> None:
    """Whichever part of the ending is missing."""
    assert (await record_of(body)).outcome is Outcome.INFO


async def test_a_repeated_token_is_written_down_twice() -> None:
    """The judge must see it: the client does not tidy up."""
    record = await record_of(token(0, "a") + token(0, "a") + LAST + DONE)
    assert [chunk.index for chunk in record.chunks] == [0, 0]


async def test_a_label_is_kept_from_the_first_chunk_that_has_it() -> None:
    """And the header beside it."""
    body = token(0, "a") + token(1, "b", degraded=["attention:sdpa"]) + LAST + DONE
    record = await record_of(body, **{"x-tocsin-degraded": "attention:sdpa"})
    assert record.degraded == ("attention:sdpa",)
    assert record.degraded_header == "attention:sdpa"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_4xx_is_an_explicit_failure_with_one_ending(stream: bool) -> None:
    """No answer was given, and the client knows it."""
    body = json.dumps({"error": {"message": "too long", "code": None}})
    record = await record_of(body, 400, stream=stream)
    assert (record.outcome, record.http_status) == (Outcome.FAIL, 400)
    assert (record.terminals, record.error) == (1, "too long")


async def test_a_refusal_in_the_middle_is_explicit_and_names_its_failure() -> None:
    """After tokens have left, the error comes as an event."""
    refused = {"message": "m", "code": "refused", "tocsin": {"failure_id": "01J"}}
    record = await record_of(token(0, "a") + data({"error": refused}))
    assert (record.outcome, record.failure_id) == (Outcome.FAIL, "01J")
    assert record.terminals == 1


async def test_a_500_without_a_failure_id_leaves_it_open_what_happened() -> None:
    """The request may have been executed."""
    record = await record_of("Internal Server Error", 500)
    assert record.outcome is Outcome.INFO


async def test_a_broken_connection_is_recorded_not_raised() -> None:
    """The load goes on."""

    def breaks(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("gone")

    record = (await records_of(breaks, stream=True))[-1]
    assert record.outcome is Outcome.INFO
    assert "gone" in record.error


async def test_a_whole_answer_gives_its_tokens_from_the_body() -> None:
    """Without a stream there is one chunk a token all the same."""
    body = {
        "choices": [{"finish_reason": "stop", "message": {"content": "ab"}}],
        "usage": {"completion_tokens": 2},
        "tocsin": {"degraded": ["x"], "attempts": ["a"], "tokens": [5, 6]},
    }
    record = await record_of(json.dumps(body), stream=False)
    assert (record.outcome, record.tokens, record.text) == (Outcome.OK, (5, 6), "ab")
    assert record.degraded == ("x",)
