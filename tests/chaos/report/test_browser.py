"""The report in a real browser: silent, offline, as wide as the screen, alive to the mouse."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.report.browser import Page
from tests.chaos.report.verdicts import RUNS, hostile
from tocsin.chaos.report import write_report

Written = Callable[[str], Path]

OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll('svg.SIZE text')]
    .map(t => ({words: t.textContent, box: t.getBoundingClientRect()}));
  const found = [];
  for (let i = 0; i < boxes.length; i += 1) for (let j = i + 1; j < boxes.length; j += 1) {
    const a = boxes[i].box, b = boxes[j].box;
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (x > 1 && y > 4) found.push(boxes[i].words + ' / ' + boxes[j].words);
  }
  return found;
})()"""


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", RUNS)
def test_the_page_opens_without_a_complaint(
    page: Page, written: Written, name: str, width: int
) -> None:
    """No console message, no request beside the file itself, nothing to scroll sideways."""
    page.complaints.clear()
    page.requests.clear()
    path = written(name)
    page.open(path, width)
    assert page.complaints == []
    assert page.requests == [path.as_uri(), "data:,"][: len(page.requests)]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_browser_would_tell_of_a_complaint(page: Page, tmp_path: Path) -> None:
    """The test above can fail: an error, a load and an exception are each taken note of."""
    page.complaints.clear()
    page.requests.clear()
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<script>console.error('first')</script><script>throw new Error('second')</script>"
        "<img src='file:///nowhere.png'>",
        encoding="utf-8",
    )
    page.open(bad, 400)
    complaints = " ".join(page.complaints)
    assert "first" in complaints
    assert "second" in complaints
    assert "file:///nowhere.png" in page.requests


@pytest.mark.parametrize(("width", "kind"), [(1280, "wide"), (400, "narrow")])
def test_no_label_of_the_timeline_covers_another(
    page: Page, written: Written, width: int, kind: str
) -> None:
    """One of the two drawings is shown, and its texts stand apart."""
    page.open(written("passing"), width)
    shown = page.evaluate(
        "[...document.querySelectorAll('svg.timeline')].filter(s => s.clientWidth).length"
    )
    assert shown == 1
    assert page.evaluate(OVERLAPS.replace("SIZE", kind)) == []


def test_the_mouse_brings_up_figures_of_that_moment(page: Page, written: Written) -> None:
    """Over a curve the tip tells percentiles, over a mark what the fault did."""
    page.open(written("passing"), 1280)
    curve = "[b.left + b.width / 2, b.bottom - 8]"
    tip = hovered(page, "svg.wide .curve.ttft", curve, "first token p50")
    assert "tokens/s" in tip
    middle = "[b.left + b.width / 2, b.top + b.height / 2]"
    hovered(page, "svg.wide .mark.detected", middle, "detected after")


def hovered(page: Page, selector: str, point: str, words: str) -> str:
    """The tip over a part of the page, once it has these words; b is the part's box.

    After a scroll the browser itself tells of a mouse that stands over something else now, when it
    pleases; so the mouse is moved until the tip is that of the place.
    """
    page.evaluate(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    tip = ""
    for _ in range(100):
        x, y = page.evaluate(
            f"(() => {{ const b = document.querySelector('{selector}').getBoundingClientRect();"
            f" return {point}; }})()"
        )
        page.move_to(x, y)
        tip = page.evaluate(
            "(tip => tip.hidden ? '' : tip.textContent)(document.getElementById('tip'))"
        )
        if words in tip:
            return tip
        time.sleep(0.02)
    raise AssertionError(f"the tip over {selector} has no {words!r}: {tip!r}")


def test_the_replay_command_has_a_button_that_copies_it(page: Page, written: Written) -> None:
    """The button answers; without a script it is not shown at all."""
    page.open(written("passing"), 1280)
    assert page.evaluate("document.querySelector('button[data-copy]').hidden") is False
    page.evaluate("document.querySelector('button[data-copy]').click()")
    words = "document.querySelector('button[data-copy]').textContent"
    while page.evaluate(words) == "Copy":
        pass
    assert page.evaluate(words) in ("Copied", "Press Ctrl+C")
    assert '<button type="button" data-copy hidden>' in written("passing").read_text("utf-8")


def test_hostile_text_does_not_run(page: Page, tmp_path: Path) -> None:
    """A page full of attacks raises no dialogue, loads nothing, and holds no element of theirs."""
    page.complaints.clear()
    page.requests.clear()
    path = write_report(tmp_path, *hostile())
    page.open(path, 400)
    assert page.complaints == []
    assert [one for one in page.requests if one not in (path.as_uri(), "data:,")] == []
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize(("dark", "paper"), [(False, 255), (True, 17)])
def test_the_page_follows_light_and_dark(
    page: Page, written: Written, tmp_path: Path, dark: bool, paper: int
) -> None:
    """The ground is white or nearly black, and the whole page can be taken as a picture."""
    page.open(written("passing"), 1280, dark=dark)
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour.startswith(f"rgb({paper},")
    page.screenshot(tmp_path / "page.png", 1280)
    head = (tmp_path / "page.png").read_bytes()[:24]
    width, height = (int.from_bytes(head[k : k + 4], "big") for k in (16, 20))
    assert width == 1280
    assert height > 2000


def test_words_contrast_with_their_paper(page: Page, written: Written) -> None:
    """Text of every tone has a contrast of at least 4.5 to its ground, in both modes."""
    for dark in (False, True):
        page.open(written("violated"), 1280, dark=dark)
        assert page.evaluate(CONTRAST) == []


CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const c = rgba(getComputedStyle(e).backgroundColor);
      if (c[3] === 255) return c;
    }
    return rgba(getComputedStyle(document.body).backgroundColor);
  };
  const found = new Set();
  for (const e of document.querySelectorAll('p, dd, dt, td, th, span, a, code, h1, h2, b')) {
    if (!e.offsetParent || !e.textContent.trim()) continue;
    const a = light(rgba(getComputedStyle(e).color)), b = light(ground(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.add(`${e.tagName}.${e.className}: ${ratio.toFixed(2)}`);
  }
  return [...found];
})()"""
