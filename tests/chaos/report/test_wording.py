"""Words and numbers as people read them, and text that cannot deceive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.chaos.report import svg
from tocsin.chaos.report.wording import (
    flat_facts,
    legible,
    milliseconds,
    rate,
    share,
    short,
    visible,
)


@given(st.text(st.characters(exclude_categories=()), max_size=80))
def test_legible_text_can_be_encoded_and_hides_nothing(text: str) -> None:
    """No control, direction or surrogate character remains, and doing it twice changes nothing."""
    shown = legible(text)
    shown.encode()
    assert all(letter.isprintable() or letter.isspace() for letter in shown)
    assert legible(shown) == shown


def test_line_feeds_are_seen_and_kept() -> None:
    """A line break in an answer is part of the answer."""
    assert visible("a\nb\tc") == "a⏎\nb⇥c"


def test_long_text_is_cut_and_says_by_how_much() -> None:
    """Nobody takes the beginning for the whole."""
    assert visible("x" * 1500, 400).endswith("x … 1,100 more characters")
    assert short("word " * 100, 20) == "word word word word…"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "no data"), (0.25, "0.25 ms"), (31.4, "31 ms"), (61000, "61.0 s")]
)
def test_durations(value: float | None, text: str) -> None:
    """No data is never zero."""
    assert milliseconds(value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "no data"), (0, 5, "0 %"), (1, 100_000, "< 0.1 %"), (99_999, 100_000, "> 99.9 %")],
)
def test_shares_do_not_round_an_exception_away(part: int, whole: int, text: str) -> None:
    """One failure in a hundred thousand is not 0 % and leaves no 100 %."""
    assert share(part, whole) == text


def test_rates() -> None:
    """One decimal where it matters."""
    assert [rate(None), rate(12.34), rate(1234.5)] == ["no data", "12.3", "1,234"]


def test_nested_facts_become_dotted_names() -> None:
    """Empty containers say so, booleans are words."""
    facts = flat_facts({"a": {"b": 1, "c": []}, "d": True, "e": {}})
    assert facts == [("a.b", "1"), ("a.c", "none"), ("d", "yes"), ("e", "none")]
    assert flat_facts({}) == []


def test_attributes_and_children_are_escaped() -> None:
    """Text ends neither an attribute nor an element."""
    drawn = svg.element("text", "<b>&\u202e", data_tip='" onload="x', x=1.0)
    assert drawn == '<text data-tip="&#34; onload=&#34;x" x="1">&lt;b&gt;&amp;⟨U+202E⟩</text>'


def test_a_curve_is_broken_where_data_is_missing() -> None:
    """Two runs and a lone point: three pieces, no line across the gap."""
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 4.0), (4.0, None), (5.0, 1.0), (6.0, 1.0)]
    path = str(svg.curve(points, "c"))
    assert path.count("M") == 3
    assert "M0 1L1 2M2 4h2M5 1L6 1" in path


def test_a_band_needs_both_its_curves() -> None:
    """Where one of them is missing there is no area."""
    points = [(0.0, 1.0, 0.0), (1.0, 1.0, 0.0), (2.0, None, 0.0), (3.0, 1.0, None)]
    assert str(svg.band(points, "b")).count("Z") == 1
