"""Prompts become token ids in one way, and text comes back whole characters at a time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ray_jobs.bytes_tokenizer import EOS, bytes_tokenizer
from tocsin.ray_jobs.prompting import Detokeniser, Prompting, StopText

TOKENIZER = bytes_tokenizer()


def prompting(max_length: int = 32) -> Prompting:
    return Prompting(TOKENIZER, EOS + 1, max_length)


def pieces(text: str) -> list[str]:
    detokeniser = Detokeniser(TOKENIZER)
    said = [detokeniser.add(token) for token in prompting().text(text)]
    return [*said, detokeniser.rest()]


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="�")))
def test_the_pieces_of_any_text_join_to_the_text(text: str) -> None:
    """Nothing is lost or said twice, whatever the characters."""
    assert "".join(pieces(text)) == text


@pytest.mark.parametrize("text", ["ä", "日本", "🔔 rings", "e\u0301"])
def test_no_piece_holds_half_a_character(text: str) -> None:
    """A character of several tokens leaves when its last one has come."""
    said = pieces(text)
    assert all("�" not in piece for piece in said)
    assert said.count("") >= 1


def test_a_character_that_is_never_finished_is_not_said() -> None:
    """An answer cut off inside a character ends before it."""
    detokeniser = Detokeniser(TOKENIZER)
    said = [detokeniser.add(token) for token in prompting().text("ok🔔")[:-1]]
    assert "".join([*said, detokeniser.rest()]) == "ok"


def test_a_chat_goes_through_the_models_own_template() -> None:
    """The tokens are those of the rendered template, with nothing added."""
    ids = prompting().chat([{"role": "user", "content": "hi"}])
    assert TOKENIZER.decode(ids) == "<user>hi\n"


def test_the_end_token_stops_an_answer() -> None:
    """The tokenizer says which one it is."""
    assert prompting().stop_ids == (EOS,)


@pytest.mark.parametrize(
    ("prompt_ids", "tokens", "words"),
    [
        ((), 4, "found no tokens"),
        ((1, 2, EOS + 1), 4, "prompt[2]: found token id 257, expected 0 to 256"),
        ((-1,), 4, "prompt[0]: found token id -1"),
        ((1,) * 30, 3, "make 33, expected at most 32"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_told_why(
    prompt_ids: tuple[int, ...], tokens: int, words: str
) -> None:
    """Place, what was found, what was expected."""
    complaint = prompting().complaint(prompt_ids, tokens)
    assert complaint is not None
    assert words in complaint


@pytest.mark.parametrize(("prompt_ids", "tokens"), [((0,), 1), ((EOS,), 31), ((1,) * 31, 1)])
def test_the_nearest_prompts_that_can_be_served_raise_no_complaint(
    prompt_ids: tuple[int, ...], tokens: int
) -> None:
    """The first and last token id, and a prompt that just fits."""
    found: Any = prompting().complaint(prompt_ids, tokens)
    assert found is None


@pytest.mark.parametrize(
    ("said", "stops", "expected"),
    [
        (["a", "b"], (), "ab"),
        (["one ", "stop", " two"], ("stop",), "one "),
        (["one st", "op two"], ("stop",), "one "),
        (["s", "t", "o", "p"], ("stop",), ""),
        (["sto", "re"], ("stop",), "store"),
        (["ststop"], ("stop",), "st"),
        (["a b c"], ("c", "b"), "a "),
        (["say sto"], ("stop",), "say sto"),
    ],
)
def test_an_answer_ends_before_its_first_stop_text(
    said: list[str], stops: tuple[str, ...], expected: str
) -> None:
    """However the text is cut into pieces, and nothing of a stop text ever leaves."""
    stop = StopText(stops)
    out = [stop.add(piece) for piece in said]
    assert "".join([*out, stop.rest()]) == expected
    assert stop.found == any(one in "".join(said) for one in stops)


@given(st.text("abc", max_size=12), st.text("abc", min_size=1, max_size=3), st.integers(1, 4))
def test_a_stop_text_is_found_as_in_the_whole_text(text: str, stop: str, size: int) -> None:
    """Pieces of any length give what the whole would give."""
    seen = StopText((stop,))
    out = "".join(seen.add(text[i : i + size]) for i in range(0, len(text), size)) + seen.rest()
    assert out == text.partition(stop)[0]
