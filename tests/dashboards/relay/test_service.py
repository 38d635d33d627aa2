"""The relay as a whole: nothing is lost, pages carry their reproduction, tickets their report."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.dashboards.relay.stubs import Stub, alert, configuration, notification, receivers
from tocsin.core.errors import CapacityError, SpecError
from tocsin.dashboards.relay.app import relay_app
from tocsin.dashboards.relay.config import RelayConfig, load_config
from tocsin.dashboards.relay.evidence import Evidence, Reproduction
from tocsin.dashboards.relay.notification import Notification
from tocsin.dashboards.relay.service import Relay

FAILURE = "01JD0000000000000000000000"


@pytest.fixture
def stub() -> Iterator[Stub]:
    with receivers() as made:
        yield made


@pytest.fixture
def config(tmp_path: Path, stub: Stub) -> RelayConfig:
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump(configuration(tmp_path, stub)))
    return load_config(path)


def body(*alerts: dict[str, Any]) -> Notification:
    return Notification.model_validate(notification(*alerts))


async def delivered(relay: Relay) -> None:
    """All that was accepted has arrived; how long that takes is the stubs' affair."""
    async with asyncio.timeout(20.0):
        await relay.emptied()


async def test_a_page_carries_the_command_and_the_path_of_its_reproduction(
    config: RelayConfig, stub: Stub
) -> None:
    """To every receiver, and the reproduction is written once."""
    calls: list[str] = []

    def reproduce(failure: str, since_s: float) -> Reproduction:
        calls.append(failure)
        return Reproduction(f"tocsin reproduce {failure}", Path("/repro/test_page_owner.py"))

    relay = Relay(config, reproduce=reproduce)
    relay.start()
    for name in relay.couriers:
        relay.accept(name, body())
    await delivered(relay)
    await relay.stop()
    assert calls == [FAILURE]
    texts = {path: json.dumps(stub.bodies(path), ensure_ascii=False) for path in stub.got}
    assert len(texts) == 5
    for path, text in texts.items():
        assert f"tocsin reproduce {FAILURE}" in text, path
        assert "/repro/test_page_owner.py" in text, path


async def test_an_alert_without_an_id_is_reproduced_by_its_operator(
    config: RelayConfig, stub: Stub
) -> None:
    """The rule's copy of an alert knows no failure id; what failed long before is not meant."""
    calls: list[tuple[str, float]] = []

    def reproduce(failure: str, since_s: float) -> Reproduction:
        calls.append((failure, since_s))
        return Reproduction("tocsin reproduce X", Path("/t.py"))

    relay = Relay(config, reproduce=reproduce)
    relay.start()
    said = body(alert(annotations={"failure_id": ""}, operator="rope"))
    relay.accept("slack", said)
    await delivered(relay)
    await relay.stop()
    assert calls == [("latest:rope", said.alerts[0].starts_at.timestamp() - 600.0)]


async def test_a_page_does_not_wait_for_a_slow_reproduction_which_follows_it(
    config: RelayConfig, stub: Stub
) -> None:
    """First the page with the command, then one line with the path."""
    release = threading.Event()

    def reproduce(failure: str, since_s: float) -> Reproduction:
        release.wait(20.0)
        return Reproduction("tocsin reproduce X", Path("/late/test_it.py"))

    relay = Relay(config, reproduce=reproduce)
    relay.start()
    relay.accept("slack", body())
    async with asyncio.timeout(20.0):
        while not stub.bodies("/slack"):
            await asyncio.sleep(0.01)
    first = json.dumps(stub.bodies("/slack")[0])
    assert f"tocsin reproduce {FAILURE}" in first
    assert "/late/" not in first
    release.set()
    await delivered(relay)
    await relay.stop()
    _, second = stub.bodies("/slack")
    assert "The reproduction is ready" in second["text"]
    assert "/late/test_it.py" in json.dumps(second)


@pytest.mark.parametrize("error", [SpecError("no snapshot"), OSError("disk"), None])
async def test_a_page_goes_out_where_nothing_can_be_reproduced(
    config: RelayConfig, stub: Stub, error: Exception | None
) -> None:
    """With the command, once."""

    def reproduce(failure: str, since_s: float) -> Reproduction | None:
        if error is not None:
            raise error
        return None

    relay = Relay(config, reproduce=reproduce)
    relay.start()
    relay.accept("slack", body())
    await delivered(relay)
    await relay.stop()
    (page,) = stub.bodies("/slack")
    assert f"tocsin reproduce {FAILURE}" in json.dumps(page)


async def test_a_ticket_carries_a_debug_report_with_all_that_is_known(
    config: RelayConfig, stub: Stub
) -> None:
    """One folder: a page for people, the data beside it."""
    evidence = Evidence(
        failure_id=FAILURE,
        record={
            "failure_id": FAILURE,
            "check": "semantic.sampler",
            "operator": "sampler",
            "cause": "transient",
            "business_impact": "a token is released that the model did not choose",
            "findings": [{"check": "semantic.sampler", "ratio": 3.5, "message": "sum is | 1.2"}],
        },
        call={"tensors": {"logits": {"shape": [1, 257], "dtype": "float32"}}},
        snapshot=Path("/node/journal/snapshots/x"),
        spans=[{"name": "decode", "start_ns": 1_000_000, "end_ns": 3_500_000, "status": "error"}],
        environment={"torch": "2.13", "replica": "r1"},
    )
    relay = Relay(config, evidence=lambda failure, _: evidence if failure == FAILURE else None)
    relay.start()
    relay.accept(
        "dingtalk", body(alert("TocsinSemanticFailure", priority="P1", operator="sampler"))
    )
    await delivered(relay)
    await relay.stop()
    (folder,) = (config.state / "reports").iterdir()
    assert folder.name.endswith("-TocsinSemanticFailure-sampler")
    page = (folder / "report.md").read_text()
    for part in (
        f"tocsin reproduce {FAILURE}",
        "a token is released that the model did not choose",
        "| semantic.sampler |",
        "sum is \\| 1.2",
        "| logits | [1, 257] | float32 |",
        "| decode | 2.50 | error |",
        "| torch | 2.13 |",
        "/node/journal/snapshots/x",
    ):
        assert part in page, part
    assert json.loads((folder / "record.json").read_text()) == dict(evidence.record)
    assert {path.name for path in folder.iterdir()} == {
        "report.md",
        "alert.json",
        "record.json",
        "call.json",
        "spans.json",
        "environment.json",
    }
    assert str(folder / "report.md") in stub.bodies("/dingtalk")[0]["markdown"]["text"]
    assert folder.stat().st_mode & 0o077 == 0


async def test_old_reports_make_room_for_new_ones(config: RelayConfig) -> None:
    """A storm of tickets must not fill the disk."""
    few = config.model_copy(update={"reports_max": 2})
    relay = Relay(few, evidence=lambda failure, _: Evidence(failure))
    relay.start()
    for number in range(4):
        relay.accept("slack", body(alert(f"A{number}", priority="P1")))
        await delivered(relay)
    await relay.stop()
    names = sorted(path.name for path in (few.state / "reports").iterdir())
    assert [name.split("-")[1] for name in names] == ["A2", "A3"]


async def test_what_was_accepted_survives_a_kill_and_is_delivered_by_the_next_process(
    config: RelayConfig, stub: Stub
) -> None:
    """The first relay is never started: as if it had been killed after its answer."""
    killed = Relay(config)
    accepted = killed.accept("webhook", body())
    relay = Relay(config)
    relay.start()
    await delivered(relay)
    await relay.stop()
    assert [one["id"] for one in stub.bodies("/webhook")] == [accepted.id]
    assert relay.undelivered() == []
    await killed.stop(grace_s=0.0)


async def test_dead_letters_are_sent_again_when_somebody_asks(
    config: RelayConfig, stub: Stub
) -> None:
    """Refused for good first, then the receiver is mended; each is delivered once."""
    stub.will_answer("/wecom", 200, {"errcode": 93000, "errmsg": "invalid webhook url"})
    counts: list[tuple[str, str]] = []
    relay = Relay(config, count=lambda kind, result: counts.append((kind, result)))
    relay.start()
    lost = relay.accept("wecom-robot", body())
    await delivered(relay)
    assert [letter.error for letter in relay.undelivered()] == [
        "errcode 93000: invalid webhook url"
    ]
    assert relay.health()["dead_letters"] == 1
    with pytest.raises(SpecError, match="no receiver 'fax'"):
        relay.redeliver("fax")
    assert relay.redeliver("slack") == []
    assert [letter.id for letter in relay.redeliver("wecom-robot")] == [lost.id]
    await delivered(relay)
    assert relay.redeliver() == []
    await relay.stop()
    assert len(stub.bodies("/wecom")) == 2
    assert counts == [("wecom_robot", "dead_letter"), ("wecom_robot", "ok")]
    assert relay.undelivered() == []


async def test_a_relay_that_stops_takes_nothing_more(config: RelayConfig) -> None:
    """Alertmanager sends it to the next one."""
    relay = Relay(config)
    relay.start()
    await relay.stop()
    with pytest.raises(CapacityError, match="stopping"):
        relay.accept("slack", body())


# --- over HTTP ---


@pytest.fixture
def client(config: RelayConfig) -> httpx.AsyncClient:
    relay = Relay(config)
    transport = httpx.ASGITransport(relay_app(relay))
    return httpx.AsyncClient(transport=transport, base_url="http://relay")


@pytest.mark.parametrize(
    ("path", "content", "status", "said"),
    [
        ("/alerts/slack", json.dumps(notification()), 202, "id"),
        ("/alerts/fax", json.dumps(notification()), 404, "expected one of dingtalk"),
        ("/alerts/slack", "{", 400, "body: "),
        ("/alerts/slack", json.dumps(notification(version="3")), 400, "version"),
        ("/alerts/slack", json.dumps({**notification(), "alerts": []}), 400, "alerts"),
        ("/alerts/slack", json.dumps({"version": "4"}), 400, "Field required"),
        ("/alerts/slack", json.dumps([]), 400, "body: "),
    ],
)
async def test_each_body_gets_its_answer(
    client: httpx.AsyncClient, path: str, content: str, status: int, said: str
) -> None:
    """202 only for what is on disk; what is not understood says where."""
    answer = await client.post(path, content=content)
    assert answer.status_code == status
    assert said in answer.text


async def test_a_newer_alertmanager_may_say_more(client: httpx.AsyncClient) -> None:
    """Fields that are not known are left aside, at both levels."""
    grown = notification({**alert(), "newField": 1}, notificationReason="x")
    assert (await client.post("/alerts/slack", json=grown)).status_code == 202


async def test_a_full_disk_is_told_to_alertmanager(
    config: RelayConfig, client: httpx.AsyncClient
) -> None:
    """503: it sends the notification again."""
    (config.state / "spool").rmdir()
    answer = await client.post("/alerts/slack", json=notification())
    assert answer.status_code == 503
    assert "takes no letter" in answer.json()["error"]


async def test_with_a_token_only_its_bearer_is_heard(config: RelayConfig, tmp_path: Path) -> None:
    """And health says nothing secret."""
    token = tmp_path / "relay-token"
    token.write_text("right\n")
    token.chmod(0o600)
    relay = Relay(config.model_copy(update={"token_file": token}))
    transport = httpx.ASGITransport(relay_app(relay))
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as http:
        for words in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic right"}):
            answer = await http.post("/alerts/slack", json=notification(), headers=words)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        right = {"authorization": "Bearer right"}
        answer = await http.post("/alerts/slack", json=notification(), headers=right)
        assert answer.status_code == 202
        health = (await http.get("/healthz")).json()
    assert health["status"] == "ok"
    assert health["receivers"]["slack"] == {"kind": "slack", "queued": 1, "dead": 0}
