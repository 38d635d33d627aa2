"""A served model in a process of its own, in real time and without Ray, for others to break.

Replicas, engines and the armoury with its leases are those of the simulation; here they run on
the real clock, and whoever breaks them is another process that speaks to them over a socket.
"""

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from torch import nn

from tocsin.chaos.spec import Experiment
from tocsin.core.clock import SystemClock
from tocsin.core.errors import EnvironmentFault
from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.history import Event, Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer, LoadRequest, ReplicaInfo
from tocsin.ray_jobs.sim.model import sim_model
from tocsin.ray_jobs.sim.replica import Pace
from tocsin.ray_jobs.sim.system import SimSystem
from tocsin.ray_jobs.stack import Stack

_OPEN = ("armed", "fired", "unhealed")
_PACE = Pace(step_s=0.01, hop_s=0.001)


@dataclass(frozen=True, slots=True)
class Armed:
    """What stands in a victim, read in its own process and not from its reports.

    Attributes:
        orders: occurrences that its armouries hold as armed, fired or not healed.
        changed: replicas whose weights are not those that they were born with.
    """

    orders: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Nothing is armed, and nothing is broken."""
        return not self.orders and not self.changed

    @property
    def words(self) -> str:
        """For people."""
        parts = [f"{one} is in force" for one in self.orders]
        parts += [f"weights of {one} are changed" for one in self.changed]
        return ", ".join(parts) or "nothing is armed"


@dataclass(slots=True)
class _Body:
    """The parts of a victim that its visitors may look at.

    Attributes:
        stacks: of all replicas ever born, in that order.
        born: digest of the weights that each is born with.
    """

    system: SimSystem
    stacks: list[Stack]
    born: str

    def look(self) -> Armed:
        """What the living replicas hold, compared with their birth."""
        pairs = zip(self.system.replicas(), self.stacks, strict=True)
        living = [(one.replica, stack) for one, stack in pairs if one.alive]
        orders = [
            status.occurrence
            for _, stack in living
            for status in stack.armoury.statuses()
            if status.state in _OPEN
        ]
        changed = [
            name for name, stack in living if weights_digest(stack.engine.model) != self.born
        ]
        return Armed(tuple(orders), tuple(changed))


def serve(address: str, key: bytes, experiment: Experiment) -> None:
    """Serve until killed; the main function of the process.

    Args:
        address: path of the socket. key: who knows it may speak.
    """
    model = sim_model("tiny", experiment)
    stacks: list[Stack] = []
    system = SimSystem(experiment, model, SystemClock(), _PACE, stacks.append)
    body = _Body(system, stacks, weights_digest(model.copy()))

    async def course() -> None:
        loop = asyncio.get_running_loop()
        Path(address).unlink(missing_ok=True)
        listener = Listener(address, "AF_UNIX", authkey=key)
        threading.Thread(target=_accept, args=(listener, body, loop), daemon=True).start()
        await asyncio.Event().wait()

    asyncio.run(system.around(course()))


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over the bits of every parameter."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _accept(listener: Listener, body: _Body, loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            visitor = listener.accept()
        except OSError:
            continue  # it knew no key, or was killed while it knocked
        threading.Thread(target=_converse, args=(visitor, body, loop), daemon=True).start()


def _converse(visitor: Connection, body: _Body, loop: asyncio.AbstractEventLoop) -> None:
    """Answer one visitor until it goes: every call is made on the loop of the replicas."""

    async def answer(name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "pid":
            return os.getpid()
        if name == "look":
            return body.look()
        if name == "send":
            return [replace(record) async for record in body.system.send(*arguments)][-1]
        return getattr(body.system, name)(*arguments)

    while True:
        try:
            name, arguments = visitor.recv()
        except (EOFError, OSError):
            return
        try:
            told = asyncio.run_coroutine_threadsafe(answer(name, arguments), loop).result()
            reply: tuple[bool, Any] = (True, told)
        except Exception as error:  # noqa: BLE001 - it is the visitor's to deal with
            reply = (False, error)
        try:
            visitor.send(reply)
        except OSError:
            return


@dataclass(slots=True)
class VictimSystem:
    """`core.system.System` of a victim in another process; a dead one has no living replica.

    Attributes:
        before: called with the name of each call before it is made, for who wants to spoil it.
        after: likewise once it has been made.
    """

    address: str
    key: bytes
    before: Callable[[str], None] = lambda name: None
    after: Callable[[str], None] = lambda name: None
    _line: Connection | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: dict[str, ReplicaInfo] = field(default_factory=dict)
    _told: dict[str, OrderStatus] = field(default_factory=dict)
    _events: int = 0
    _pid: int = 0

    def look(self) -> Armed:
        """What stands in it.

        Raises:
            EnvironmentFault: it does not answer.
        """
        found: Armed = self._ask("look")
        return found

    def describe(self) -> dict[str, Any]:
        """Facts of the simulation that serves there."""
        found: dict[str, Any] = self._ask("describe")
        return {**found, "mode": "apart"}

    def replicas(self) -> list[ReplicaInfo]:
        """Those of the process that answers now, and the dead ones of those before it."""
        try:
            found: list[ReplicaInfo] = self._ask("replicas")
            pid = self._pid
        except EnvironmentFault:
            found, pid = [], 0
        for one in found:
            name = f"{pid}-{one.replica}"
            self._seen[name] = replace(one, replica=name, pid=pid)
        return [one if one.pid == pid else replace(one, alive=False) for one in self._seen.values()]

    def golden(self, prompts: Sequence[LoadRequest]) -> dict[str, GoldenAnswer]:
        """Right answers by prompt id."""
        found: dict[str, GoldenAnswer] = self._ask("golden", list(prompts))
        return found

    def certificate(self) -> dict[str, Any]:
        """None is taken: answers are not what is looked at here."""
        return {"bit_exact": False, "tau": 0.0, "cases": 0}

    async def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        """One request over a line of its own, its record once at its end."""
        record = RequestRecord(
            request.request_id,
            request.prompt_id,
            SystemClock().now_ns(),
            request.stream,
            request.max_new_tokens,
            malformed=request.malformed,
        )
        try:
            record = await asyncio.to_thread(self._sent, request)
        except (OSError, EOFError) as error:
            record.outcome, record.error = Outcome.INFO, f"the line broke: {error}"
            record.t_end_ns = SystemClock().now_ns()
            await asyncio.sleep(0.1)  # whoever asks again at once would only burn time
        yield record

    def arm(self, replica: str, order: Order) -> None:
        """Over the line."""
        self._ask("arm", self._own_name(replica), order)

    def strike(self, replica: str, order: Order) -> None:
        """Over the line."""
        self._ask("strike", self._own_name(replica), order)

    def renew(self, ttl_s: float) -> None:
        """Over the line; a dead process has no lease."""
        self._quietly("renew", ttl_s)

    def disarm(self, occurrence: str) -> None:
        """Over the line; a dead process holds no fault."""
        self._quietly("disarm", occurrence)

    def orders(self) -> dict[str, OrderStatus]:
        """As last told."""
        found = self._quietly("orders")
        self._told.update(found or {})
        return dict(self._told)

    def events(self, since: int) -> tuple[int, list[Event]]:
        """Those of the process that answers now."""
        found = self._quietly("events", since)
        return found if found is not None else (since, [])

    def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _own_name(self, replica: str) -> str:
        """What the victim calls a replica of its own.

        Raises:
            EnvironmentFault: it is of a process that is gone.
        """
        pid, _, name = replica.partition("-")
        if pid != str(self._pid):
            raise EnvironmentFault(f"victim: {replica} is gone, {self._pid} serves; aim again")
        return name

    def _sent(self, request: LoadRequest) -> RequestRecord:
        with Client(self.address, "AF_UNIX", authkey=self.key) as line:
            line.send(("send", (request,)))
            well, told = line.recv()
        if not well:
            raise OSError(str(told))
        record: RequestRecord = told
        return record

    def _quietly(self, name: str, *arguments: Any) -> Any:
        try:
            return self._ask(name, *arguments)
        except EnvironmentFault:
            return None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Make a call.

        Raises:
            EnvironmentFault: nobody answers.
            Exception: whatever the call raised there.
        """
        self.before(name)
        with self._lock:
            try:
                if self._line is None:
                    self._line = Client(self.address, "AF_UNIX", authkey=self.key)
                    self._line.send(("pid", ()))
                    self._pid = int(self._line.recv()[1])
                self._line.send((name, arguments))
                well, told = self._line.recv()
            except (OSError, EOFError) as error:
                self._line = None
                raise EnvironmentFault(f"victim: does not answer ({error}); start it") from None
        if not well:
            raise told
        self.after(name)
        return told
