"""Documents over HTTP: those that exist, and nothing else of the machine."""

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tocsin.ray_jobs.routes import documents

APP = FastAPI()
APP.include_router(documents.router)


@pytest.fixture
def client() -> TestClient:
    return TestClient(APP)


def test_a_document_is_shown_as_text(client: TestClient) -> None:
    """A browser shows it as it is, in UTF-8."""
    answer = client.get("/docs/dashboards.md")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text.startswith("# Dashboards")
    assert "被抢占的请求" in answer.text


def test_runbooks_lie_where_the_panels_say(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The default address of the documents in every dashboard ends in these paths."""
    (tmp_path / "runbooks").mkdir()
    (tmp_path / "runbooks" / "blind.md").write_text("# Blind", encoding="utf-8")
    monkeypatch.setattr(documents, "FOLDER", tmp_path)
    assert client.get("/docs/runbooks/blind.md").text == "# Blind"


@pytest.mark.parametrize(
    "name",
    [
        "nothing.md",
        "../README.md",
        "%2e%2e/README.md",
        "..%2fREADME.md",
        "generate.py",
        "/etc/passwd",
    ],
)
def test_no_path_leads_out(client: TestClient, name: str) -> None:
    """Only documents below docs/, whatever the path is written like."""
    answer = client.get(f"/docs/{name}")
    assert answer.status_code == 404
    assert "detail" in answer.json() or "there is no document" in answer.json()["error"]["message"]


def test_an_installed_package_says_that_it_has_none(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not a server error: a line that says where documents are."""
    monkeypatch.setattr(documents, "FOLDER", tmp_path / "docs")
    answer = client.get("/docs/dashboards.md")
    assert answer.status_code == 404
    assert "only a checkout has them" in answer.text


def test_a_runbook_posts_json_as_json() -> None:
    """Curl calls its data a form unless told otherwise, and the switchboard refuses a form."""
    pages = sorted(Path("docs/runbooks").glob("*.md"))
    orders = [
        order
        for page in pages
        for order in re.findall(r"curl [^`]*?checker_status [^`]*?-d [^`]*", page.read_text())
    ]
    assert orders
    assert all("Content-Type: application/json" in order for order in orders)
