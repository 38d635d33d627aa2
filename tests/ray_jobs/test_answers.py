"""Answers in OpenAI's shape: labels from the first degraded token on, no stop token in the text."""

import json
from typing import Any

from tests.ray_jobs.bytes_tokenizer import EOS, bytes_tokenizer
from tocsin.core.requests import Finish, FinishEvent, TokenEvent
from tocsin.ray_jobs.answers import Answer, answer_headers, why_refused
from tocsin.ray_jobs.prompting import Detokeniser, StopText

TOKENIZER = bytes_tokenizer()


def answer(*, chat: bool = True, stops: tuple[str, ...] = ()) -> Answer:
    return Answer("r1", "m", chat, 3, (EOS,), Detokeniser(TOKENIZER), StopText(stops))


def token(index: int, letter: str, *degraded: str) -> TokenEvent:
    ids = TOKENIZER(letter, add_special_tokens=False)["input_ids"] if letter else [EOS]
    return TokenEvent("r1", index, ids[0], 1.0, True, degraded)


def of(chunk: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(chunk.decode().removeprefix("data: "))
    return found


def test_a_degraded_token_labels_its_chunk_all_later_ones_and_the_ending() -> None:
    """A label that came and went would be missed by who reads only the end."""
    one = answer()
    first = of(one.chunk(one.add(token(0, "a"), ("a",)), token(0, "a")))
    second = of(one.chunk(one.add(token(1, "b", "attention:sdpa"), ("a",)), token(1, "b")))
    one.add(token(2, "c"), ("a",))
    last = of(one.last_chunk("", FinishEvent("r1", Finish.LENGTH, 3), usage=True))
    assert first["tocsin"]["degraded"] == []
    assert second["tocsin"]["degraded"] == last["tocsin"]["degraded"] == ["attention:sdpa"]


def test_the_stop_token_counts_and_is_not_said() -> None:
    """It was generated, it is not text."""
    one = answer()
    pieces = [one.add(token(0, "a"), ()), one.add(token(1, ""), ())]
    assert pieces == ["a", ""]
    assert one.usage() == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_whole_answers_have_the_text_where_clients_look_for_it() -> None:
    """A message in a chat, plain text in a completion."""
    ending = FinishEvent("r1", Finish.STOP, 1)
    for chat in (True, False):
        one = answer(chat=chat)
        one.add(token(0, "a"), ("x", "y"))
        whole = one.whole(ending)
        choice = whole["choices"][0]
        assert (choice["message"]["content"] if chat else choice["text"]) == "a"
        assert whole["object"] == ("chat.completion" if chat else "text_completion")
        assert whole["tocsin"]["attempts"] == ["x", "y"]
        assert choice["finish_reason"] == "stop"


def test_an_answer_that_comes_to_its_stop_text_knows_it() -> None:
    """And what was held back for one that never came is said at the end."""
    one = answer(stops=("bc",))
    assert [one.add(token(i, letter), ()) for i, letter in enumerate("abc")] == ["a", "", ""]
    ending = one.stopped()
    assert ending is not None
    assert ending.finish is Finish.STOP
    other = answer(stops=("bx",))
    assert [other.add(token(i, letter), ()) for i, letter in enumerate("ab")] == ["a", ""]
    assert other.stopped() is None
    assert other.end(FinishEvent("r1", Finish.LENGTH, 2), ()) == "b"
    assert other.text == "ab"


def test_an_unverified_token_makes_the_answer_unverified() -> None:
    """One is enough."""
    one = answer()
    one.add(TokenEvent("r1", 0, 65, 1.0, True), ())
    one.add(TokenEvent("r1", 1, 65, 1.0, False), ())
    one.add(TokenEvent("r1", 2, 65, 1.0, True), ())
    last = of(one.last_chunk("", FinishEvent("r1", Finish.LENGTH, 3), usage=False))
    assert last["tocsin"]["verified"] is False


def test_the_label_is_in_the_header_only_where_there_is_one() -> None:
    """An empty header would be a label without a name."""
    assert answer_headers(()) == {}
    assert answer_headers(("attention:sdpa", "x")) == {"x-tocsin-degraded": "attention:sdpa, x"}


def test_a_refusal_names_its_failure() -> None:
    """So that a person can ask for the reproduction."""
    words = why_refused(FinishEvent("r1", Finish.REFUSED, 2, (), "01J", "pages stay wrong"))
    assert "refused" in words
    assert "01J" in words
    assert "pages stay wrong" in words
