"""`/degrade` on a real Ray: every replica follows within a step, and comes back by itself."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.dashboards.relay.stubs import alert, notification
from tests.ray_jobs.served import TOKEN, Serving, wait_until
from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.core.history import Event, EventKind
from tocsin.ray_jobs.application import deploy
from tocsin.ray_jobs.cluster import Cluster, free_port
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.system import RaySystem

pytestmark = [
    pytest.mark.ray,
    # Ray leaves sockets and processes to the garbage collector, and warns of its own future.
    pytest.mark.filterwarnings("ignore"),
]

BEARER = {"authorization": f"Bearer {TOKEN}"}
ORDER = {"operator": "attention", "reason": "a look", "ttl_s": 600.0}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    options = ServeOptions(path=str(path), model=str(path), slots=4, pages=64, max_length=256)
    with Cluster(options.replicas):
        served = deploy(options, host="127.0.0.1", port=free_port(), token=TOKEN)
        system = RaySystem(served, tmp_path_factory.mktemp("cache"))
        yield Serving(served.url, options.served_name, system)
        system.close()


@pytest.fixture(autouse=True)
def _nothing_degraded(serving: Serving) -> Iterator[None]:
    """Each test begins and ends with the preferred backend everywhere."""
    wait_until(lambda: len(serving.alive()) == 2, "two replicas")
    yield
    httpx.delete(f"{serving.url}/degrade", headers=BEARER).raise_for_status()
    wait_until(lambda: orders_by_replica(serving) == [[], []], "the end of all orders")


def orders_by_replica(serving: Serving) -> list[list[tuple[str, str]]]:
    """Operator and backend of the orders that each living replica says it follows."""
    status = serving.get("/health/checker_status").json()["replicas"]
    return [
        [(one["operator"], one["backend"]) for one in heard["degradations"] or []]
        for heard in status.values()
    ]


async def test_an_order_reaches_every_replica_and_the_answers_say_so(serving: Serving) -> None:
    """The same tokens from the fallback, with the label; then everything is as before."""
    plain = await serving.answer(max_tokens=8)
    assert plain.degraded == ()
    answer = serving.post("/degrade", ORDER, **BEARER)
    assert answer.status_code == 200, answer.text
    assert answer.json()["accepted"][0]["operator"] == "attention"
    wait_until(
        lambda: orders_by_replica(serving) == [[("attention", "sdpa")]] * 2, "both replicas", 10.0
    )
    for _ in range(4):  # both replicas serve some of these
        degraded = await serving.answer(max_tokens=8)
        assert degraded.degraded == ("attention:sdpa",)
        assert degraded.tokens == plain.tokens
    taken = httpx.delete(f"{serving.url}/degrade?operator=attention", headers=BEARER).json()
    assert [one["reason"] for one in taken["taken_back"]] == ["a look"]
    wait_until(lambda: orders_by_replica(serving) == [[], []], "the way back")
    assert (await serving.answer(max_tokens=8)).degraded == ()


async def test_a_request_that_runs_changes_its_backend_in_the_middle(serving: Serving) -> None:
    """Within a step of the order: not with the next request, and no token is lost or repeated."""
    golden = await serving.answer(max_tokens=120)
    record, sent = None, False
    async for record in serving.stream(max_tokens=120):
        if len(record.chunks) == 10 and not sent:
            sent = True
            async with httpx.AsyncClient() as http:
                await http.post(f"{serving.url}/degrade", json=ORDER, headers=BEARER)
    assert record is not None
    assert record.tokens == golden.tokens
    assert record.degraded == ("attention:sdpa",)


async def test_an_order_is_in_force_everywhere_before_the_next_steps(
    serving: Serving, record_property: Callable[[str, object], None]
) -> None:
    """By long poll: milliseconds from the request to the breaker of each replica."""
    since, sent_ns = serving.now(), time.monotonic_ns()
    serving.post("/degrade", ORDER, **BEARER)

    def forced() -> list[Event]:
        found = serving.events(EventKind.BREAKER, since)
        return [event for event in found if event.data["after"] == "forced"]

    wait_until(lambda: len({event.replica for event in forced()}) == 2, "both breakers")
    took_ms = sorted((event.t_ns - sent_ns) / 1e6 for event in forced())
    print(f"\norder to breaker: {took_ms[0]:.1f} and {took_ms[-1]:.1f} ms")
    record_property("degrade_ms_max", took_ms[-1])
    assert took_ms[-1] < 2000


async def test_an_order_ends_by_itself(serving: Serving) -> None:
    """After its time and not before, although nobody says a word."""
    began_s = time.monotonic()
    serving.post("/degrade", {**ORDER, "ttl_s": 8.0}, **BEARER)
    wait_until(
        lambda: orders_by_replica(serving) == [[("attention", "sdpa")]] * 2, "both replicas", 7.5
    )
    wait_until(lambda: orders_by_replica(serving) == [[], []], "the end")
    assert time.monotonic() - began_s >= 7.9


async def test_alertmanager_s_own_body_is_an_order_and_repeated_it_is_still_one(
    serving: Serving,
) -> None:
    """The second arm of the degradation: what `webhook_configs` posts."""
    sent = notification(alert(operator="rope"), alert("TocsinBlind", operator=""))
    for _ in range(2):
        answer = serving.post("/degrade", sent, **BEARER)
        assert answer.status_code == 200
        assert [one["operator"] for one in answer.json()["accepted"]] == ["rope"]
        assert len(answer.json()["ignored"]) == 1
    wait_until(lambda: orders_by_replica(serving) == [[("rope", "")]] * 2, "both replicas")
    found = serving.get("/degrade").json()
    assert [one["order"]["reason"] for one in found["orders"]] == ["alert:TocsinOperatorFailing"]


async def test_every_order_is_in_the_audit_log_and_among_the_events(serving: Serving) -> None:
    """Who gave it, why, for how long; and who took it back."""
    since = serving.now()
    serving.post("/degrade", {**ORDER, "failure_id": "F7"}, **BEARER)
    serving.post("/degrade", {**ORDER, "ttl_s": 0}, **BEARER)
    audit = serving.get("/degrade").json()["audit"][-2:]
    assert [(one["actor"], one["reason"], one["ttl_s"]) for one in audit] == [
        ("api", "a look", 600.0),
        ("api", "a look", 0.0),
    ]
    assert audit[0]["failure_id"] == "F7"
    events = serving.events(EventKind.DEGRADE_ORDERED, since)
    assert [event.data["ttl_s"] for event in events] == [600.0, 0.0]


@pytest.mark.parametrize(
    ("headers", "body", "status", "said"),
    [
        ({}, ORDER, 401, "expected the bearer token"),
        ({"authorization": "Bearer wrong"}, ORDER, 401, "expected the bearer token"),
        (BEARER, {**ORDER, "operator": "fax"}, 400, "operator: found 'fax'"),
        (BEARER, {**ORDER, "backend": "flesh"}, 400, "expected one of flash, sdpa, math"),
        (BEARER, [], 400, "expected a degrade order"),
    ],
)
async def test_who_may_not_or_says_nonsense_changes_nothing(
    serving: Serving, headers: dict[str, str], body: Any, status: int, said: str
) -> None:
    """401 and 400, each with one line; nobody is degraded."""
    for method in ("POST",) if body != ORDER else ("POST", "DELETE"):
        answer = httpx.request(method, f"{serving.url}/degrade", json=body, headers=headers)
        assert answer.status_code == status
        assert said in answer.json()["error"]["message"]
    assert serving.get("/degrade").json()["orders"] == []
