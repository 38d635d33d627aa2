"""An HTTP client that writes down everything it sees of one request."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import httpx

from tocsin.core.history import NO_ERROR_BODY, Chunk, Outcome, RequestRecord
from tocsin.core.system import LoadRequest
from tocsin.ray_jobs.backlog import SLOW_CLIENT
from tocsin.ray_jobs.idempotency import REPLAYED
from tocsin.ray_jobs.slow_reading import slow_lines


async def send(
    client: httpx.AsyncClient, url: str, request: LoadRequest
) -> AsyncIterator[RequestRecord]:
    """Send one request; yields the growing record at each token and once more at its end.

    Closing the iterator closes the connection, which cancels the request at the server.
    """
    record = RequestRecord(
        request_id=request.request_id,
        prompt_id=request.prompt_id,
        t_invoke_ns=time.monotonic_ns(),
        stream=request.stream,
        max_new_tokens=request.max_new_tokens,
        malformed=request.malformed,
    )
    headers = headers_of(request)
    address = f"{url}{request.path}"
    try:
        if request.slow_for_s:
            async for line in slow_lines(url, request, headers, partial(note_headers, record)):
                if _take_line(record, line):
                    yield record
        elif request.stream:
            call = client.stream("POST", address, json=request.body, headers=headers)
            async with call as response:
                note_headers(record, response.status_code, response.headers)
                if response.status_code == 200:
                    async for line in response.aiter_lines():
                        if _take_line(record, line):
                            yield record
                else:
                    _take_error(record, json_of(await response.aread()))
        else:
            response = await client.post(address, json=request.body, headers=headers)
            note_headers(record, response.status_code, response.headers)
            _take_whole(record, json_of(response.content))
    except (httpx.HTTPError, OSError) as error:
        record.outcome = Outcome.INFO
        record.error = f"{type(error).__name__}: {error}"
    record.t_end_ns = time.monotonic_ns()
    if record.outcome is Outcome.OPEN:
        record.outcome = Outcome.INFO
        record.error = record.error or "the stream ended without an ending"
    yield record


def json_of(content: bytes) -> dict[str, Any]:
    """The JSON object of a body; an empty one for anything else."""
    try:
        data = json.loads(content)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def headers_of(request: LoadRequest) -> dict[str, str]:
    """What a request says beside its body."""
    headers = {"x-request-id": request.request_id}
    if request.idempotency_key:
        headers["idempotency-key"] = request.idempotency_key
    return headers


def note_headers(record: RequestRecord, status: int, headers: Mapping[str, str]) -> None:
    """What the head of an answer says; names are in lower case."""
    record.http_status = status
    record.degraded_header = headers.get("x-tocsin-degraded", "")
    record.retry_after = headers.get("retry-after", "")
    record.replayed = headers.get(REPLAYED, "") == "true"


def _take_line(record: RequestRecord, line: str) -> bool:
    """One line of the stream; whether it brought a token."""
    if not line.startswith("data: "):
        return False
    if line == "data: [DONE]":
        # Only now is the answer known to be whole: the reason alone could precede a cut.
        record.outcome = Outcome.OK if record.finish_reason else Outcome.INFO
        return False
    data = json_of(line.removeprefix("data: ").encode())
    if "error" in data:
        _take_error(record, data)
        return False
    own = data.get("tocsin", {})
    choice = (data.get("choices") or [{}])[0]
    piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
    record.text += piece
    record.degraded = tuple(dict.fromkeys((*record.degraded, *own.get("degraded", ()))))
    if choice.get("finish_reason"):
        record.terminals += 1
        record.finish_reason = choice["finish_reason"]
        record.usage_tokens = data.get("usage", {}).get("completion_tokens", -1)
        record.attempts = tuple(own.get("attempts", ()))
        return False
    if "token" not in own:
        return False
    replica = own.get("replica", "")
    if replica and record.attempts[-1:] != (replica,):
        record.attempts = (*record.attempts, replica)  # known even if the ending never comes
    record.t_first_ns = record.t_first_ns or time.monotonic_ns()
    record.chunks.append(Chunk(time.monotonic_ns(), own["index"], own["token"], piece))
    return True


def _take_whole(record: RequestRecord, data: dict[str, Any]) -> None:
    """An answer that did not stream."""
    if record.http_status != 200 or "choices" not in data:
        _take_error(record, data)
        return
    choice, own, now_ns = data["choices"][0], data["tocsin"], time.monotonic_ns()
    record.terminals += 1
    record.finish_reason = choice["finish_reason"]
    record.text = choice.get("text") or choice.get("message", {}).get("content") or ""
    record.usage_tokens = data["usage"]["completion_tokens"]
    record.degraded = tuple(own["degraded"])
    record.attempts = tuple(own["attempts"])
    record.t_first_ns = now_ns
    record.chunks = [Chunk(now_ns, index, token, "") for index, token in enumerate(own["tokens"])]
    record.outcome = Outcome.OK


def _take_error(record: RequestRecord, data: dict[str, Any]) -> None:
    """An explicit error; anything that is not one leaves the outcome unknown."""
    error = data.get("error") or {}
    record.error = str(error.get("message", NO_ERROR_BODY))
    record.failure_id = str((error.get("tocsin") or {}).get("failure_id") or "")
    record.terminals += 1
    rejected = 400 <= record.http_status < 500
    refused = error.get("code") in ("refused", "error", "structured_output", SLOW_CLIENT)
    record.outcome = Outcome.FAIL if rejected or refused or record.failure_id else Outcome.INFO
