"""Five receivers, each answered by a stub that checks what the real one documents."""

import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.dashboards.relay.stubs import Stub, alert, configuration, notification, receivers
from tocsin.core.clock import ManualClock, SystemClock
from tocsin.dashboards.relay.channels import channel_of
from tocsin.dashboards.relay.channels.contract import Channel, Refusal
from tocsin.dashboards.relay.channels.dingtalk import signature
from tocsin.dashboards.relay.config import RelayConfig, load_config
from tocsin.dashboards.relay.letter import Letter, Notes
from tocsin.dashboards.relay.notification import Notification

PATHS = {
    "wecom-robot": "/wecom",
    "dingtalk": "/dingtalk",
    "slack": "/slack",
    "pagerduty": "/pagerduty",
    "webhook": "/webhook",
}
each_receiver = pytest.mark.parametrize("name", PATHS)
SIGNED = "aZLLrriXgn05YbwaGR7knYsLeJADjr9NwLaNNKpxh4g="
HUGE = "故障🔥" * 9000


@pytest.fixture
def stub() -> Iterator[Stub]:
    with receivers() as made:
        yield made


@pytest.fixture
def config(tmp_path: Path, stub: Stub) -> RelayConfig:
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump(configuration(tmp_path, stub)))
    return load_config(path)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=False) as client:  # loopback: no certificates to load
        yield client


def channel(config: RelayConfig, name: str) -> Channel:
    return channel_of(name, config.receivers[name], SystemClock())


def letter(*alerts: dict[str, Any], **changes: Any) -> Letter:
    known = Notification.model_validate(notification(*alerts))
    return Letter(receiver="x", notification=known, **changes)


def kinds_of_letters() -> dict[str, Letter]:
    resolved = {"status": "resolved", "endsAt": "2026-11-29T10:05:00Z"}
    return {
        "page": letter(),
        "resolved": letter(alert(**resolved)),
        "group": letter(*(alert(f"A{number}", operator="rope") for number in range(40))),
        "huge": letter(*(alert(f"A{n}", summary=HUGE, summary_zh=HUGE) for n in range(60))),
        "summary": Letter(receiver="x", about="summary", held={f"A{n}": n for n in range(1, 900)}),
        "drill": Letter(receiver="x", about="drill"),
        "reproduction": letter(
            about="reproduction", notes={"TocsinOperatorFailing-attention": Notes(path="/t.py")}
        ),
        "foreign": letter(
            {"status": "firing", "labels": {}, "startsAt": "2026-11-29T10:00:00.123456789Z"}
        ),
    }


@each_receiver
@pytest.mark.parametrize("kind", kinds_of_letters())
async def test_every_kind_of_letter_is_taken_by_every_receiver(
    config: RelayConfig, stub: Stub, http: httpx.AsyncClient, name: str, kind: str
) -> None:
    """Signature, size and form are checked by the stub; nothing is cut inside a character."""
    assert await channel(config, name).send(kinds_of_letters()[kind], http) is None
    for one in stub.got.get(PATHS[name], []):
        assert "\ufffd" not in json.dumps(one["body"], ensure_ascii=False)


async def test_wecom_gets_markdown_within_its_bytes_with_the_mention_after_the_cut(
    config: RelayConfig, stub: Stub, http: httpx.AsyncClient
) -> None:
    """4,096 bytes, not characters; whoever is called must be called in a long message too."""
    await channel(config, "wecom-robot").send(kinds_of_letters()["huge"], http)
    content = stub.bodies("/wecom")[0]["markdown"]["content"]
    assert 3000 < len(content.encode()) <= 4096
    assert content.startswith("**[P0 告警] A0 attention 等 60 条**")
    assert content.endswith("\n<@li.lei>")


async def test_nobody_is_called_for_less_than_a_page(
    config: RelayConfig, stub: Stub, http: httpx.AsyncClient
) -> None:
    """A ticket at night mentions nobody, and neither does the end of a page."""
    for one in (letter(alert(priority="P1")), kinds_of_letters()["resolved"]):
        await channel(config, "wecom-robot").send(one, http)
        await channel(config, "dingtalk").send(one, http)
    assert all("<@" not in body["markdown"]["content"] for body in stub.bodies("/wecom"))
    assert all(body["at"]["atMobiles"] == [] for body in stub.bodies("/dingtalk"))


async def test_dingtalk_is_signed_once_quoted_with_the_time_of_sending(
    config: RelayConfig, stub: Stub, http: httpx.AsyncClient
) -> None:
    """The stub computes the signature anew, as the robot does, from what arrived."""
    clock = ManualClock(1_700_000_000_123_000_000)
    sender = channel_of("dingtalk", config.receivers["dingtalk"], clock)
    assert await sender.send(letter(), http) is None
    query = stub.got["/dingtalk"][0]["query"]
    assert query["timestamp"] == ["1700000000123"]
    assert query["access_token"] == ["t"]
    body = stub.bodies("/dingtalk")[0]
    assert body["at"] == {"atMobiles": ["13800000000"], "isAtAll": False}
    assert "@13800000000" in body["markdown"]["text"]
    assert "  \n" in body["markdown"]["text"]
    assert stub.got["/dingtalk"][0]["bytes"] < 20_000


def test_the_signature_is_the_documented_one() -> None:
    """Computed by hand with openssl: HMAC-SHA256 of "timestamp\\nsecret" under the secret."""
    assert signature("SECtest", 1700000000000) == SIGNED


async def test_a_long_message_to_dingtalk_stays_below_its_limit(
    config: RelayConfig, stub: Stub, http: httpx.AsyncClient
) -> None:
    """Counted over the whole body."""
    await channel(config, "dingtalk").send(kinds_of_letters()["huge"], http)
    text = stub.bodies("/dingtalk")[0]["markdown"]["text"]
    assert 15_000 < len(text.encode()) < 20_000


async def test_pagerduty_triggers_and_resolves_one_incident_under_one_key(
    config: RelayConfig, stub: Stub, http: httpx.AsyncClient
) -> None:
    """Whatever else is in the group, and however often it is repeated."""
    sender = channel(config, "pagerduty")
    resolved = {"status": "resolved", "endsAt": "2026-11-29T10:05:00Z"}
    await sender.send(letter(alert("A"), alert("B", priority="P1")), http)
    await sender.send(letter(alert("A", **resolved), alert("B", priority="P1")), http)
    events = stub.bodies("/pagerduty")
    assert [event["event_action"] for event in events] == ["trigger"] * 3 + ["resolve"]
    keys = [event["dedup_key"] for event in events]
    assert keys[0] == keys[3]
    assert keys[1] == keys[2] != keys[0]
    first = events[0]["payload"]
    assert first["severity"] == "critical"
    assert events[1]["payload"]["severity"] == "error"
    assert first["custom_details"]["failure_id"] == "01JD0000000000000000000000"
    assert events[0]["links"][0]["text"] == "runbook"


async def test_pagerduty_is_not_paged_twice_for_a_late_reproduction(
    config: RelayConfig, stub: Stub, http: httpx.AsyncClient
) -> None:
    """The first event had the command already."""
    await channel(config, "pagerduty").send(kinds_of_letters()["reproduction"], http)
    assert stub.bodies("/pagerduty") == []


async def test_the_webhook_carries_text_facts_and_an_id_to_tell_repeats_by(
    config: RelayConfig, stub: Stub, http: httpx.AsyncClient
) -> None:
    """The notification as it came, with what the relay found out."""
    one = letter(notes={"TocsinOperatorFailing-attention": Notes(command="c", path="/p")})
    for _ in range(2):
        await channel(config, "webhook").send(one, http)
    first, second = stub.bodies("/webhook")
    assert first == second
    assert first["id"] == one.id
    assert first["urgent"] is True
    assert first["notes"]["TocsinOperatorFailing-attention"]["path"] == "/p"
    assert first["notification"]["alerts"][0]["labels"]["operator"] == "attention"


@each_receiver
@pytest.mark.parametrize(
    ("status", "headers", "retry", "after_s"),
    [
        (500, {}, True, None),
        (503, {"retry_after": "7"}, True, 7.0),
        (429, {"retry_after": "30"}, True, 30.0),
        (429, {"retry_after": "soon"}, True, None),
        (403, {}, False, None),
        (302, {"location": "http://127.0.0.1:1/"}, False, None),
    ],
)
async def test_a_status_says_whether_another_try_can_help(
    config: RelayConfig,
    stub: Stub,
    http: httpx.AsyncClient,
    name: str,
    status: int,
    headers: dict[str, str],
    retry: bool,
    after_s: float | None,
) -> None:
    """The receiver's trouble passes, our mistake does not, and a redirect is not followed."""
    stub.will_answer(PATHS[name], status, "x", **headers)
    refusal = await channel(config, name).send(letter(), http)
    assert refusal is not None
    assert (refusal.retry, refusal.after_s) == (retry, after_s)
    assert f"HTTP {status}" in refusal.why


@pytest.mark.parametrize("name", ["wecom-robot", "dingtalk"])
@pytest.mark.parametrize(
    ("answer", "retry", "why"),
    [
        ({"errcode": 93000, "errmsg": "invalid webhook url"}, False, "93000: invalid webhook"),
        ({"errcode": 310000, "errmsg": "sign not match"}, False, "310000: sign not match"),
        ({"errcode": -1, "errmsg": "system busy"}, True, "-1: system busy"),
        ({"errcode": "0"}, True, "has no errcode"),
        ({}, True, "has no errcode"),
        ([], True, "has no errcode"),
        ("<html>proxy</html>", True, "has no errcode"),
    ],
    ids=str,
)
async def test_http_200_is_no_success_unless_errcode_is_0(
    config: RelayConfig,
    stub: Stub,
    http: httpx.AsyncClient,
    name: str,
    answer: Any,
    retry: bool,
    why: str,
) -> None:
    """Robots answer 200 to everything; who believes that loses alerts without a word."""
    stub.will_answer(PATHS[name], 200, answer)
    refusal = await channel(config, name).send(letter(), http)
    assert refusal is not None
    assert refusal.retry is retry
    assert why in refusal.why


@pytest.mark.parametrize(("name", "code"), [("wecom-robot", 45009), ("dingtalk", 130101)])
async def test_too_fast_is_tried_again_a_minute_later(
    config: RelayConfig, stub: Stub, http: httpx.AsyncClient, name: str, code: int
) -> None:
    """Somebody else uses the same robot."""
    stub.will_answer(PATHS[name], 200, {"errcode": code, "errmsg": "too fast"})
    refusal = await channel(config, name).send(letter(), http)
    assert refusal == Refusal(f"errcode {code}: too fast", retry=True, after_s=60.0)


async def test_slack_says_ok_or_it_is_a_refusal(
    config: RelayConfig, stub: Stub, http: httpx.AsyncClient
) -> None:
    """A captive portal answers 200 as well."""
    stub.will_answer("/slack", 200, "<html>")
    refusal = await channel(config, "slack").send(letter(), http)
    assert refusal is not None
    assert "expected 'ok'" in refusal.why


@each_receiver
async def test_a_receiver_that_is_not_there_is_tried_again_and_its_url_is_not_told(
    config: RelayConfig, tmp_path: Path, http: httpx.AsyncClient, name: str
) -> None:
    """The URL of a robot is its password: it may not end up in a dead letter or a log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/send?key=hush"
    receiver = config.receivers[name]
    if name in ("webhook", "pagerduty"):
        receiver = receiver.model_copy(update={"url": url})
    else:
        (tmp_path / "gone").write_text(url)
        (tmp_path / "gone").chmod(0o600)
        receiver = receiver.model_copy(update={"url_file": tmp_path / "gone"})
    refusal = await channel_of(name, receiver, SystemClock()).send(letter(), http)
    assert refusal is not None
    assert refusal.retry
    assert "hush" not in refusal.why


async def test_a_file_that_holds_no_url_is_our_mistake(
    config: RelayConfig, tmp_path: Path, http: httpx.AsyncClient
) -> None:
    """Told as such, without what it holds."""
    for text in ("hush", "ftp://hush", "http://x:hush", "http://127.0.0.1:99999/hush"):
        (tmp_path / "wecom").write_text(text)
        refusal = await channel(config, "wecom-robot").send(letter(), http)
        assert refusal is not None
        assert not refusal.retry
        assert "hush" not in refusal.why


@each_receiver
async def test_a_rotated_secret_is_used_from_the_next_letter_on(
    config: RelayConfig, tmp_path: Path, stub: Stub, http: httpx.AsyncClient, name: str
) -> None:
    """Without a restart; here from a wrong one to the right one."""
    file = {"dingtalk": "ding-secret", "pagerduty": "pager", "webhook": "hook"}.get(name)
    if file is None:
        file = {"wecom-robot": "wecom", "slack": "slack"}[name]
    path = tmp_path / file
    right = path.read_text()
    wrong = f"{stub.url}/dingtalk?access_token=no" if file in ("wecom", "slack") else "wrong"
    path.write_text(wrong)
    assert await channel(config, name).send(letter(), http) is not None
    path.write_text(right)
    assert await channel(config, name).send(letter(), http) is None
