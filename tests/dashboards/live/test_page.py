"""The live page as HTML: whole without a script, safe with hostile text, in two languages."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from string import Formatter

import pytest

from tests.dashboards.live.states import HOSTILE, NOW_S, busy, cell, failure, quiet
from tocsin.core.terms import BreakerState, Cause, Layer, Profile
from tocsin.dashboards.live.figures import CHARTS, TILES, panel_of
from tocsin.dashboards.live.page import POLICY, SECTIONS, asset, mood, page, sections
from tocsin.dashboards.live.state import Light, LiveState, from_json, thinned
from tocsin.dashboards.live.words import _WORDS, LANGUAGES, chosen, words

VOID = {"meta", "link", "input", "br", "use", "path", "circle", "rect", "line"}


class Outline(HTMLParser):
    """Tags, attributes and text; complains about what is not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("state", [busy(), quiet()], ids=["busy", "quiet"])
def test_the_page_is_well_formed_and_names_nothing_outside_itself(
    state: LiveState, language: str
) -> None:
    """Every tag is closed; no style attribute, no inline script, no handler, no foreign address."""
    outline = Outline(page(state, language))
    assert outline.open == []
    assert [one.get("src") for one in outline.all("script")] == ["live/app.js"]
    for tag, attributes in outline.tags:
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "action"):
            assert "//" not in (attributes.get(name) or ""), tag
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_hostile_text_stays_text() -> None:
    """Messages of checks, reasons and model names come from outside."""
    html = page(busy(), "en")
    assert HOSTILE not in html
    assert "<script>alert" not in html
    assert HOSTILE in Outline(html).text


def test_without_a_script_the_tables_say_everything() -> None:
    """Grid, failures with their command, breakers, faults, orders, audit log, figures, refresh."""
    html = page(busy(), "en")
    outline = Outline(html)
    assert '<noscript><meta http-equiv="refresh"' in html
    for said in (
        "P0: 7 in 60 s",
        "3 in 60 s",
        "was 200 s ago",
        f"tocsin reproduce {failure().failure_id}",
        "state: recomputed or repaired",
        "40 of 60 shown",
        "5 events came faster",
        "kv.bitflip",
        "waits for its moment",
        "not shown to be gone",
        "5:00",
        "p0:attention",
        "full → guard",
        "curl -X POST",
        "40 ms",
    ):
        assert said in outline.text, said
    for board, name in CHARTS:
        assert panel_of(f"{board}.{name}").title in outline.text
    assert len(outline.all("table")) >= 3 + len(CHARTS)


def test_every_light_has_a_shape_and_a_word_of_its_own() -> None:
    """Nobody has to tell colours apart."""
    html = page(busy(), "en")
    symbols = dict(re.findall(r'<symbol id="(l-\w+)"[^>]*>(.*?)</symbol>', html))
    lights = [light for light in Light if light is not Light.ABSENT]
    assert set(symbols) == {f"l-{light}" for light in lights}
    assert len(set(symbols.values())) == len(lights)
    text = words("en")
    assert len({text[f"light_{light}"] for light in Light}) == len(Light)
    for light in lights:
        state = quiet(cells=(cell("rope", "numerical", light),))
        grid = sections(state, "en")["grid"]
        assert f'href="#l-{light}"' in grid
        assert text[f"light_{light}"].partition("{")[0].strip() in Outline(grid).text


def test_a_missing_check_is_said_to_those_who_cannot_see() -> None:
    """An empty cell is not an unknown one."""
    grid = sections(quiet(cells=(cell("rope", "numerical", Light.OK),)), "en")["grid"]
    assert Outline(grid).text.count("no check") == len(Layer) - 1


@pytest.mark.parametrize(
    ("lights", "up", "word"),
    [
        ((Light.OK, Light.BAD, Light.WARN), True, "severe"),
        ((Light.OK, Light.WARN, Light.OFF), True, "alarms"),
        ((Light.OK, Light.OFF), True, "blind"),
        ((Light.OK, Light.NOTE, Light.IDLE), True, "well"),
        ((Light.OK,), False, "down"),
    ],
)
def test_the_headline_is_the_gravest_thing_on_the_page(
    lights: tuple[Light, ...], up: bool, word: str
) -> None:
    """No replica at all is worse than any alarm."""
    state = busy()
    cells = tuple(cell("rope", "numerical", light) for light in lights)
    state = replace(state, cells=cells, replicas=state.replicas if up else state.replicas[1:])
    assert mood(state) == word
    assert f'class="banner {word}"' in sections(state, "en")["banner"]


def test_without_a_token_nothing_can_be_switched() -> None:
    """The buttons are there to be read, and say why they do nothing."""
    locked, unlocked = (page(replace(busy(), switchable=on), "en") for on in (False, True))
    buttons = [one for one in Outline(locked).all("button") if "data-scope" in one]
    assert buttons
    assert all("disabled" in one for one in buttons)
    assert "Read-only" in locked
    assert "Read-only" not in unlocked
    assert not any("disabled" in one for one in Outline(unlocked).all("button"))


def test_a_switch_shows_what_is_in_force_at_each_scope() -> None:
    """Everything, each layer, each operator of the grid; mixed ones press no button."""
    html = sections(busy(), "en")["switchboard"]
    pressed = {
        one["data-scope"]: one["data-profile"]
        for one in Outline(html).all("button")
        if one.get("aria-pressed") == "true"
    }
    assert pressed["layer:numerical"] == "guard"
    assert pressed["operator:linear"] == "full"
    assert "operator:rope" not in pressed
    assert "everything" not in pressed
    for scope in ("everything", *(f"layer:{layer}" for layer in Layer)):
        assert html.count(f'data-scope="{scope}"') == len(Profile)


def test_both_languages_say_the_same_things() -> None:
    """No text is missing, and every text has the same blanks to fill in."""
    for key, texts in _WORDS.items():
        assert len(texts) == len(LANGUAGES)
        blanks = [{name for _, name, _, _ in Formatter().parse(text) if name} for text in texts]
        assert blanks[0] == blanks[1], key
    for cause in Cause:
        assert f"cause_{cause}" in _WORDS
    for state in BreakerState:
        assert str(state) in _WORDS
    zh = page(busy(), "zh")
    assert '<html lang="zh-Hans">' in zh
    for said in ("P0:60 秒内 7 次", "各算子与各层的检查", "开关面板", "数值"):
        assert said in zh
    for board, name in (*CHARTS, *TILES):
        assert panel_of(f"{board}.{name}").title_zh in zh


@pytest.mark.parametrize(
    ("asked", "accept", "language"),
    [
        (None, "", "en"),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "fr, en;q=0.5, zh;q=0.9", "zh"),
        (None, "de, *;q=0.1", "en"),
        (None, "zh;q=nonsense, en;q=0.1", "en"),
        ("en", "zh-CN", "en"),
        ("tlh", "zh-CN", "zh"),
    ],
)
def test_the_language_is_the_one_asked_for_or_the_browsers(
    asked: str | None, accept: str, language: str
) -> None:
    """English where neither is known."""
    assert chosen(asked, accept) == language


def test_a_state_travels_as_json_and_back() -> None:
    """What `tocsin top` reads is what the gateway meant."""
    import json

    assert from_json(json.loads(json.dumps(busy().to_json()))) == busy()
    short = from_json(busy().to_json(points=1))
    assert all(len(line.points) <= 1 for figure in short.figures for line in figure.lines)
    assert short.figures[0].lines[0].points == ((NOW_S, 0.04),)
    many = tuple((float(second), 1.0) for second in range(900))
    few = thinned(many, 100)
    assert len(few) == 100
    assert few[-1] == many[-1]
    assert {later[0] - before[0] for before, later in pairwise(few)} == {9.0}
    none = busy().to_json(points=0)
    assert not any(line["points"] for figure in none["figures"] for line in figure["lines"])


def test_the_whole_page_is_light_and_only_its_own_files_may_be_used() -> None:
    """Under 200 kB with everything it loads; the policy admits no inline script or style."""
    weight = len(page(busy(), "zh").encode()) + len(asset("live.js")) + len(asset("live.css"))
    assert weight < 200_000
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY
    assert set(sections(busy(), "en")) == set(SECTIONS)
