"""Bodies of requests: what OpenAI clients send is taken, what is wrong is told where and why."""

from typing import Any

import pytest
from pydantic import ValidationError

from tocsin.ray_jobs.bodies import ChatBody, CompletionBody, error_body, validation_message

USER = [{"role": "user", "content": "hi"}]


def complaint(kind: type[ChatBody] | type[CompletionBody], body: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    return validation_message(caught.value.errors())


@pytest.mark.parametrize(
    "prompt",
    [[1, 2.0], [1, True], [1, "2"], [[1, 2], [3]], [1, None], 7, {"a": 1}, None, ["one", "two"]],
    ids=str,
)
def test_a_prompt_of_another_shape_or_type_is_refused(prompt: Any) -> None:
    """A float, a bool or a ragged row is no token id, even where it equals one."""
    assert "prompt" in complaint(CompletionBody, {"model": "m", "prompt": prompt})


@pytest.mark.parametrize("prompt", ["text", [], [0], [1, 2, 3], ["one"]], ids=str)
def test_a_prompt_of_text_or_token_ids_is_taken(prompt: Any) -> None:
    """Whether the ids exist is the gateway's next question."""
    assert CompletionBody(model="m", prompt=prompt).prompt == prompt


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 2.5),
        ("top_p", 0.0),
        ("n", 2),
        ("messages", []),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "robot", "content": "hi"}]),
        ("no_such_argument", 1),
        ("presence_penalty", 0.5),
        ("response_format", {"type": "json_schema"}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(field: str, value: Any) -> None:
    """An argument that were ignored would give another answer than was asked for."""
    body = {"model": "m", "messages": USER, field: value}
    assert field in complaint(ChatBody, body)


def test_a_chat_of_text_parts_is_joined() -> None:
    """The content of a message may come in parts."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": parts}]})
    assert body.messages[0].plain() == {"role": "user", "content": "ab"}


def test_sampling_is_what_the_body_says() -> None:
    """Temperature 0 is greedy; without a seed the draw still has one."""
    body = ChatBody.model_validate({"model": "m", "messages": USER, "temperature": 0})
    assert body.sampling(100).greedy
    assert body.sampling(100).seed == 0


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"temperature": 1e-12, "top_k": 5}, (0.0, 5)),
        ({"temperature": 1e-5, "top_k": 99}, (1e-5, 99)),
        ({"temperature": 1.0, "top_k": 100}, (1.0, -1)),
        ({"temperature": 1.0, "top_k": 2**40}, (1.0, -1)),
    ],
)
def test_what_no_engine_can_follow_becomes_what_it_means(
    asked: dict[str, Any], given: tuple[float, int]
) -> None:
    """Otherwise a client could raise P0 alarms of the sampler's check at will."""
    body = CompletionBody.model_validate({"model": "m", "prompt": "a", **asked})
    sampling = body.sampling(100)
    assert (sampling.temperature, sampling.top_k) == given


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a\ud800"},
        {"prompt": ["a\ud800"]},
        {"prompt": "a", "stop": ["\udfff"]},
        {"messages": [{"role": "user", "content": "a\ud800"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\ud800"}]}]},
    ],
)
def test_half_a_character_is_refused_in_words_that_can_be_sent(body: dict[str, Any]) -> None:
    """JSON may escape it; the tokenizer would end in a 500."""
    kind = ChatBody if "messages" in body else CompletionBody
    with pytest.raises(ValidationError) as error:
        kind.model_validate({"model": "m", **body})
    message = validation_message(error.value.errors())
    assert "lone surrogates" in message
    assert message.encode()


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}},
            {"type": "array"},
        ),
    ],
)
def test_a_promised_format_becomes_a_schema(given: Any, schema: Any) -> None:
    """The answer is held to it before it leaves."""
    body = ChatBody.model_validate({"model": "m", "messages": USER, "response_format": given})
    found = body.response_format.schema_to_check() if body.response_format else None
    assert found == schema


def test_a_complaint_is_one_line_with_place_and_finding() -> None:
    """Short enough to read, however large the input was."""
    text = complaint(CompletionBody, {"model": "m", "prompt": [0.5] * 10_000})
    assert "prompt" in text
    assert "\n" not in text
    assert len(text) < 1000


def test_an_error_has_the_shape_that_openai_clients_read() -> None:
    """And carries the id of the failure behind it."""
    error = error_body("m", "server_error", "refused", "01J")["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["tocsin"] == {"failure_id": "01J"}


@pytest.mark.parametrize(
    ("given", "texts"), [(None, ()), ("x", ("x",)), (["x", "y"], ("x", "y")), ([], ())]
)
def test_stop_texts_come_alone_or_as_a_list(given: Any, texts: tuple[str, ...]) -> None:
    """As OpenAI has it, up to four."""
    body = ChatBody.model_validate({"model": "m", "messages": USER, "stop": given})
    assert body.stop_texts() == texts


@pytest.mark.parametrize("given", ["", [""], [1], ["a", "b", "c", "d", "e"]], ids=str)
def test_a_stop_text_that_says_nothing_is_refused(given: Any) -> None:
    """An empty one would end every answer before it began."""
    assert "stop" in complaint(ChatBody, {"model": "m", "messages": USER, "stop": given})
