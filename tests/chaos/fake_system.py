"""A system under test in one process: it answers from golden and misbehaves as it is told to."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.chaos.contract import faults
from tocsin.chaos.properties.alert.routing import ROUTES
from tocsin.core.clock import SystemClock
from tocsin.core.draw import draw_below, draw_unit
from tocsin.core.errors import EnvironmentFault
from tocsin.core.faulting import Evidence, Order, OrderStatus
from tocsin.core.history import Chunk, Event, EventKind, Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer, HealthReading, LoadRequest, ReplicaInfo
from tocsin.core.terms import Priority

TOKEN_S = 0.002
_SERVICE = {
    "service.actor_down": EventKind.REPLICA_DOWN,
    "service.heartbeat": EventKind.REPLICA_STALLED,
    "service.backend_error": EventKind.BACKEND_ERROR,
    "service.straggler": EventKind.REPLICA_SLOW,
    "service.clock": EventKind.CLOCK_MOVED,
    "service.start": EventKind.START_FAILED,
    "service.control_plane": EventKind.CONTROL_DOWN,
    "service.latency": EventKind.ROAD_SLOW,
    "service.reachable": EventKind.ROAD_LOST,
    "service.connection": EventKind.CONNECTION_BROKEN,
}


def golden_answer(prompt_id: str, length: int) -> GoldenAnswer:
    """The answer of the pretended model: it depends on the prompt's id alone."""
    tokens = tuple(draw_below(50_000, 1, prompt_id, i) for i in range(length))
    margins = tuple(0.5 + draw_unit(2, prompt_id, i) for i in range(length))
    text = "".join(f" t{token}" for token in tokens)
    crcs = tuple(draw_below(2**32, 3, prompt_id, i) for i in range(length))
    return GoldenAnswer(prompt_id, tokens, margins, tokens, text, "length", crcs)


@dataclass(slots=True)
class Misbehaviour:
    """What goes wrong, by kind of fault; all empty: nothing does.

    Attributes:
        never_fires, no_evidence, undetected, unhealed: kinds of fault.
        corrupts: kinds whose injection silently changes a token of every running answer.
        labels_wrong: answers carry a label that no event explains.
        mute_after: no request makes progress once this many were sent.
        refuses_describe: the system cannot be reached.
        answers_malformed: malformed requests are served like others.
        false_alarms: alarms that belong to no fault, one at each page audit.
        lies_about_health: /health says ok whatever happens.
        leaks_files: open files of a replica more, for each request that it served.
        holds_cancelled: the pages of a cancelled request are never told to be free.
        alerts_nobody: no alert is ever sent.
        wrong_logits: the numbers behind the tokens are others after a fault has fired.
    """

    never_fires: frozenset[str] = frozenset()
    no_evidence: frozenset[str] = frozenset()
    undetected: frozenset[str] = frozenset()
    unhealed: frozenset[str] = frozenset()
    corrupts: frozenset[str] = frozenset()
    mute_after: int | None = None
    refuses_describe: bool = False
    answers_malformed: bool = False
    false_alarm: bool = False
    warmup_wrong: bool = False
    golden_takes_s: float = 0.0
    lies_about_health: bool = False
    leaks_files: int = 0
    holds_cancelled: bool = False
    alerts_nobody: bool = False
    wrong_logits: bool = False


@dataclass(slots=True)
class FakeReplica:
    replica: str
    pid: int = 0
    alive: bool = True
    step: int = 0
    running: int = 0
    served: int = 0
    corrupt_from: int | None = None
    node: str = "node"


@dataclass(slots=True)
class FakeSystem:
    """Implements `core.system.System`, and tells all that a system may tell."""

    replicas_wanted: int = 2
    wrong: Misbehaviour = field(default_factory=Misbehaviour)
    clock: SystemClock = field(default_factory=SystemClock)
    fleet: list[FakeReplica] = field(default_factory=list)
    book: dict[str, OrderStatus] = field(default_factory=dict)
    given: dict[str, tuple[str, Order]] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)
    renewed: int = 0
    sent: int = 0
    heal_after_ns: int = 30_000_000
    observes: tuple[str, ...] = ("health", "resources", "frees", "alerts", "logits")
    _born: int = 0
    _token_ns: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        for _ in range(self.replicas_wanted):
            self._bear()

    def _bear(self) -> None:
        self.fleet.append(FakeReplica(f"replica-{self._born}"))
        self._born += 1

    def describe(self) -> dict[str, Any]:
        if self.wrong.refuses_describe:
            raise EnvironmentFault("ray: 127.0.0.1:1 does not answer; start it, or unset it")
        return {
            "engine": "fake",
            "model": "echo",
            "profile": "full",
            "vocab_size": 50_000,
            "max_length": 128,
        }

    def replicas(self) -> list[ReplicaInfo]:
        with self._lock:
            return [
                ReplicaInfo(
                    one.replica,
                    one.pid,
                    one.node,
                    one.alive,
                    one.step,
                    self.clock.now_ns(),
                    {
                        "pages_total": 8,
                        "pages_free": 8,
                        "pages_used": 0,
                        "pages_cached": 0,
                        "pages_quarantined": 0,
                        "running": one.running,
                        "waiting": 0,
                        "resources": {
                            "rss_bytes": 2**30,
                            "fds": 40 + one.served * self.wrong.leaks_files,
                            "threads": 20,
                        },
                    },
                )
                for one in self.fleet
            ]

    def health(self) -> HealthReading:
        fresh = self.clock.now_ns() - self._token_ns < 1_000_000_000
        ok = fresh or self.wrong.lies_about_health
        return HealthReading(health_ok=ok, checker_ok=True, status=200 if ok else 503)

    def golden(self, prompts: Sequence[LoadRequest]) -> dict[str, GoldenAnswer]:
        self.clock.sleep(self.wrong.golden_takes_s)
        return {one.prompt_id: golden_answer(one.prompt_id, one.max_new_tokens) for one in prompts}

    def certificate(self) -> dict[str, Any]:
        return {"bit_exact": True, "tau": 1e-3, "cases": 12}

    def arm(self, replica: str, order: Order) -> None:
        with self._lock:
            self.given[order.occurrence] = (replica, order)
            self.book[order.occurrence] = OrderStatus(order.occurrence, "armed")

    def strike(self, replica: str, order: Order) -> None:
        self.arm(replica, order)
        with self._lock:
            if order.kind in self.wrong.never_fires:
                return
            self._fire(order.occurrence)
            if order.kind in ("actor.kill", "pod.delete"):
                victim = next(one for one in self.fleet if one.replica == replica)
                victim.alive = False
                self._bear()

    def renew(self, ttl_s: float) -> None:
        self.renewed += 1

    def disarm(self, occurrence: str) -> None:
        with self._lock:
            status = self.book[occurrence]
            if status.state == "armed":
                self.book[occurrence] = replace(status, state="disarmed")

    def orders(self) -> dict[str, OrderStatus]:
        with self._lock:
            self._advance()
            return dict(self.book)

    def events(self, since: int) -> tuple[int, list[Event]]:
        with self._lock:
            return len(self.log), self.log[since:]

    def close(self) -> None:
        pass

    async def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        record = RequestRecord(
            request.request_id,
            request.prompt_id,
            self.clock.now_ns(),
            request.stream,
            request.max_new_tokens,
            malformed=request.malformed,
        )
        if request.malformed:
            await asyncio.sleep(TOKEN_S)
            yield self._turn_away(record)
            return
        self.sent += 1
        while self.wrong.mute_after is not None and self.sent > self.wrong.mute_after:
            await asyncio.sleep(0.05)
        golden = golden_answer(request.prompt_id, request.max_new_tokens)
        replica = self._choose(record)
        try:
            for index, token in enumerate(golden.tokens):
                await asyncio.sleep(TOKEN_S)
                with self._lock:
                    if not replica.alive:
                        replica.running -= 1
                        replica = self._choose(record)
                    replica.step += 1
                    self._advance()
                wrong = replica.corrupt_from is not None and replica.step >= replica.corrupt_from
                wrong = wrong or (self.wrong.warmup_wrong and request.request_id.startswith("w"))
                now_ns = self._token_ns = self.clock.now_ns()
                record.t_first_ns = record.t_first_ns or now_ns
                if index == 1:
                    self._tell_logits(replica, record, golden)
                record.chunks.append(Chunk(now_ns, index, token + wrong, f" t{token}"))
                record.http_status = 200
                yield record
            record.text = golden.text
            record.usage_tokens = len(record.chunks)
            record.finish_reason = "length"
            record.outcome, record.terminals = Outcome.OK, 1
            record.t_end_ns = self.clock.now_ns()
            yield record
        finally:
            replica.running -= 1
            replica.served += 1
            if record.outcome is Outcome.OPEN and not self.wrong.holds_cancelled:
                data = {"pages": 1, "steps": 1}
                self._tell(EventKind.PAGES_FREED, replica.replica, record.request_id, **data)

    def _choose(self, record: RequestRecord) -> FakeReplica:
        with self._lock:
            alive = [one for one in self.fleet if one.alive]
            chosen = min(alive, key=lambda one: one.running)
            chosen.running += 1
            record.attempts = (*record.attempts, chosen.replica)
            return chosen

    def _tell_logits(
        self, replica: FakeReplica, record: RequestRecord, golden: GoldenAnswer
    ) -> None:
        crc = golden.logit_crcs[1] ^ (self.wrong.wrong_logits and bool(self.book))
        self._tell(EventKind.LOGITS, replica.replica, record.request_id, index=1, crc=crc)

    def _tell(self, kind: EventKind, replica: str, request_id: str, **data: Any) -> None:
        event = Event(kind, self.clock.now_ns(), replica, request_id=request_id, data=data)
        with self._lock:
            self.log.append(event)

    def _turn_away(self, record: RequestRecord) -> RequestRecord:
        record.t_end_ns = self.clock.now_ns()
        record.terminals = 1
        if self.wrong.answers_malformed:
            record.http_status, record.outcome = 200, Outcome.OK
            record.finish_reason = "length"
        else:
            record.http_status, record.outcome = 400, Outcome.FAIL
            record.error = "prompt: holds what it must not"
        return record

    def _advance(self) -> None:
        """Fire what is due, heal what has fired for a while."""
        now_ns = self.clock.now_ns()
        for occurrence, (name, order) in self.given.items():
            status = self.book[occurrence]
            replica = next((one for one in self.fleet if one.replica == name), None)
            if status.state == "armed" and replica is not None and replica.alive:
                due = replica.step >= order.after_step and order.kind not in self.wrong.never_fires
                if due and not faults()[order.kind].scope.alone:
                    self._fire(occurrence)
            elif status.state == "fired" and now_ns - status.fired_ns > self.heal_after_ns:
                state = "unhealed" if order.kind in self.wrong.unhealed else "healed"
                self.book[occurrence] = replace(
                    status, state=state, healed_ns=now_ns if state == "healed" else 0
                )
                if replica is not None:
                    replica.corrupt_from = None

    def _fire(self, occurrence: str) -> None:
        name, order = self.given[occurrence]
        replica = next((one for one in self.fleet if one.replica == name), None)
        now_ns = self.clock.now_ns()
        after = "0" if order.kind in self.wrong.no_evidence else "1"
        self.book[occurrence] = replace(
            self.book[occurrence],
            state="fired",
            evidence=Evidence("a place", "0", after),
            fired_ns=now_ns,
            fired_step=replica.step if replica is not None else -1,
        )
        if order.kind in self.wrong.corrupts and replica is not None:
            replica.corrupt_from = replica.step
        if order.kind not in self.wrong.undetected:
            incident = self._alarm(name, faults()[order.kind].expect[0])
            self._alert(faults()[order.kind].priority, incident)
        if self.wrong.false_alarm:
            self._alarm("replica-nobody", "numerical.finite")

    def _alert(self, priority: Priority, incident: str) -> None:
        if not self.wrong.alerts_nobody:
            told = {"alert": "fake", "priority": str(priority), "route": ROUTES[priority]}
            links = {"incident": incident, "run": "fake-run", "repro": f"repro/{incident}"}
            self._tell(EventKind.ALERT_SENT, "board", "", **told, **links, result="ok")

    def _alarm(self, replica: str, detector: str) -> str:
        """Raise it; returns the id of the failure."""
        kind = _SERVICE.get(detector, EventKind.CHECK_FAILED)
        data: dict[str, Any] = {"failure_id": f"F{len(self.log)}"}
        if kind is EventKind.CHECK_FAILED:
            data["findings"] = [{"check": detector, "priority": "P0"}]
        self.log.append(Event(kind, self.clock.now_ns(), replica, data=data))
        return str(data["failure_id"])
