"""What the apprise library is used for, and why four channels are our own."""

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.dashboards.relay.stubs import Stub, alert, notification, receivers, secret_file
from tocsin.core.errors import SpecError
from tocsin.dashboards.relay.channels.apprise import AppriseChannel
from tocsin.dashboards.relay.channels.contract import Refusal
from tocsin.dashboards.relay.config import AppriseConfig
from tocsin.dashboards.relay.letter import Letter
from tocsin.dashboards.relay.notification import Notification

apprise = pytest.importorskip("apprise")
pytestmark = pytest.mark.filterwarnings("ignore")  # its plug-ins import what Python deprecates


@pytest.fixture
def stub() -> Iterator[Stub]:
    with receivers() as made:
        yield made


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library sleeps between messages to one host."""
    monkeypatch.setattr("apprise.plugins.base.NotifyBase.throttle", lambda self, *args: None)
    logging.getLogger("apprise").setLevel(logging.CRITICAL)


def page() -> Letter:
    known = Notification.model_validate(notification(alert()))
    return Letter(receiver="x", notification=known)


def channel(folder: Path, urls: str) -> AppriseChannel:
    file = folder / secret_file(folder, "urls", urls)
    return AppriseChannel("feishu", AppriseConfig(kind="apprise", language="zh", urls_file=file))


async def test_feishu_is_spoken_by_the_library(
    tmp_path: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A markdown card in Chinese; a code that is not 0 is a refusal there, as it must be."""
    monkeypatch.setattr("apprise.plugins.feishu.NotifyFeishu.notify_url", f"{stub.url}/feishu")
    sender = channel(tmp_path, "feishu://abcdefgh-token")
    async with httpx.AsyncClient(verify=False) as http:
        assert await sender.send(page(), http) is None
        stub.will_answer("/feishu", 200, {"code": 9499, "msg": "Bad Request"})
        refusal = await sender.send(page(), http)
    assert isinstance(refusal, Refusal)
    assert refusal.retry
    card = stub.bodies("/feishu")[0]["card"]
    assert card["header"]["title"]["content"] == "[P0 告警] TocsinOperatorFailing attention"
    assert "在一分钟内失败超过 10 次" in card["elements"][0]["text"]["content"]


def test_a_url_that_the_library_does_not_know_is_named_by_its_line(tmp_path: Path) -> None:
    """Not by its text, which is a secret."""
    with pytest.raises(SpecError, match="line 2 is no URL that apprise knows") as raised:
        channel(tmp_path, "feishu://abcdefgh-token\nhush://secret").check()
    assert "secret" not in str(raised.value).replace("secrets", "")
    with pytest.raises(SpecError, match="holds no URL"):
        channel(tmp_path, "# nothing").check()


def test_the_library_takes_a_wecom_robot_s_refusal_for_success(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it sends plain text. When this fails, our channel can be weighed anew."""
    monkeypatch.setattr(
        "apprise.plugins.wecombot.NotifyWeComBot.notify_url", f"{stub.url}/wecom?key={{key}}"
    )
    stub.will_answer("/wecom", 200, {"errcode": 93000, "errmsg": "invalid webhook url"})
    target = apprise.Apprise()
    target.add("wecombot://k1234567")
    assert target.notify(body="**bold**", body_format="markdown")
    assert stub.bodies("/wecom")[0]["msgtype"] == "text"


def test_the_library_quotes_a_dingtalk_signature_twice_and_does_not_see_the_refusal(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stub, which verifies as documented, refuses each signed message; it says success."""
    monkeypatch.setattr(
        "apprise.plugins.dingtalk.NotifyDingTalk.notify_url",
        f"{stub.url}/dingtalk?access_token=t",
    )
    target = apprise.Apprise()
    secret = "SEC0123456789abcdef"
    monkeypatch.setattr("tests.dashboards.relay.stubs.SECRET", secret)
    target.add(f"dingtalk://{secret}@abc123/")
    assert target.notify(body="x")
    (got,) = stub.got["/dingtalk"]
    assert got["query"]["sign"][0].endswith("%3D")
