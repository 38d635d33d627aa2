"""The relay's file and its secrets: every mistake is one line that says where and what to do."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dashboards.relay.stubs import Stub, configuration, secret_file
from tocsin.core.errors import SpecError
from tocsin.dashboards.relay.config import load_config
from tocsin.dashboards.relay.example import EXAMPLE
from tocsin.dashboards.relay.secret import read_secret
from tocsin.dashboards.relay.service import Relay


def written(folder: Path, data: Any) -> Path:
    path = folder / "relay.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return path


def whole(folder: Path) -> dict[str, Any]:
    return configuration(folder, Stub("http://127.0.0.1:1"))


def changed(folder: Path, receiver: str, **changes: Any) -> dict[str, Any]:
    data = whole(folder)
    data["receivers"][receiver] = {
        key: value
        for key, value in {**data["receivers"][receiver], **changes}.items()
        if value is not None
    }
    return data


def problem(path: Path) -> str:
    with pytest.raises(SpecError) as raised:
        load_config(path)
    line = str(raised.value)
    assert "\n" not in line
    assert line.startswith(str(path))
    return line.removeprefix(str(path))


def test_the_whole_file_is_read_and_its_paths_start_at_its_folder(tmp_path: Path) -> None:
    """Wherever the command is started."""
    config = load_config(written(tmp_path, whole(tmp_path)))
    assert set(config.receivers) == {"wecom-robot", "dingtalk", "slack", "pagerduty", "webhook"}
    assert config.state == tmp_path / "state"
    assert config.receivers["slack"].url_file == tmp_path / "slack"  # type: ignore[union-attr]
    assert config.receivers["wecom-robot"].per_minute == 20


def test_the_example_is_read_as_it_is_printed(tmp_path: Path) -> None:
    """Only the secrets are missing, and that is what is said."""
    config = load_config(written(tmp_path, EXAMPLE))
    kinds = {receiver.kind for receiver in config.receivers.values()}
    assert kinds == {"wecom_robot", "dingtalk", "slack", "pagerduty", "webhook", "apprise"}
    assert {"drill", "deadman"} <= set(config.receivers)
    with pytest.raises(SpecError, match=r"wecom-robot\.url_file: .* cannot be read"):
        Relay(config)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("receivers: [", ":1: "),
        ("just text", ": found str, expected a mapping"),
        ({"state": "s"}, "receivers: field required"),
        ({"state": "s", "receivers": {}}, "receivers: dictionary should have at least 1 item"),
        ({"state": "s", "receivers": {"a": {"kind": "fax"}}}, "receivers.a: input tag 'fax'"),
        ({"state": "s", "receivers": {"a": {}}}, "receivers.a: unable to extract tag"),
        ({"state": "s", "receivers": {"A B": {"kind": "slack"}}}, "receivers.A B"),
    ],
    ids=str,
)
def test_a_file_that_is_none_says_why(tmp_path: Path, data: Any, said: str) -> None:
    """One line with the file, the place and the problem."""
    assert said in problem(written(tmp_path, data))


@pytest.mark.parametrize(
    ("receiver", "changes", "said"),
    [
        ("slack", {"url_file": None}, "receivers.slack.slack.url_file: field required"),
        ("slack", {"url": "https://x"}, "receivers.slack.slack.url: extra inputs"),
        ("slack", {"language": "fr"}, "language: input should be 'en' or 'zh'"),
        ("slack", {"per_minute": 0}, "per_minute: input should be greater than or equal to 1"),
        ("webhook", {"url_file": "x"}, "give exactly one of url and url_file"),
        ("webhook", {"url": None}, "give exactly one of url and url_file"),
        ("webhook", {"url": "https://me:pw@host/"}, "webhook.url: string should match pattern"),
        ("pagerduty", {"url": "not a url"}, "pagerduty.url: string should match pattern"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_named_and_what_stood_there_is_not_repeated(
    tmp_path: Path, receiver: str, changes: dict[str, Any], said: str
) -> None:
    """It may be a secret that somebody put in the wrong place."""
    line = problem(written(tmp_path, changed(tmp_path, receiver, **changes)))
    assert said in line
    assert "pw" not in line


def test_beyond_loopback_the_relay_wants_a_token(tmp_path: Path) -> None:
    """Whoever can reach it can make every phone ring."""
    data = {**whole(tmp_path), "listen": {"host": "0.0.0.0"}}
    assert "there is no token_file" in problem(written(tmp_path, data))
    data["token_file"] = secret_file(tmp_path, "relay-token", "t")
    assert load_config(written(tmp_path, data)).listen.host == "0.0.0.0"


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    """Not a traceback."""
    assert "cannot be read" in problem(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_a_secret_that_others_cannot_read_is_taken(tmp_path: Path, mode: int) -> None:
    """0440 is how Kubernetes mounts one for a group."""
    assert read_secret(tmp_path / secret_file(tmp_path, "s", " hush ", mode), "x") == "hush"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o601, 0o777])
def test_a_secret_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    """With the command that mends it, and without the secret."""
    path = tmp_path / secret_file(tmp_path, "s", "hush", mode)
    with pytest.raises(SpecError, match=f"has mode {mode:04o}.*chmod 600") as raised:
        read_secret(path, "receivers.slack.url_file")
    assert "hush" not in str(raised.value)


def test_a_secret_must_be_a_short_text_in_a_file(tmp_path: Path) -> None:
    """Each other thing is named."""
    cases = {
        "empty": ("", "holds nothing"),
        "long": ("x" * 9000, "more than 8192 bytes"),
    }
    for name, (text, said) in cases.items():
        with pytest.raises(SpecError, match=said):
            read_secret(tmp_path / secret_file(tmp_path, name, text), "x")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "binary").chmod(0o600)
    with pytest.raises(SpecError, match="not UTF-8"):
        read_secret(tmp_path / "binary", "x")
    with pytest.raises(SpecError, match="cannot be read"):
        read_secret(tmp_path, "x")
    os.mkfifo(tmp_path / "pipe", 0o600)  # opening one would wait for ever
    with pytest.raises(SpecError, match="not a regular file"):
        read_secret(tmp_path / "pipe", "x")


def test_a_secret_in_the_place_of_its_file_is_not_repeated(tmp_path: Path) -> None:
    """The most likely mistake of all."""
    url = "https://hooks.slack.com/services/hush"
    line = problem(written(tmp_path, changed(tmp_path, "slack", url_file=url)))
    assert "url_file: found a URL, expected the path of a file" in line
    assert "hush" not in line


@pytest.mark.parametrize("place", ["a\0b", "~nobody-of-this-name/state"])
def test_a_path_that_the_system_does_not_take_is_one_line(tmp_path: Path, place: str) -> None:
    """For the state as for a secret."""
    assert "state: found" in problem(written(tmp_path, {**whole(tmp_path), "state": place}))
    line = problem(written(tmp_path, changed(tmp_path, "slack", url_file=place)))
    assert "url_file: found" in line


def test_a_file_without_an_end_of_brackets_is_one_line(tmp_path: Path) -> None:
    """It exhausts the reader of YAML before it is known to be wrong."""
    assert "nested too deeply" in problem(written(tmp_path, "a: " + "[" * 5000))
