"""`tocsin scan --plan`: from a scrape or a status to a settings file that a replica accepts."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.checker.test_plan import SCRAPE
from tocsin.checker.journal import Journal
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.commands.edge import EXIT_INVALID, EXIT_SPEC
from tocsin.ray_jobs.configured import parse_settings


def scan(*words: object) -> Result:
    return CliRunner().invoke(app, ["scan", *map(str, words)])


@pytest.fixture
def scrape(tmp_path: Path) -> Path:
    path = tmp_path / "scrape.txt"
    path.write_text(SCRAPE)
    return path


def test_a_scrape_becomes_a_settings_file(scrape: Path, tmp_path: Path) -> None:
    """Proves the way: table on the screen, file on disk, accepted as a replica's user_config."""
    out = tmp_path / "checker.yaml"
    result = scan("--plan", scrape, "--out", out)
    assert result.exit_code == 0, result.output
    assert "6.0000%" in result.output
    assert "2 levels in" in result.output
    written = yaml.safe_load(out.read_text())
    assert written == {
        "profile": "guard",
        "sample": 0.01,
        "levels": {"rope": "numerical", "linear": "all"},
    }
    assert parse_settings(written).sample == 0.01
    assert out.read_text().startswith("# Proposed by tocsin scan --plan from scrape.txt.")


def test_findings_of_a_journal_raise_a_rate(scrape: Path, tmp_path: Path) -> None:
    """Proves that the journal has a say, its merged rows too: 200 findings are more than 0.1 %."""
    journal = Journal(tmp_path / "journal" / "failures.jsonl")
    for number in range(200):
        journal.write(
            {"failure_id": f"F{number}", "operator": "rope", "findings": [{"operator": "rope"}]}
        )
    journal.close()
    out = tmp_path / "checker.yaml"
    result = scan("--plan", scrape, "--journal", tmp_path / "journal", "--out", out)
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(out.read_text())["levels"]["rope"] == "guard"


class Answer(BaseHTTPRequestHandler):
    """One answer of /health/checker_status."""

    def do_GET(self) -> None:
        """Answer with the counters of one replica."""
        checks = {"swiglu/numerical/ok": 5000, "swiglu/numerical/alarm": 20}
        body = json.dumps({"replicas": [{"counters": {"checks": checks}}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/health/checker_status"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_status_is_read_over_http(address: str, tmp_path: Path) -> None:
    """Proves the other source, and that a sample of one's own is kept."""
    out = tmp_path / "checker.yaml"
    result = scan("--plan", address, "--out", out, "--sample", "5%")
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(out.read_text()) == {
        "profile": "guard",
        "sample": 0.05,
        "levels": {"swiglu": "guard"},
    }


@pytest.mark.parametrize(
    ("words", "text", "code", "said"),
    [
        ([], SCRAPE, EXIT_SPEC, "add --plan"),
        (["--plan"], "up 1\n", EXIT_SPEC, "holds no tocsin_checks_total"),
        (["--plan"], '{"counters": ', EXIT_SPEC, "is no JSON"),
        (["--plan", "--sample", "200%"], SCRAPE, EXIT_SPEC, "sample"),
        (["--plan"], None, EXIT_INVALID, "No such file"),
    ],
    ids=["no plan", "no data", "torn", "share", "no file"],
)
def test_what_cannot_be_planned_is_one_line(
    tmp_path: Path, words: list[str], text: str | None, code: int, said: str
) -> None:
    """Proves that nothing is written and the way out is named."""
    source, out = tmp_path / "source", tmp_path / "checker.yaml"
    if text is not None:
        source.write_text(text)
    result = scan(*words, source, "--out", out)
    assert result.exit_code == code
    assert said in result.output
    assert not out.exists()
