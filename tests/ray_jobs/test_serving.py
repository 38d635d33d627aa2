"""Two checked replicas behind HTTP on a real Ray: killed, frozen, struck, switched, misused."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.ray_jobs.served import CHAT, LONG, TOKEN, Serving, wait_until
from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.chaos.faults.batch.malformed import KINDS, ServedModel
from tocsin.chaos.faults.batch.malformed import malformed as unit
from tocsin.core.faulting import Order
from tocsin.core.history import EventKind, Outcome
from tocsin.core.terms import Profile
from tocsin.ray_jobs.application import deploy
from tocsin.ray_jobs.cluster import Cluster, free_port
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.system import RaySystem

pytestmark = [
    pytest.mark.ray,
    # Ray leaves sockets and processes to the garbage collector, and warns of its own future.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    options = ServeOptions(
        path=str(path), model=str(path), profile=Profile.FULL, slots=4, pages=64, max_length=256
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOCSIN_STATE", str(tmp_path_factory.mktemp("node")))
        patch.setenv("TOCSIN_METRICS_PORT", "0")
        with Cluster(options.replicas):
            served = deploy(options, host="127.0.0.1", port=free_port(), token=TOKEN)
            system = RaySystem(served, tmp_path_factory.mktemp("cache"))
            yield Serving(served.url, options.served_name, system)
            system.close()


@pytest.fixture(autouse=True)
def _two_replicas(serving: Serving) -> None:
    """Each test begins with a whole fleet, whatever the one before did."""
    wait_until(lambda: len(serving.alive()) == 2, "two replicas")


async def test_a_stream_and_a_whole_answer_are_the_same_verified_tokens(serving: Serving) -> None:
    """And with checks on no token leaves without its verdict."""
    streamed = await serving.answer(max_tokens=12)
    whole = await serving.answer(max_tokens=12, stream=False)
    assert streamed.outcome is whole.outcome is Outcome.OK
    assert streamed.tokens == whole.tokens
    assert streamed.text == whole.text
    assert [chunk.index for chunk in streamed.chunks] == list(range(12))
    assert streamed.usage_tokens == whole.usage_tokens == 12
    text = serving.get("/metrics").text
    assert f'tocsin_unverified_tokens_total{{model="{serving.model}"}} 0.0' in text
    assert serving.get("/health").status_code == 200
    assert serving.get("/v1/models").json()["data"][0]["id"] == serving.model


async def test_a_killed_replica_loses_and_repeats_no_token(serving: Serving) -> None:
    """Killed in the middle of an answer, which goes on elsewhere as if nothing had happened."""
    golden = await serving.answer()
    since = serving.now()
    record, victim = None, ""
    async for record in serving.stream():
        if len(record.chunks) == 5 and not victim:
            victim = record.attempts[-1]
            os.kill(pid_of(serving, victim), signal.SIGKILL)
    assert record is not None
    assert victim
    assert record.outcome is Outcome.OK
    assert record.tokens == golden.tokens
    assert [chunk.index for chunk in record.chunks] == list(range(LONG))
    assert record.terminals == 1
    assert len(record.attempts) >= 2
    assert record.attempts[0] == victim
    wait_until(lambda: bool(serving.events(EventKind.REPLICA_DOWN, since)), "the alarm")
    assert serving.events(EventKind.REPLICA_DOWN, since)[0].replica == victim
    assert serving.events(EventKind.REQUEST_RESUMED, since)
    wait_until(lambda: len(serving.alive()) == 2, "a replacement")
    assert victim not in {replica.replica for replica in serving.alive()}


async def test_a_frozen_replica_is_passed_by_and_comes_back(serving: Serving) -> None:
    """A stopped process answers nothing and refuses nothing: only its heartbeat tells."""
    golden = await serving.answer()
    since = serving.now()
    record, victim = None, ""
    async for record in serving.stream():
        if len(record.chunks) == 5 and not victim:
            victim = record.attempts[-1]
            os.kill(pid_of(serving, victim), signal.SIGSTOP)
    try:
        assert record is not None
        assert record.tokens == golden.tokens
        assert record.terminals == 1
        assert record.attempts[0] == victim
        assert record.attempts[-1] != victim
    finally:
        os.kill(pid_of(serving, victim), signal.SIGCONT)
    stalled = serving.events(EventKind.REPLICA_STALLED, since)
    assert [event.replica for event in stalled] == [victim]
    wait_until(lambda: bool(serving.events(EventKind.REPLICA_RESUMED, since)), "its return")


def pid_of(serving: Serving, replica: str) -> int:
    return next(one.pid for one in serving.system.replicas() if one.replica == replica)


async def test_a_client_that_leaves_frees_its_slot(serving: Serving) -> None:
    """The engine must not go on for nobody."""
    stream = serving.stream()
    async for record in stream:
        if len(record.chunks) == 3:
            break
    await stream.aclose()  # type: ignore[attr-defined]
    wait_until(
        lambda: not any(one.stats["running"] for one in serving.alive()), "an idle fleet", 20.0
    )


async def test_a_poisoned_page_in_a_replica_is_seen_healed_and_changes_no_token(
    serving: Serving,
) -> None:
    """The way of a fault through Ray: order, evidence, alarm, repair."""
    golden = await serving.answer()
    since = serving.now()
    for number, replica in enumerate(serving.alive()):
        order = Order(f"poison@{number}", "kv.poisoned_page", 3, replica.step + 3, 30.0)
        serving.system.arm(replica.replica, order)
    wait_until(lambda: len(serving.system.orders()) == 2, "both orders")
    answers = await asyncio.gather(*(serving.answer() for _ in range(4)))
    assert {answer.tokens for answer in answers} == {golden.tokens}
    fired = [one for one in serving.system.orders().values() if one.evidence is not None]
    assert fired
    for status in fired:
        serving.system.disarm(status.occurrence)
    wait_until(
        lambda: all(serving.system.orders()[one.occurrence].state == "healed" for one in fired),
        "healing",
    )
    checks = {
        finding["check"]
        for event in serving.events(EventKind.CHECK_FAILED, since)
        for finding in event.data["findings"]
    }
    assert "state.kv_page_sum" in checks
    for number in range(2):
        serving.system.disarm(f"poison@{number}")


async def test_the_switchboard_reaches_every_replica_and_returns_by_itself(
    serving: Serving,
) -> None:
    """With the token only, with a reason, for a while; and it is in the audit log."""
    order = {"profile": "off", "ttl_s": 15.0, "reason": "a test"}
    path = "/health/checker_status"
    assert serving.post(path, order).status_code == 401
    assert serving.post(path, order, authorization="Bearer wrong").status_code == 401
    assert (
        serving.post(path, {**order, "ttl_s": -1}, authorization=f"Bearer {TOKEN}").status_code
        == 400
    )

    def profiles() -> set[str]:
        replicas = serving.get(path).json()["replicas"].values()
        boards = [one["switchboard"] for one in replicas]
        return {
            [board["profile"], *(o["profile"] for o in board["orders"])][-1] for board in boards
        }

    assert profiles() == {"full"}
    assert serving.post(path, order, authorization=f"Bearer {TOKEN}").status_code == 200
    wait_until(lambda: profiles() == {"off"}, "the switch")
    whole = serving.post(CHAT, serving.body(max_tokens=2, stream=False)).json()
    assert whole["tocsin"]["verified"] is False
    wait_until(lambda: profiles() == {"full"}, "its return")
    whole = serving.post(CHAT, serving.body(max_tokens=2, stream=False)).json()
    assert whole["tocsin"]["verified"] is True
    switched = [event.replica for event in serving.events(EventKind.SWITCHED)]
    assert {one.replica for one in serving.alive()} <= set(switched)


@pytest.mark.parametrize("kind", KINDS)
async def test_malformed_input_is_a_400_and_touches_nobody(serving: Serving, kind: str) -> None:
    """A precise message, the shape of an OpenAI error, and the neighbour's tokens unchanged."""
    golden = await serving.answer(max_tokens=24)
    neighbour = asyncio.ensure_future(serving.answer(max_tokens=24))
    body = unit.inject(kind, ServedModel(serving.model, 257, 256))
    response = await asyncio.to_thread(serving.post, "/v1/completions", body)
    assert response.status_code == 400
    assert "prompt" in response.json()["error"]["message"]
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert (await neighbour).tokens == golden.tokens


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", CHAT, 405), ("POST", "/metrics", 405)],
)
async def test_unknown_paths_and_methods_answer_as_openai_does(
    serving: Serving, method: str, path: str, status: int
) -> None:
    """JSON, not a page."""
    response = httpx.request(method, f"{serving.url}{path}", timeout=30.0)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("content", ["{", "[]", '"text"', ""])
async def test_a_body_that_is_no_json_object_is_a_400(serving: Serving, content: str) -> None:
    """Counted as rejected, like every other refusal."""
    before = rejected(serving)
    response = httpx.post(
        f"{serving.url}{CHAT}",
        content=content,
        headers={"content-type": "application/json"},
        timeout=30.0,
    )
    assert response.status_code == 400
    assert rejected(serving) == before + 1


def rejected(serving: Serving) -> float:
    lines = serving.get("/metrics").text.splitlines()
    return next(float(one.split()[-1]) for one in lines if 'outcome="rejected"' in one)


async def test_another_models_name_is_a_404(serving: Serving) -> None:
    """As OpenAI has it, with the name that is served."""
    response = serving.post(CHAT, serving.body(model="gpt-x"))
    assert response.status_code == 404
    assert serving.model in response.json()["error"]["message"]


async def test_an_answer_that_breaks_its_promised_schema_does_not_leave(serving: Serving) -> None:
    """A random model writes no JSON; what it wrote stays inside, the check is named."""
    since = serving.now()
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    response = serving.post(CHAT, serving.body(max_tokens=8, response_format=schema, stream=False))
    assert response.status_code == 502
    assert "structured_output" in response.json()["error"]["message"]
    wait_until(lambda: bool(serving.events(EventKind.CHECK_FAILED, since)), "the record")


async def test_a_stop_text_ends_the_answer_before_it(serving: Serving) -> None:
    """In a stream and in one piece."""
    golden = await serving.answer(max_tokens=40, stream=False)
    stop = golden.text[5:7]
    expected = golden.text.partition(stop)[0]
    for stream in (True, False):
        record = await serving.answer(max_tokens=40, stop=stop, stream=stream)
        assert record.text == expected
        assert record.finish_reason == "stop"


async def test_openai_chunks_have_what_clients_read(serving: Serving) -> None:
    """Role first, content after, a reason once, usage when asked for, [DONE] last."""
    body = serving.body(max_tokens=4, stream_options={"include_usage": True})
    lines = [line for line in serving.post(CHAT, body).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * 4 + ["length"]
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert chunks[-1]["tocsin"]["verified"] is True


def test_the_journal_folder_is_private() -> None:
    """Failure records may quote what users wrote."""
    import tempfile

    folder = Path(tempfile.gettempdir()) / f"tocsin-{os.getuid()}"
    assert folder.stat().st_mode & 0o077 == 0
