"""`tocsin alerts`: drills arrive, dead letters are sent again, mistakes are one line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.dashboards.relay.stubs import Stub, configuration, receivers
from tocsin.core.errors import SpecError
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.commands.alert_files import route_commands
from tocsin.ray_jobs.commands.alerts import EXIT_UNDELIVERED
from tocsin.ray_jobs.commands.edge import EXIT_SPEC

pytestmark = pytest.mark.filterwarnings("ignore:.*ResourceWarning.*")


def tocsin(*words: str) -> Result:
    return CliRunner().invoke(app, ["alerts", *words])


@pytest.fixture
def stub() -> Iterator[Stub]:
    with receivers() as made:
        yield made


@pytest.fixture
def config(tmp_path: Path, stub: Stub) -> str:
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump(configuration(tmp_path, stub)))
    return str(path)


def test_a_drill_reaches_every_receiver_and_says_that_nothing_is_wrong(
    config: str, stub: Stub
) -> None:
    """With the signature and the size of a real message."""
    result = tocsin("send", "--config", config)
    assert result.exit_code == 0, result.stderr
    assert "5 of 5 delivered" in result.stdout
    assert all(len(stub.bodies(path)) == 1 for path in stub.got)
    assert len(stub.got) == 5
    assert stub.bodies("/slack")[0]["text"] == "*[Tocsin] Drill: this receiver is reached*"
    assert "演练" in stub.bodies("/wecom")[0]["markdown"]["content"]


def test_a_drill_that_is_refused_ends_with_the_reason(config: str, stub: Stub) -> None:
    """At once for what cannot pass; it stays among the dead letters."""
    stub.will_answer("/slack", 404, "no_team")
    result = tocsin("send", "--config", config, "slack", "webhook")
    assert result.exit_code == EXIT_UNDELIVERED
    assert "1 of 2 delivered" in result.stdout
    assert "slack: HTTP 404: no_team" in result.stderr


def test_dead_letters_are_sent_again_and_those_of_others_stay(config: str, stub: Stub) -> None:
    """First one receiver, then all; the second time there is nothing left."""
    for path in ("/slack", "/wecom"):
        stub.will_answer(path, 404, "gone")
    assert tocsin("send", "--config", config).exit_code == EXIT_UNDELIVERED
    result = tocsin("redeliver", "--config", config, "slack")
    assert result.exit_code == 0, result.stderr
    assert "1 of 1 delivered" in result.stdout
    dead = Path(config).parent / "state" / "dead-letters.jsonl"
    assert [json.loads(line)["receiver"] for line in dead.read_text().splitlines()] == [
        "wecom-robot"
    ]
    assert "1 of 1 delivered" in tocsin("redeliver", "--config", config).stdout
    assert "0 of 0 delivered" in tocsin("redeliver", "--config", config).stdout
    assert len(stub.bodies("/slack")) == len(stub.bodies("/wecom")) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("send", "fax"), "found no receiver fax, expected dingtalk, pagerduty, slack"),
        (("redeliver", "fax"), "there is no receiver 'fax'"),
    ],
)
def test_an_unknown_receiver_is_one_line(config: str, words: tuple[str, str], said: str) -> None:
    """With those that there are."""
    result = tocsin(words[0], "--config", config, words[1])
    assert result.exit_code == EXIT_SPEC
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("tocsin: ")
    assert said in line


@pytest.mark.parametrize("command", ["relay", "send", "redeliver"])
def test_a_wrong_file_is_one_line(tmp_path: Path, command: str) -> None:
    """Before anything listens or is sent."""
    path = tmp_path / "relay.yaml"
    path.write_text("state: s\nreceivers: {a: {kind: fax}}\n")
    result = tocsin(command, "--config", str(path))
    assert result.exit_code == EXIT_SPEC
    (line,) = result.stderr.strip().splitlines()
    assert "receivers.a: input tag 'fax'" in line


def test_the_example_is_printed_as_it_is_read() -> None:
    """It is what the other commands take."""
    text = tocsin("example").stdout
    assert set(yaml.safe_load(text)) == {"listen", "state", "receivers"}


@pytest.mark.parametrize("table", ["", "5", "[1]", "a: b", "- {expect: 5, labels: 5}", "- ["])
def test_a_table_of_routes_that_is_none_is_one_line(tmp_path: Path, table: str) -> None:
    """Half written, or of another program: no traceback, and what mends it."""
    path = tmp_path / "routes.test.yml"
    path.write_text(table)
    with pytest.raises(SpecError, match="alerts render --out") as raised:
        list(route_commands(path))
    assert "\n" not in str(raised.value)


def test_the_secret_of_the_wecom_app_is_held_to_what_every_secret_is(tmp_path: Path) -> None:
    """Private and a text; it is copied into a file, so a wrong one would stay unnoticed."""
    path = tmp_path / "secret"
    words = ["render", "--out", str(tmp_path / "out"), "--wecom-app", "corp:1"]
    for content, mode, said in ((b"\xff\xfe", 0o600, "not UTF-8"), (b"key", 0o644, "mode 0644")):
        path.write_bytes(content)
        path.chmod(mode)
        result = tocsin(*words, "--wecom-secret-file", str(path))
        assert result.exit_code == EXIT_SPEC
        assert said in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("torn", [b"\xff\xfe\x00 torn", '{"text": "\u2028"}'.encode(), b"{"])
def test_dead_letters_that_are_torn_are_kept_byte_by_byte(
    config: str, tmp_path: Path, torn: bytes
) -> None:
    """Sending again goes on beside them, and nothing that cannot be read is thrown away."""
    dead = tmp_path / "state" / "dead-letters.jsonl"
    dead.parent.mkdir(exist_ok=True)
    dead.write_bytes(torn + b"\n")
    result = tocsin("redeliver", "--config", config)
    assert result.exit_code == 0, result.stderr
    assert dead.read_bytes() == torn + b"\n"
