"""Past runs over HTTP: what is handed out, what is refused, and how both look in a browser."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import uvicorn
from fastapi.testclient import TestClient

from tests.chaos.compare.stores import make_store
from tests.chaos.report.browser import Page, chromium, open_browser
from tocsin.chaos.past_runs import past_runs
from tocsin.ray_jobs.runs_site import SERVED, runs_site


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three whole runs and one that was killed before its manifest was whole."""
    found = make_store(tmp_path_factory.mktemp("runs"))
    killed = found["store"] / "small" / "20991231T235959Z-0123456789ab"
    killed.mkdir()
    (killed / "manifest.json").write_text('{"spec": {"seed"', encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def client(made: dict[str, Path]) -> Iterator[TestClient]:
    with TestClient(runs_site(made["store"]), base_url="http://127.0.0.1") as one:
        yield one


def _id(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def test_the_index_lists_every_run_newest_first(client: TestClient, made: dict[str, Path]) -> None:
    """Also one without a verdict, which cannot be ticked."""
    page = client.get("/").text
    ids = [run.id for run in past_runs(made["store"])]
    places = [page.index(f'value="{one}"') for one in ids]
    assert len(ids) == 4
    assert places == sorted(places)
    assert "no verdict" in page
    assert page.count("disabled") == 1


def test_the_index_can_be_filtered_by_experiment(client: TestClient) -> None:
    """An experiment that is not there is an empty page, not an error."""
    page = client.get("/", params={"experiment": "other"}).text
    assert page.count('type="checkbox"') == 1
    empty = client.get("/", params={"experiment": "<script>alert(1)</script>"})
    assert empty.status_code == 200
    assert "<script>alert" not in empty.text


@pytest.mark.parametrize("file", sorted(SERVED))
def test_the_files_of_a_run_are_handed_out(
    client: TestClient, made: dict[str, Path], file: str
) -> None:
    """As they are on the disk, with a type that a browser does not guess."""
    answer = client.get(f"/runs/{_id(made['clean'])}/{file}")
    assert answer.status_code == 200
    assert answer.content == (made["clean"] / file).read_bytes()
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/runs/{run}/heals.wal",
        "/runs/{run}/manifest.json",
        "/runs/{run}/..%2f..%2f..%2fetc%2fpasswd",
        "/runs/{run}/%2e%2e/verdict.json",
        "/runs/..%2f..%2fetc/x/report.html",
        "/runs/small/..%2f..%2fsecret/report.html",
        "/runs/%2e%2e/%2e%2e/report.html",
        "/runs//etc/passwd",
        "/runs/latest/x/report.html",
    ],
)
def test_nothing_else_is_reachable(client: TestClient, made: dict[str, Path], path: str) -> None:
    """Neither other files of a run nor anything outside of the store."""
    secret = made["store"].parent / "secret"
    secret.mkdir(exist_ok=True)
    (secret / "report.html").write_text("secret", encoding="utf-8")
    answer = client.get(path.replace("{run}", _id(made["clean"])))
    assert answer.status_code == 404
    assert answer.text != "secret"


def test_a_report_that_is_a_link_is_not_followed(made: dict[str, Path], tmp_path: Path) -> None:
    """Whoever may write into a run's folder may not have other files read out."""
    run = tmp_path / "store" / "small" / "20991231T235958Z-0123456789ab"
    run.mkdir(parents=True)
    (tmp_path / "key").write_text("secret")
    (run / "report.html").symlink_to(tmp_path / "key")
    with TestClient(runs_site(tmp_path / "store"), base_url="http://127.0.0.1") as client:
        assert client.get(f"/runs/{_id(run)}/report.html").status_code == 404


def test_another_host_name_is_refused(client: TestClient) -> None:
    """A page elsewhere whose name leads to 127.0.0.1 reads nothing."""
    assert client.get("/", headers={"host": "runs.example"}).status_code == 400


def test_two_ticked_runs_are_compared_the_older_one_first(
    client: TestClient, made: dict[str, Path]
) -> None:
    """In whichever order they were ticked."""
    pair = [_id(made["wrong"]), _id(made["clean"])]
    there = client.get("/compare", params={"run": pair})
    back = client.get("/compare", params={"run": pair[::-1]})
    assert there.status_code == 200
    assert "<title>Worse" in there.text
    assert there.text == back.text
    assert f"/runs/{quote(pair[0])}/report.html" in there.text


@pytest.mark.parametrize(
    ("runs", "status"),
    [([], 400), (["small/x"], 400), (["a", "b", "c"], 400), (["../x", "small/y"], 404)],
)
def test_other_than_two_known_runs_is_a_page_that_says_so(
    client: TestClient, runs: list[str], status: int
) -> None:
    """Never a traceback."""
    answer = client.get("/compare", params={"run": runs})
    assert answer.status_code == status
    assert "Traceback" not in answer.text
    assert "past runs" in answer.text


def test_a_killed_run_cannot_be_compared_and_says_why(
    client: TestClient, made: dict[str, Path]
) -> None:
    """The form does not offer it; an address may still be typed."""
    killed = "small/20991231T235959Z-0123456789ab"
    answer = client.get("/compare", params={"run": [_id(made["clean"]), killed]})
    assert answer.status_code == 422
    assert "no whole run" in answer.text


@pytest.fixture(scope="module")
def address(made: dict[str, Path]) -> Iterator[str]:
    """A real server on loopback."""
    server = uvicorn.Server(
        uvicorn.Config(runs_site(made["store"]), host="127.0.0.1", port=0, log_level="error")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=10)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """Where there is no browser the test is skipped, in CI it fails."""
    program = chromium()
    if not program:
        reason = "no Chromium found; install it (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with open_browser(program) as opened:
        yield opened


@pytest.mark.parametrize("width", [1280, 400])
def test_both_pages_open_without_a_complaint(
    page: Page, address: str, made: dict[str, Path], width: int
) -> None:
    """No console message, no request beside the page, nothing to scroll sideways."""
    pair = "&".join(f"run={_id(made[name])}" for name in ("clean", "wrong"))
    for url in (f"{address}/", f"{address}/compare?{pair}"):
        page.complaints.clear()
        page.requests.clear()
        page.visit(url, width)
        assert page.complaints == []
        assert {one for one in page.requests if one != "data:,"} == {url}
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_two_ticks_and_the_button_lead_to_the_comparison(page: Page, address: str) -> None:
    """As a person does it; the page's own policy lets the form through."""
    page.visit(f"{address}/?experiment=small", 1280)
    page.evaluate(
        "document.querySelectorAll('input:not([disabled])').forEach(one => one.click());"
        "document.querySelector('button').click()"
    )
    while "compare" not in page.evaluate("location.pathname"):
        pass
    while page.evaluate("document.readyState") != "complete":
        pass
    assert page.evaluate("document.querySelector('h1').textContent").endswith("B is worse")


def test_the_verdict_of_the_index_is_that_of_the_file(
    client: TestClient, made: dict[str, Path]
) -> None:
    """The sentence, too."""
    told = json.loads((made["wrong"] / "verdict.json").read_text(encoding="utf-8"))
    assert told["sentence"].split(":")[0] in client.get("/").text
