"""What people read: both languages, firing and resolved, and no label that turns into mark-up."""

import pytest

from tests.dashboards.relay.stubs import alert, notification
from tocsin.dashboards.relay.cut import cut_utf8
from tocsin.dashboards.relay.letter import Letter, Notes
from tocsin.dashboards.relay.notification import Notification
from tocsin.dashboards.relay.rendering import render
from tocsin.dashboards.relay.style import Bare, Markdown, SlackMarkup, Style

STYLES: dict[str, Style] = {
    "wecom": Markdown(colours=True),
    "markdown": Markdown(),
    "slack": SlackMarkup(),
    "bare": Bare(),
}
each_style = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
RESOLVED = {"status": "resolved", "endsAt": "2026-11-29T10:05:09.000Z"}


def letter(*alerts: dict[str, object], **changes: object) -> Letter:
    body = notification(*alerts)
    about = {"notification": Notification.model_validate(body), "receiver": "x"}
    return Letter(**{**about, **changes})  # type: ignore[arg-type]


@each_style
def test_a_firing_page_says_what_where_since_when_and_what_to_run(style: Style) -> None:
    """In English, in the mark-up of each channel."""
    notes = {"TocsinOperatorFailing-attention": Notes(command="tocsin reproduce X", path="/r/t.py")}
    text = render(letter(notes=notes), "en", style)
    assert text.title == "[P0 firing] TocsinOperatorFailing attention"
    for part in (
        "attention failed more than 10 times in a minute",
        "tocsin reproduce X",
        "/r/t.py",
        "01JD0000000000000000000000",
        "2026-11-29 10:00:00 UTC",
        "https://example.com/runbooks/operator",
        "tiny",
    ):
        assert part in text.body.replace("\\", ""), part


@each_style
def test_the_same_in_chinese_has_no_english_sentence(style: Style) -> None:
    """The alert's own Chinese summary, and Chinese words around it."""
    text = render(letter(), "zh", style)
    assert text.title == "[P0 告警] TocsinOperatorFailing attention"
    assert "attention 在一分钟内失败超过 10 次" in text.body
    assert "复现命令" not in text.body  # nobody gave a command
    for word in ("Since", "Reproduce", "runbook]", "firing"):
        assert word not in text.body


def test_a_command_that_the_rule_carries_is_shown() -> None:
    """Where the relay has no note of its own."""
    body = alert(annotations={"repro": "tocsin reproduce latest:attention"})
    assert "`tocsin reproduce latest:attention`" in render(letter(body), "zh", Markdown()).body


@pytest.mark.parametrize(
    ("language", "title", "line"),
    [
        (
            "en",
            "[P0 resolved] TocsinOperatorFailing attention",
            "Resolved: TocsinOperatorFailing tiny attention after 5 min 9 s",
        ),
        (
            "zh",
            "[P0 已恢复] TocsinOperatorFailing attention",
            "已恢复\uff1aTocsinOperatorFailing tiny attention\uff0c持续 5 分 9 秒",
        ),
    ],
)
def test_a_resolved_alert_says_so_and_how_long_it_lasted(
    language: str, title: str, line: str
) -> None:
    """In both languages, and without a command: there is nothing to do."""
    text = render(letter(alert(**RESOLVED)), language, Markdown())
    assert text.title == title
    assert line in text.body
    assert "reproduce" not in text.body


def test_a_language_without_a_translation_falls_back_to_english() -> None:
    """A rule of somebody else has no summary_zh."""
    text = render(letter(alert(summary_zh="")), "zh", Bare())
    assert "failed more than 10 times" in text.body


def test_a_group_puts_the_gravest_first_and_counts_the_others() -> None:
    """Firing before resolved, P0 before P1."""
    group = letter(alert("B", priority="P1", operator="rope"), alert("A"), alert("C", **RESOLVED))
    text = render(group, "en", Bare())
    assert text.title == "[P0 firing] A attention and 1 more"
    assert [text.body.index(mark) for mark in ("P0 A", "P1 B", "Resolved: C")] == sorted(
        text.body.index(mark) for mark in ("P0 A", "P1 B", "Resolved: C")
    )


def test_a_drill_says_so_in_its_title() -> None:
    """Nobody gets up for a fault that somebody put there."""
    body = alert()
    body["labels"]["chaos"] = "true"
    assert render(letter(body), "en", Bare()).title.startswith("[DRILL P0 firing]")
    assert render(letter(body), "zh", Bare()).title.startswith("[演练 P0 告警]")


@each_style
def test_a_summary_counts_what_was_held_back_by_name(style: Style) -> None:
    """The most frequent first."""
    text = render(Letter(receiver="x", about="summary", held={"A": 2, "B": 9}), "en", style)
    assert text.title.startswith("[Tocsin] 11 more messages")
    assert text.body.index("B: 9") < text.body.index("A: 2")
    assert (
        "另有 11 条"
        in render(Letter(receiver="x", about="summary", held={"A": 2, "B": 9}), "zh", style).title
    )


def test_no_label_becomes_a_mention_a_link_or_a_new_line() -> None:
    """Labels and annotations hold what others put there: a model's name, an error's text."""
    evil = "x\n# big\n[a](http://b) <@all> <!channel> `rm` **c** @13800000000"
    for name, style in STYLES.items():
        text = render(letter(alert(summary=evil)), "en", style)
        assert "\n# big" not in text.body
        assert name == "bare" or "<@all>" not in text.body
        assert name == "bare" or "<!channel>" not in text.body
    assert "[a](http://b)" not in render(letter(alert(summary=evil)), "en", Markdown()).body
    assert "**c**" not in render(letter(alert(summary=evil)), "en", Markdown()).body


def test_a_command_keeps_its_characters() -> None:
    """Code is copied: nothing in it may be escaped."""
    notes = {"TocsinOperatorFailing-attention": Notes(command="tocsin reproduce latest:rms_norm")}
    body = render(letter(notes=notes), "en", Markdown(colours=True)).body
    assert "`tocsin reproduce latest:rms_norm`" in body


@pytest.mark.parametrize("bytes_max", range(3, 40))
def test_a_cut_never_splits_a_character_and_never_exceeds(bytes_max: int) -> None:
    """Three bytes a Chinese character, four an emoji, at every limit."""
    text = "故障🔥故障🔥abc" * 3
    cut = cut_utf8(text, bytes_max)
    assert len(cut.encode()) <= bytes_max
    assert cut.endswith("…")
    assert text.startswith(cut.removesuffix("…"))


def test_a_cut_prefers_the_end_of_a_line_when_little_is_lost() -> None:
    """Half a command is worse than none."""
    assert cut_utf8("first line\nsecond line", 18) == "first line\n…"
    assert cut_utf8("a\n" + "b" * 40, 30) == "a\n" + "b" * 25 + "…"
    assert cut_utf8("short", 5) == "short"
    with pytest.raises(ValueError, match="expected room"):
        cut_utf8("long", 2)
