"""The Serve deployment that runs a checked engine: one model, one stepping thread, one armoury."""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import ray
from ray import serve

from tocsin.chaos import notes
from tocsin.chaos.notes import memory_note
from tocsin.chaos.suffering import run_out_of_memory, start
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.switchboard import SwitchOrder
from tocsin.core.clock import SystemClock
from tocsin.core.errors import CapacityError, SpecError
from tocsin.core.faulting import OrderStatus
from tocsin.core.history import Event, EventKind
from tocsin.ray_jobs.attempts import own_id
from tocsin.ray_jobs.board_actor import ensure_board
from tocsin.ray_jobs.clocks import stamp
from tocsin.ray_jobs.configured import parse_settings, settings_of, told
from tocsin.ray_jobs.degradations import Follower
from tocsin.ray_jobs.devices import build_facts, choose_device, whereabouts
from tocsin.ray_jobs.fleet import WORKER
from tocsin.ray_jobs.hub import ensure_hub
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.places import journal_folder, node_folder, spans_folder
from tocsin.ray_jobs.replica_process import end_soon, prepare
from tocsin.ray_jobs.stack import Stack, build
from tocsin.ray_jobs.starting import start_told
from tocsin.ray_jobs.stepper import Stepper, reading
from tocsin.ray_jobs.tracing.pipeline import KEPT_PER_S, Tracing
from tocsin.ray_jobs.tracing.worker import WorkerTraces
from tocsin.ray_jobs.wire import (
    event_to_wire,
    order_from_wire,
    request_from_wire,
)
from tocsin.ray_jobs.worker_meter import WorkerMeter

BEAT_S = 0.2
_RECONFIGURE_S = 60.0
_FAULT_EVENTS = {
    "fired": EventKind.FAULT_FIRED,
    "healed": EventKind.FAULT_HEALED,
    "unhealed": EventKind.FAULT_HEALED,
    "expired": EventKind.FAULT_DISARMED,
    "disarmed": EventKind.FAULT_DISARMED,
}


class Outbox:
    """Events and order statuses on their way to the board; implements `core.protocols.Sink`.

    Clients know a request by its own id; the suffix that tells its attempts apart stays inside.
    """

    def __init__(self, replica: str) -> None:
        """Nothing waits yet; `filled` wakes the one who sends."""
        self.filled = threading.Event()
        self._replica = replica
        self._events: deque[Event] = deque(maxlen=10_000)
        self._statuses: deque[OrderStatus] = deque(maxlen=10_000)

    def emit(self, event: Event) -> None:
        """Take one event."""
        data = dict(event.data)
        if "request_ids" in data:
            data["request_ids"] = [own_id(one) for one in data["request_ids"]]
        request_id = own_id(event.request_id)
        self._events.append(replace(event, request_id=request_id, replica=self._replica, data=data))
        self.filled.set()

    def report(self, status: OrderStatus) -> None:
        """Take one change of an order's state; it is an event as well."""
        if status.evidence is not None:
            requests = tuple(own_id(one) for one in status.evidence.requests)
            status = replace(status, evidence=replace(status.evidence, requests=requests))
        self._statuses.append(status)
        kind = _FAULT_EVENTS.get(status.state)
        if kind is not None:
            data = asdict(status)
            self._events.append(
                Event(kind, time.monotonic_ns(), self._replica, status.fired_step, data=data)
            )
        self.filled.set()

    def drain(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Everything that waits, as it travels."""
        self.filled.clear()
        events, statuses = [], []
        while self._events:
            events.append(event_to_wire(self._events.popleft()))
        while self._statuses:
            statuses.append(asdict(self._statuses.popleft()))
        return events, statuses


@serve.deployment(name=WORKER)
class Worker:
    """One replica: serves token streams, beats to the board, does what the board says."""

    def __init__(self, options: ServeOptions) -> None:
        """Load the model; Serve sends no traffic before this returns.

        Raises:
            Exception: whatever kept the stack from being built; the board is told of it.
        """
        prepare()
        self.replica = serve.get_replica_context().replica_id.unique_id
        with start_told(self.replica), start(node_folder(), options.folder()) as weights:
            at = options if weights == options.folder() else replace(options, path=str(weights))
            self._start(at)

    def _start(self, options: ServeOptions) -> None:
        self._outbox = Outbox(self.replica)
        self._tracing = Tracing(spans_folder(), "worker", replica=self.replica, per_s=KEPT_PER_S)
        self._traces = WorkerTraces(self._tracing, self._outbox, self._outbox.report)
        self._options = options
        self._device = choose_device(options.device)
        self._journal = journal_folder() / f"failures-{self.replica}.jsonl"
        self._where = whereabouts()
        ensure_hub(self._where["node"])
        self._meter = WorkerMeter(node_folder(), options.served_name, self.replica, SystemClock())
        self._stepper = Stepper(self._build, self._died, self._meter.turned)
        self._stepper.ready.wait()
        if self._stepper.failed is not None:
            raise self._stepper.failed
        self._about = {
            "device": self._device,
            "build": build_facts(self._device),
            "weights": self._stepper.stack.weights.digest(),
            "settings": told(settings_of(options)),
        }
        self._board = ensure_board()
        self._life = ""
        self._applied: set[tuple[str, Any]] = set()
        self._follower = Follower()
        self._lease_serial = 0
        for target in (self._beat_for_ever, self._obey_for_ever):
            threading.Thread(target=target, daemon=True).start()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Go on with other settings of the checker: between two steps, and no request notices.

        Serve calls it before the first request, and again when the deployment's config changes.

        Args:
            user_config: of `checker.settings.CheckerSettings`.

        Raises:
            SpecError: it is wrong. Serve shows the line and replaces the replica.
        """
        settings = parse_settings(user_config, "worker: user_config")
        applied = self._stepper.ask(partial(_configure, settings=settings))
        await asyncio.wait_for(asyncio.wrap_future(applied), _RECONFIGURE_S)
        self._about = {**self._about, "settings": told(settings)}
        self._outbox.filled.set()

    async def generate(self, data: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve one request: `hello`, tokens, `finish`; or one `rejected`; `trace` in between."""
        yield {"type": "hello", "replica": self.replica}
        request, events = self._stepper.open(request_from_wire(data))
        try:
            async for message in self._traces.messages(request, events):
                yield message
        except SpecError as error:
            yield {"type": "rejected", "status": 400, "message": str(error)}
        except CapacityError as error:
            yield {"type": "rejected", "status": 429, "message": str(error)}

    def status(self) -> dict[str, Any]:
        """What the checker of this replica says of itself."""
        return {"replica": self.replica, **self._stepper.stack.gate.status()}

    def check_health(self) -> None:
        """Serve replaces the replica when this raises.

        Raises:
            Exception: what ended the stepping thread.
        """
        if self._stepper.failed is not None:
            raise self._stepper.failed

    def __del__(self) -> None:
        """Serve takes the replica down: it is not a lost one."""
        meter = getattr(self, "_meter", None)  # there is none when the constructor failed
        if meter is not None:
            meter.close()
            self._tracing.close(1.0)
        stepper = getattr(self, "_stepper", None)
        if stepper is not None and stepper.failed is None:
            stepper.stack.gate.journal.close()  # merged rows and snapshots that are under way

    def _build(self) -> Stack:
        return build(
            self._options,
            replica=self.replica,
            sink=self._traces,
            report=self._traces.report,
            journal=self._journal,
            device=self._device,
            recorded=self._meter.recorded,
            trace_of=self._traces.trace_of,
        )

    def _died(self, error: Exception) -> None:
        self._outbox.filled.set()
        end_soon(f"worker {self.replica}: the engine stopped: {type(error).__name__}: {error}")

    def _beat_for_ever(self) -> None:
        while True:
            self._outbox.filled.wait(BEAT_S)
            self._suffer()
            events, statuses = self._outbox.drain()
            beat = {
                "pid": os.getpid(),
                **self._where,
                **self._about,
                "stamp": stamp(),
                "events": events,
                "statuses": statuses,
                "step": self._stepper.stack.engine.stats().step,
                "spans": self._tracing.counts(),
                **reading(self._stepper.stack),
            }
            self._board.beat.remote(self.replica, beat)
            time.sleep(0.02)  # at most fifty beats a second, however much happens

    def _suffer(self) -> None:
        """Do what a chaos actor of this node wants of this process, on the stepping thread."""
        folder, pid = node_folder(), os.getpid()
        note = notes.read(folder, memory_note(pid))
        if note is not None:
            notes.remove(folder, memory_note(pid))
            self._stepper.call(lambda stack: run_out_of_memory(folder, pid, note))

    def _obey_for_ever(self) -> None:
        revision = -1
        while True:
            try:
                wanted = ray.get(self._board.poll.remote(self.replica, revision), timeout=15.0)
            except ray.exceptions.RayError:
                time.sleep(0.5)  # without a board no lease is renewed: what is armed runs out
                self._find_board()
                continue
            if wanted["life"] != self._life:  # another board counts from one again
                self._life = wanted["life"]
                self._stepper.call(self._forget_serials)
            revision = wanted["revision"]
            self._stepper.call(partial(self._apply, wanted=wanted))

    def _find_board(self) -> None:
        """The board may have been made anew, by Ray or by whoever ended the old one."""
        try:
            self._board = ensure_board()
        except ray.exceptions.RayError:
            return  # nobody can make one now; it is looked for again

    def _forget_serials(self, stack: Stack) -> None:
        self._applied = {one for one in self._applied if one[0] != "switch"}
        self._lease_serial = 0

    def _apply(self, stack: Stack, wanted: dict[str, Any]) -> None:
        """Do what is new; runs on the stepping thread between two steps."""
        lease = wanted["lease"]
        for data in wanted["orders"]:
            if self._is_new("order", data["occurrence"]):
                stack.armoury.arm(order_from_wire(data))
        if lease["serial"] != self._lease_serial:
            self._lease_serial = lease["serial"]
            stack.armoury.renew(lease["ttl_s"])
        for occurrence in wanted["disarmed"]:
            if self._is_new("disarm", occurrence):
                stack.armoury.disarm(occurrence)
        self._follower.follow(wanted["degradations"], stack.gate.degrader)
        for switch in wanted["switches"]:
            if self._is_new("switch", switch["serial"]):
                order = {**switch["order"], "ttl_s": max(switch["left_s"], 0.001)}
                stack.switchboard.switch(SwitchOrder(**order))

    def _is_new(self, what: str, key: Any) -> bool:
        if (what, key) in self._applied:
            return False
        self._applied.add((what, key))
        return True


def _configure(stack: Stack, settings: CheckerSettings) -> None:
    stack.gate.apply(settings)
