"""A client whose connection breaks has each token once, and says honestly when it gives up."""

from collections.abc import AsyncIterator, Callable

import pytest

from tocsin.core.history import Chunk, Outcome, RequestRecord
from tocsin.ray_jobs import reconnect
from tocsin.ray_jobs.reconnect import ATTEMPTS_MAX, Attempt, is_broken, reconnecting

TOKENS = (11, 22, 33, 44)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "_PAUSE_S", 0.0)


def _service(*breaks_after: int | None, wrong: int = 0, stream: bool = True) -> Attempt:
    """Attempt n breaks after so many tokens (None: never); token 1 of later ones may be wrong."""
    made: list[None] = []

    async def attempt() -> AsyncIterator[RequestRecord]:
        number = len(made)
        made.append(None)
        record = RequestRecord("r1", "p1", 5, stream, len(TOKENS), attempts=(f"replica-{number}",))
        for index, token in enumerate((*TOKENS, None)):
            if breaks_after[number] == index:
                record.outcome, record.error = Outcome.INFO, "ReadError: "
                record.t_end_ns = 100 * number + 50
                yield record
                return
            if token is None:
                break
            token += wrong if number and index == 1 else 0
            record.chunks.append(Chunk(100 * number + index, index, token, f" {token}"))
            record.text += f" {token}"
            record.http_status = 200
            yield record
        record.finish_reason, record.outcome, record.terminals = "length", Outcome.OK, 1
        record.usage_tokens, record.t_end_ns = len(TOKENS), 100 * number + 50
        yield record

    return attempt


async def _whole(
    attempt: Attempt, broken: Callable[[RequestRecord], None] = lambda record: None
) -> tuple[RequestRecord, int]:
    """The last record, and in how many steps it grew."""
    record, steps = None, 0
    async for found in reconnecting(attempt, broken):
        assert record is None or found is record
        record, steps = found, steps + 1
    assert record is not None
    return record, steps


async def test_a_connection_that_holds_is_left_alone() -> None:
    """The very record that the client makes."""
    record, steps = await _whole(_service(None))
    assert record.tokens == TOKENS
    assert (record.outcome, steps) == (Outcome.OK, len(TOKENS) + 1)


@pytest.mark.parametrize("cut", [(0,), (2,), (4,), (1, 3), (3, 1, 2)])
async def test_each_token_arrives_once_wherever_it_breaks(cut: tuple[int, ...]) -> None:
    """Indices run without gap or repeat, the text adds up, and the breaks are told."""
    told: list[int] = []
    record, _ = await _whole(_service(*cut, None), lambda broken: told.append(len(broken.chunks)))
    assert record.tokens == TOKENS
    assert [chunk.index for chunk in record.chunks] == [0, 1, 2, 3]
    assert record.text == "".join(chunk.text for chunk in record.chunks)
    assert (record.outcome, record.finish_reason, record.terminals) == (Outcome.OK, "length", 1)
    assert record.error == ""
    assert record.t_invoke_ns == 5
    assert told == list(cut)


async def test_an_answer_that_does_not_stream_is_asked_for_again() -> None:
    """Its text is the second one's, not both."""
    record, _ = await _whole(_service(0, None, stream=False))
    assert record.text == " 11 22 33 44"
    assert record.outcome is Outcome.OK


async def test_a_token_that_differs_is_kept_for_the_judge() -> None:
    """Dropping it would hide that the second answer is another one."""
    record, _ = await _whole(_service(3, None, wrong=1))
    assert record.tokens == (11, 22, 33, 23, 44)
    assert sorted(chunk.index for chunk in record.chunks) == [0, 1, 1, 2, 3]


async def test_a_client_gives_up_in_the_end_and_does_not_know() -> None:
    """Unknown, never a success, never silence."""
    told: list[RequestRecord] = []
    record, _ = await _whole(_service(*[1] * ATTEMPTS_MAX), told.append)
    assert record.outcome is Outcome.INFO
    assert record.t_end_ns > 0
    assert record.tokens == TOKENS[:1]
    assert len(told) == ATTEMPTS_MAX - 1
    assert is_broken(record)


@pytest.mark.parametrize(
    ("outcome", "error", "broken"),
    [
        (Outcome.INFO, "ReadError: ", True),
        (Outcome.INFO, "ReadTimeout: ", True),
        (Outcome.INFO, "the stream ended without an ending", False),
        (Outcome.FAIL, "ReadError: ", False),
        (Outcome.OK, "", False),
    ],
)
def test_only_a_broken_connection_is_asked_again(
    outcome: Outcome, error: str, broken: bool
) -> None:
    """What the service said stands."""
    record = RequestRecord("r", "p", 0, True, 1, outcome=outcome, error=error)
    assert is_broken(record) is broken
