"""What clients do on purpose: each act happens, is shown and ends, and one that did not is told."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.chaos.experiments import small
from tests.chaos.fake_system import FakeSystem
from tocsin.chaos.attribution import attribute
from tocsin.chaos.case import Case, OccurrenceRecord
from tocsin.chaos.clients import Acted, act
from tocsin.chaos.contract import faults, properties
from tocsin.chaos.load import Load, load_prompts
from tocsin.chaos.plan import Occurrence, make_plan
from tocsin.chaos.spec_file import parse_experiment
from tocsin.core.clock import SystemClock
from tocsin.core.history import Event, EventKind, Outcome, RequestRecord
from tocsin.core.system import LoadRequest
from tocsin.ray_jobs.sim.strikes import why_not_simulated

PROMPTS = load_prompts("builtin/golden-24", canaries=True)
KINDS = (
    "client.abort_storm",
    "client.duplicate_submit",
    "client.slow_consumer",
    "load.thundering_herd",
)


@dataclass(slots=True)
class Service(FakeSystem):
    """A fake that has a door, remembers keys, and drops who reads slowly.

    Attributes:
        room: honest requests that are let in together.
        wedged_after: further requests of the fault itself are not taken.
        remembers: whether a key is executed once.
    """

    room: int = 1000
    wedged_after: int = 10**9
    remembers: bool = True
    inside: int = 0
    keys: dict[str, str] = field(default_factory=dict)
    sent_requests: list[LoadRequest] = field(default_factory=list)

    async def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        self.sent_requests.append(request)
        if request.slow_for_s:
            yield self._dropped(request)
            return
        own = sum(one.request_id.startswith("it@0") for one in self.sent_requests)
        wedged = own > self.wedged_after and request.request_id.startswith("it@0")
        if wedged or self.inside >= self.room:
            yield self._away(request)
            return
        self.inside += 1
        try:
            first = self.keys.setdefault(request.idempotency_key, request.request_id)
            again = bool(request.idempotency_key) and first != request.request_id
            async for record in FakeSystem.send(self, request):
                record.replayed = self.remembers and again
                yield record
        finally:
            self.inside -= 1

    def _away(self, request: LoadRequest) -> RequestRecord:
        now_ns = self.clock.now_ns()
        record = RequestRecord(request.request_id, request.prompt_id, now_ns, request.stream, 8)
        record.http_status, record.outcome, record.terminals = 429, Outcome.FAIL, 1
        record.retry_after, record.error, record.t_end_ns = "0", "come again in 0 s", now_ns + 1
        return record

    def _dropped(self, request: LoadRequest) -> RequestRecord:
        now_ns = self.clock.now_ns()
        record = RequestRecord(request.request_id, "", now_ns, stream=True, max_new_tokens=8)
        record.malformed, record.http_status, record.terminals = request.malformed, 200, 1
        record.outcome, record.error, record.t_end_ns = Outcome.FAIL, "was not read", now_ns + 1
        self.log.append(
            Event(EventKind.CLIENT_DROPPED, now_ns, "gateway", request_id=request.request_id)
        )
        return record


@dataclass
class Scene:
    """A load under way, and one fault of the clients."""

    kind: str
    service: Service = field(default_factory=Service)
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fault = {
            "id": "it",
            "kind": self.kind,
            "params": self.params,
            "when": {"clock": "request", "at": [4]},
            "expect": {"recover_within": "300ms"},
        }
        workload = {"concurrency": 6, "abort_ratio": 0.0, "stream_ratio": 1.0}
        self.spec = parse_experiment(small(faults=[fault], workload=workload))
        self.planned: Occurrence = make_plan(self.spec).occurrences[0]
        self.load = Load(self.spec, self.service, PROMPTS, SystemClock(), more=lambda: self.busy)
        self.busy = True

    async def play(self) -> Acted:
        """The load, and the fault in the middle of it."""
        running = asyncio.ensure_future(self.load.run())
        acted = await act(self.planned, self.load, {})
        self.busy = False
        await running
        return acted

    def case(self, acted: Acted) -> Case:
        """What is judged afterwards."""
        record = OccurrenceRecord(
            self.planned,
            "client",
            acted.state,
            fired_ns=acted.fired_ns,
            healed_ns=acted.healed_ns,
            evidence=acted.evidence,
        )
        return Case(
            spec=self.spec,
            plan=make_plan(self.spec),
            facts={},
            records=tuple(self.load.records.values()),
            requests=self.load.requests,
            events=tuple(self.service.log),
            golden={},
            certificate={},
            occurrences=(record,),
            prompts=PROMPTS,
        )


@pytest.mark.parametrize("kind", KINDS)
async def test_each_act_is_shown_seen_by_its_detector_and_over(kind: str) -> None:
    """Fired with evidence, healed by a fresh request, and the alarm is the one that it expects."""
    scene = Scene(kind)
    acted = await scene.play()
    assert acted.state == "healed", acted.error
    assert acted.evidence is not None
    assert acted.evidence.fired
    assert 0 < acted.fired_ns <= acted.healed_ns
    if kind == "load.thundering_herd":  # sixty more find room here
        assert attribute(scene.case(acted)).detections == ()
        return
    assert attribute(scene.case(acted)).first_expected("it@0") is not None


SENT = {
    "client.abort_storm": 0,
    "client.duplicate_submit": 3,
    "client.slow_consumer": 1,
    "load.thundering_herd": 60,
}
"""Requests of its own that each sends before anybody probes."""


@pytest.mark.parametrize("kind", KINDS)
async def test_without_a_fresh_answer_nothing_is_healed(kind: str) -> None:
    """`heal_verify` can say no: the service takes nothing more once the act is over."""
    acted = await Scene(kind, Service(wedged_after=SENT[kind])).play()
    assert acted.fired_ns
    assert acted.state == "unhealed"
    assert "not well again" in acted.error


@pytest.mark.parametrize("ratio", [0.3, 1.0])
async def test_a_storm_cuts_the_share_that_it_was_told_and_frees_them_all(ratio: float) -> None:
    """Cancelled for their clients, freed by their replicas, and the others end whole."""
    scene = Scene("client.abort_storm", params={"ratio": ratio, "streams_min": 5})
    acted = await scene.play()
    assert acted.evidence is not None
    cut = set(acted.evidence.requests)
    assert len(cut) == max(1, round(ratio * int(acted.evidence.before.split()[0])))
    outcomes = {name: one.outcome for name, one in scene.load.records.items()}
    assert {name for name, end in outcomes.items() if end is Outcome.CANCELLED} == cut
    assert set(outcomes.values()) == {Outcome.CANCELLED, Outcome.OK} - (
        set() if len(outcomes) > len(cut) else {Outcome.OK}
    )
    freed = {one.request_id for one in scene.service.log if one.kind is EventKind.PAGES_FREED}
    assert freed == cut
    assert all(one.running == 0 for one in scene.service.fleet)


async def test_a_storm_without_streams_has_not_fired() -> None:
    """It waits for them as long as there is a load, and then says what it found."""
    scene = Scene("client.abort_storm", params={"streams_min": 50})
    scene.busy = False
    acted = await scene.play()
    assert (acted.state, acted.fired_ns) == ("disarmed", 0)
    assert "still reads" in acted.error


async def test_copies_go_out_together_and_afterwards_under_one_key() -> None:
    """Two while the first is under way, one later: one body, and a name of its own for each."""
    scene = Scene("client.duplicate_submit")
    await scene.play()
    keyed = [one for one in scene.service.sent_requests if one.idempotency_key]
    assert len({one.request_id for one in keyed}) == 3
    assert len({one.idempotency_key for one in keyed}) == 1
    assert keyed[0].body == keyed[1].body == keyed[2].body
    records = [scene.load.records[one.request_id] for one in keyed]
    assert records[1].t_invoke_ns < records[0].t_end_ns <= records[2].t_invoke_ns


async def test_a_service_that_forgets_keys_is_not_seen_to_know_them() -> None:
    """Each copy was executed: no detector speaks, and the property says why."""
    scene = Scene("client.duplicate_submit", Service(remembers=False))
    case = scene.case(await scene.play())
    assert attribute(case).first_expected("it@0") is None
    verdict = properties()["exec.idempotent"].judge(case)
    assert str(verdict.conclusion) == "fail"
    assert "3 of 3 answers" in verdict.violations[0].message


async def test_a_crowd_is_turned_away_comes_again_once_and_no_more() -> None:
    """Sixty at once through a door for ten: who was told to come again does so one time."""
    scene = Scene("load.thundering_herd", Service(room=10))
    acted = await scene.play()
    assert acted.evidence is not None
    sent = len(acted.evidence.requests)
    assert 60 < sent <= 120
    assert "told to come again" in acted.evidence.after
    assert attribute(scene.case(acted)).first_expected("it@0") is not None


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("client.abort_storm", {"ratio": 0.1}),
        ("client.duplicate_submit", {"copies": 1}),
        ("client.slow_consumer", {"duration_s": 0}),
        ("load.thundering_herd", {"factor": 1000}),
    ],
)
async def test_parameters_out_of_range_are_refused_in_words(
    kind: str, params: dict[str, Any]
) -> None:
    """Nothing is done, and the record says what was expected."""
    acted = await Scene(kind, params=params).play()
    assert (acted.state, acted.evidence) == ("disarmed", None)
    assert "expected" in acted.error


@pytest.mark.parametrize("kind", KINDS)
def test_what_clients_do_is_not_simulated_and_the_reason_is_said(kind: str) -> None:
    """A simulation has no connections."""
    assert "connections" in why_not_simulated(faults()[kind], engine=True)
