"""The live page of a served model in a real browser: watched, switched, read without a script."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from tests.chaos.report.browser import Page
from tests.ray_jobs.served import TOKEN, Serving, wait_until
from tocsin.core.faulting import Order
from tocsin.core.terms import Operator
from tocsin.dashboards.live.figures import CHARTS, panel_of
from tocsin.dashboards.live.words import words
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.cluster import free_port

pytestmark = [
    pytest.mark.ray,
    # Ray leaves sockets and processes to the garbage collector, and warns of its own future.
    pytest.mark.filterwarnings("ignore"),
]
CELL = "document.querySelector('tr[data-key=\"rope\"] td:nth-of-type(1)').className"
BUTTON = 'document.querySelector(\'[data-scope="layer:numerical"][data-profile="{}"]\')'


@pytest.fixture
def page(browser: Page, serving: Serving) -> Iterator[Page]:
    """The browser; what the last test left in it is gone."""
    browser.visit(f"{serving.url}/live", 1280)
    browser.evaluate("sessionStorage.clear()")
    browser.complaints.clear()
    browser.requests.clear()
    yield browser
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    browser.visit("about:blank", 1280)


def watch(page: Page, serving: Serving, width: int = 1280, query: str = "?lang=en") -> None:
    """Open the page and wait until its stream has spoken."""
    page.visit(f"{serving.url}/live{query}", width)
    seen(page, "document.getElementById('status').dataset.kind === 'live'", "the stream")


def seen(page: Page, expression: str, what: str, within_s: float = 30.0) -> None:
    wait_until(lambda: bool(page.evaluate(expression)), what, within_s)


@contextlib.contextmanager
def traffic(serving: Serving) -> Iterator[Callable[[], None]]:
    """Answers one after the other: what the page shows of a busy service."""
    with httpx.Client(base_url=serving.url, timeout=60.0) as client:

        def one() -> None:
            body = serving.body(max_tokens=16, stream=False)
            client.post("/v1/chat/completions", json=body).raise_for_status()

        one()
        yield one


def until(page: Page, one: Callable[[], None], expression: str, what: str) -> None:
    """Keep asking until the page shows something."""
    until_s = time.monotonic() + 40.0
    while not page.evaluate(expression):
        assert time.monotonic() < until_s, what
        one()


@pytest.mark.parametrize("width", [400, 1280, 1600])
def test_the_page_is_alive_quiet_and_fits(page: Page, serving: Serving, width: int) -> None:
    """Lights, figures and replicas from real data; no complaint, no foreign address, no scroll."""
    with traffic(serving) as one:
        watch(page, serving, width)
        until(page, one, f"{CELL} === 'ok'", "the light of rope")
        until(
            page,
            one,
            "document.querySelectorAll('[data-figure=\"overview.tokens\"] path.line')[0]"
            "?.getAttribute('d')?.includes('L')",
            "a line of tokens",
        )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('.replicas tbody tr').length") >= 2
    assert page.evaluate("document.querySelectorAll('.plot svg').length") == len(CHARTS)
    unnamed = "[...document.querySelectorAll('button')].filter(b => !b.textContent.trim()).length"
    assert page.evaluate(unnamed) == 0
    assert page.complaints == []
    assert page.requests
    assert all(url.startswith((serving.url, "data:")) for url in page.requests)


def test_a_switched_layer_takes_effect_and_comes_back_by_itself(
    page: Page, serving: Serving
) -> None:
    """With a reason, a time and the token; the grid, the replicas and the audit log agree."""
    with traffic(serving) as one:
        watch(page, serving)
        until(page, one, f"{CELL} === 'ok'", "the light of rope")
        fill(page, "off", reason="a test of the page", token=TOKEN, ttl_s=12)
        seen(page, f"{CELL} === 'off'", "the light going out")
        assert page.evaluate("document.getElementById('switch').open") is False
        assert page.evaluate(BUTTON.format("off") + ".ariaPressed") == "true"
        until(page, one, "document.body.innerText.includes('a test of the page')", "the order")
        status = serving.get("/health/checker_status").json()
        assert status["table"]["rope"]["numerical"]["profile"] == "off"
        assert status["table"]["rope"]["memory"]["profile"] == "full"
        before = evaluations(serving)
        one()
        one()
        wait_until(lambda: grown(serving, before, "memory"), "checks of another layer")
        assert not grown(serving, before, "numerical")
        seen(page, f"{CELL} !== 'off'", "the end of its time")
        until(page, one, f"{CELL} === 'ok'", "the light coming back")
    seen(page, "document.querySelector('.audit').innerText.includes('the TTL ended')", "the log")
    assert page.evaluate(BUTTON.format("full") + ".ariaPressed") == "true"
    assert page.evaluate("sessionStorage.length") == 1
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    assert page.complaints == []


def test_a_wrong_token_switches_nothing_and_is_forgotten(page: Page, serving: Serving) -> None:
    """The dialog stays and says so."""
    watch(page, serving)
    fill(page, "guard", reason="no right to", token="wrong", ttl_s=60)
    problem = "document.getElementById('switch-problem').textContent"
    seen(page, f"{problem} !== ''", "the refusal")
    assert page.evaluate(problem) == words("en")["bad_token"]
    assert page.evaluate("sessionStorage.length") == 0
    assert serving.get("/health/checker_status").json()["orders"] == []


def test_an_order_needs_a_reason_and_a_time(page: Page, serving: Serving) -> None:
    """The browser itself does not send a form with a blank."""
    watch(page, serving)
    for reason, ttl_s in (("", 60), ("a reason", None)):
        fill(page, "guard", reason=reason, token=TOKEN, ttl_s=ttl_s)
        assert page.evaluate("document.getElementById('switch').open") is True
        page.press("Escape")
    assert serving.get("/health/checker_status").json()["orders"] == []


def test_it_can_be_used_from_the_keyboard_while_it_changes(page: Page, serving: Serving) -> None:
    """Focus outlives the frames; Enter asks, the reason is typed, Escape returns where one was."""
    watch(page, serving)
    button = BUTTON.format("guard")
    page.evaluate(f"{button}.focus()")
    told = "document.querySelector('.asof time').dateTime"
    first = page.evaluate(told)
    seen(page, f"{told} !== '{first}'", "a new frame")
    assert page.evaluate(f"document.activeElement === {button}")
    page.press("Enter")
    assert page.evaluate("document.activeElement.id") == "switch-reason"
    page.write("typed")
    assert page.evaluate("document.getElementById('switch-reason').value") == "typed"
    page.press("Escape")
    assert page.evaluate(f"document.activeElement === {button}")


def test_an_injected_fault_is_on_the_page_with_its_reproduction(
    page: Page, serving: Serving
) -> None:
    """A red cell, a failure whose command can be copied, a lane with all its marks."""
    with traffic(serving) as one:
        watch(page, serving)
        victim = serving.alive()[0]
        serving.system.arm(victim.replica, Order("poison@9", "kv.poisoned_page", 3, 1, 60.0))
        until(page, one, "document.querySelector('td.bad') !== null", "a red cell")
        until(page, one, "document.querySelector('.failures .command') !== null", "a failure")
        serving.system.disarm("poison@9")
        lane = "document.querySelector('[data-key=\"poison@9\"]')"
        seen(page, f"{lane}?.querySelectorAll('use').length === 4", "all marks of the lane")
    command = page.evaluate("document.querySelector('.command code').textContent")
    assert command.startswith("tocsin reproduce 01")
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    page.evaluate("document.querySelector('.command button').click()")
    copied = "document.querySelector('.command button').textContent"
    seen(page, f"{copied} === '{words('en')['copied']}'", "the copy")
    assert page.evaluate("document.querySelector('.banner').className") == "banner severe"
    assert page.evaluate(f"{lane}.innerText").count("after") == 2
    assert page.complaints == []


def test_without_javascript_there_are_tables(page: Page, serving: Serving) -> None:
    """Everything that a person must know, and a picture that is made anew by itself."""
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.visit(f"{serving.url}/live?lang=en", 400)
    assert page.evaluate("document.querySelectorAll('.grid tbody tr').length") >= 18
    text = page.evaluate("document.body.innerText")
    for said in ("reloads every 5 s", "curl -X POST", "Audit log", "Attention backends"):
        assert said in text, said
    for board, name in CHARTS:
        assert panel_of(f"{board}.{name}").title in text
    assert page.evaluate("getComputedStyle(document.querySelector('.plot')).display") == "none"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_it_speaks_chinese_to_a_chinese_browser(page: Page, serving: Serving) -> None:
    """By its header, by the link, and in every frame that follows."""
    answer = httpx.get(f"{serving.url}/live", headers={"accept-language": "zh-CN"}, timeout=30.0)
    assert answer.headers["content-language"] == "zh"
    assert "开关面板" in answer.text
    watch(page, serving, query="?lang=zh")
    told = "document.querySelector('.asof time').dateTime"
    first = page.evaluate(told)
    seen(page, f"{told} !== '{first}'", "a new frame")
    assert "检查档位" in page.evaluate("document.querySelector('.banner').innerText")
    page.evaluate("document.querySelector('nav a').click()")
    seen(page, "document.documentElement.lang === 'en'", "the other language")


def test_files_are_asked_for_once_and_the_page_is_never_kept(serving: Serving) -> None:
    """A tag answers the second question; the policy admits nothing from elsewhere."""
    for path in ("/live/app.js", "/live/style.css"):
        first = serving.get(path)
        again = httpx.get(
            f"{serving.url}{path}", headers={"if-none-match": first.headers["etag"]}, timeout=30.0
        )
        assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    whole = serving.get("/live")
    assert whole.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in whole.headers["content-security-policy"]
    weight = len(whole.content) + sum(
        len(serving.get(path).content) for path in ("/live/app.js", "/live/style.css")
    )
    assert weight < 200_000
    assert serving.get("/live/state.json?points=-1").status_code == 400


def test_top_prints_one_frame_of_the_same(serving: Serving) -> None:
    """For scripts; every operator is in it."""
    result = CliRunner().invoke(app, ["top", "--url", serving.url, "--once"], terminal_width=160)
    assert result.exit_code == 0, result.output
    assert "tocsin top" in result.output
    assert str(Operator.KV_UPDATE) in result.output
    assert "flash" in result.output


def test_top_says_in_one_line_that_nobody_is_there() -> None:
    """And what to do."""
    result = CliRunner().invoke(app, ["top", "--url", f"http://127.0.0.1:{free_port()}", "--once"])
    assert result.exit_code == 3
    (line,) = result.output.strip().splitlines()
    assert line.startswith("tocsin: top: no service answers at http://127.0.0.1:")
    assert "tocsin serve" in line
    assert CliRunner().invoke(app, ["top", "--lang", "tlh", "--once"]).exit_code == 64


def fill(page: Page, profile: str, *, reason: str, token: str, ttl_s: int | None) -> None:
    """Press a button of the layer `numerical`, fill the dialog in and send it.

    The dialog offers no time as short as a test wants: one of its choices is made so.
    """
    page.evaluate(BUTTON.format(profile) + ".click()")
    values: dict[str, Any] = {"reason": reason, "token": token}
    for name, value in values.items():
        page.evaluate(f"document.getElementById('switch-{name}').value = {value!r}")
    choice = "document.getElementById('switch-ttl')"
    if ttl_s is None:
        page.evaluate(f"{choice}.selectedIndex = 0")
    else:
        page.evaluate(f"{choice}.options[1].value = '{ttl_s}'; {choice}.selectedIndex = 1")
    page.evaluate("document.querySelector('#switch [type=submit]').click()")


def evaluations(serving: Serving) -> dict[str, int]:
    """How often each layer of `rope` was evaluated so far."""
    table = serving.get("/health/checker_status").json()["table"]["rope"]
    return {layer: cell["evaluations"] for layer, cell in table.items()}


def grown(serving: Serving, before: dict[str, int], layer: str) -> bool:
    return evaluations(serving)[layer] > before[layer]
