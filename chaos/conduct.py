"""The course of a run: golden answers, warm-up, load and faults together, drain, heal, audit."""

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tocsin.chaos.attribution import attribute
from tocsin.chaos.case import Case, Prompt
from tocsin.chaos.dispatch import Dispatcher
from tocsin.chaos.fleet import Fleet
from tocsin.chaos.load import Load, golden_requests, load_prompts, warmup_requests
from tocsin.chaos.patience import patiently
from tocsin.chaos.plan import Plan
from tocsin.chaos.progress import Progress
from tocsin.chaos.properties.alert.routing import unalerted
from tocsin.chaos.readings import progress_state
from tocsin.chaos.safety import Safety
from tocsin.chaos.spec import Experiment
from tocsin.chaos.tally import Tally
from tocsin.chaos.vitals import AFTER, BEFORE, Vitals
from tocsin.chaos.wal import WriteAheadLog
from tocsin.chaos.watch import Watch
from tocsin.core.chaos_meter import ChaosMeter, Unmetered
from tocsin.core.clock import Clock
from tocsin.core.errors import EnvironmentFault
from tocsin.core.guard import Guard
from tocsin.core.history import Event, EventKind, RequestRecord
from tocsin.core.system import GoldenAnswer, System, TellsAlerts

Answer = TypeVar("Answer")

_TICK_S = 0.15
_GUARD_S = 2.0
_ALERTS_S = 1.0
_READY_S = 60.0
_QUIET_S = 15.0
_HEAL_S = 20.0
_HURRIED_HEAL_S, _HURRIED_QUIET_S = 8.0, 3.0
"""After SIGTERM: whoever sent it waits 30 s before SIGKILL, and the verdict must be written."""


@dataclass(slots=True)
class Conductor:
    """One run; `conduct` may end early at any point, `case` tells what is known by then.

    Attributes:
        guards: asked before anything is armed, and again and again while the run lasts.
        announce_s: least time between the meter's word that a run is on and the first fault, so
            that whoever scrapes it knows before the first alert.
        aborted: why it was stopped; empty: it was not.
        hurried: by somebody who waits only some seconds for the verdict.
    """

    spec: Experiment
    plan: Plan
    system: System
    clock: Clock
    log: WriteAheadLog
    progress: Progress
    meter: ChaosMeter = field(default_factory=Unmetered)
    guards: Sequence[Guard] = ()
    announce_s: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    certificate: dict[str, Any] = field(default_factory=dict)
    golden: Mapping[str, GoldenAnswer] = field(default_factory=dict)
    prompts: dict[str, Prompt] = field(default_factory=dict)
    warmup: list[RequestRecord] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)
    load: Load | None = None
    dispatcher: Dispatcher | None = None
    aborted: str = ""
    hurried: bool = False
    notes: list[str] = field(default_factory=list)
    _next_event: int = 0
    _begun_ns: int = 0
    _start_ns: int = 0
    _end_ns: int = 0
    _tail_from_ns: int = 0
    _aborted_ns: int = 0
    _tally: Tally = field(init=False)
    _vitals: Vitals = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is counted yet."""
        self._tally = Tally(self.meter)
        self._vitals = Vitals(self.system, self.clock, self.watch.take)

    async def conduct(self) -> None:
        """Run the experiment to its end, or until it is aborted; faults are healed either way.

        Raises:
            TocsinError: something is missing that the run cannot begin without.
            OSError: the heal log cannot be written.
        """
        self._begun_ns = self.clock.now_ns()
        self.meter.running(True)
        remove = self._hear_signals()
        watching: asyncio.Task[None] | None = None
        try:
            await self._prepare()
            if not self.aborted:
                await self._ask_guards()
                watching = asyncio.create_task(self._mind_guards())
            if not self.aborted:
                await self._warm_up()
            await self._announce()
            if not self.aborted:
                await self._attack()
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            try:
                await self._heal()
            finally:
                self.meter.running(False)
                remove()

    def abort(self, reason: str) -> None:
        """Stop as soon as possible, heal, and write what is known."""
        if not self.aborted:
            self.aborted = reason
            self._aborted_ns = self.clock.now_ns()
            self.progress.note(f"stopping: {reason}")
        if self.load is not None:
            self.load.stop()

    def case(self) -> Case:
        """Everything that was recorded so far."""
        records = tuple(self.load.records.values()) if self.load else ()
        occurrences = tuple(self.dispatcher.records) if self.dispatcher else ()
        ordered = [one.ordered_ns for one in occurrences if one.ordered_ns]
        healed = [one.healed_ns for one in occurrences if one.healed_ns]
        return Case(
            spec=self.spec,
            plan=self.plan,
            facts=self.facts,
            records=records,
            requests=dict(self.load.requests) if self.load else {},
            events=tuple(sorted(self.watch.events, key=lambda event: event.t_ns)),
            golden=self.golden,
            certificate=self.certificate,
            occurrences=occurrences,
            prompts=self.prompts,
            warmup=tuple(self.warmup),
            t_start_ns=self._start_ns,
            t_faults_ns=min(ordered, default=0),
            t_healed_ns=max(healed, default=0),
            t_end_ns=self._end_ns or self.clock.now_ns(),
            aborted=self.aborted,
            t_aborted_ns=self._aborted_ns,
            notes=tuple(self.notes),
        )

    async def _prepare(self) -> None:
        """Facts, certificate and golden answers; then wait until every replica is there."""
        self._tell("golden")
        # The load serves tests and people alike: a prompt set that is not there is said at once.
        self.prompts = load_prompts(
            self.spec.workload.prompts, canaries=self.spec.workload.canaries
        )
        offset_ns = int(self.clock.wall_s() * 1e9) - self.clock.now_ns()
        self.facts = {**await asyncio.to_thread(self.system.describe), "wall_offset_ns": offset_ns}
        self.facts["observes"] = self._vitals.offered()
        wanted = golden_requests(self.spec, self.prompts)
        # Both may take minutes when nothing is cached; a person may stop the run meanwhile.
        self.certificate = dict(await self._long(self.system.certificate) or {})
        self.golden = await self._long(lambda: self.system.golden(wanted)) or {}
        self._note_disagreement()
        deadline_ns = self.clock.now_ns() + int(_READY_S * 1e9)
        while not self.aborted:
            replicas = await asyncio.to_thread(self.system.replicas)
            alive = sum(replica.alive for replica in replicas)
            if alive >= self.spec.system.replicas:
                return
            if self.clock.now_ns() > deadline_ns:
                raise EnvironmentFault(
                    f"system: {alive} of {self.spec.system.replicas} replicas came up in "
                    f"{_READY_S:g} s; see the logs of the replicas"
                )
            await asyncio.sleep(_TICK_S)

    async def _ask_guards(self) -> None:
        """Whether all guards let the run go on; if not, it stops."""
        for guard in self.guards:
            reason = await asyncio.to_thread(guard.why_not)
            if reason and not self.aborted:
                self.abort(reason)

    async def _mind_guards(self) -> None:
        """Ask them as long as the run lasts."""
        while self.guards and not self.aborted:
            await asyncio.sleep(_GUARD_S)
            await self._ask_guards()

    async def _long(self, call: Callable[[], Answer]) -> Answer | None:
        """A call that may take minutes; None when the run was stopped before its end."""
        return await patiently(call, lambda: bool(self.aborted), lambda: self._tell("golden"))

    def _note_disagreement(self) -> None:
        """The two oracles are independent: where they disagree, the reader must know."""
        differ = [
            name
            for name, answer in self.golden.items()
            if answer.reference_tokens and answer.reference_tokens != answer.tokens
        ]
        if differ:
            self.notes.append(
                f"the engine and the independent decode differ on {len(differ)} of "
                f"{len(self.golden)} golden answers: {', '.join(differ[:5])}"
            )

    async def _warm_up(self) -> None:
        """The baseline: a few requests that must all be right before anything is broken."""
        load = Load(self.spec, self.system, self.prompts, self.clock)
        self._tell("warm-up")
        self._next_event, _ = await asyncio.to_thread(self.system.events, 0)
        requests = warmup_requests(self.spec, self.prompts)
        tasks = [asyncio.create_task(load.send(request)) for request in requests]
        pending = set(tasks)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=_TICK_S)
            self._tell("warm-up", load)
            if self.aborted:
                for task in pending:
                    task.cancel()
                await asyncio.gather(*pending, return_exceptions=True)
                break
        self.warmup = list(load.records.values())

    async def _announce(self) -> None:
        """Wait until those who scrape know of the run; golden answers and warm-up count."""
        until_ns = self._begun_ns + int(self.announce_s * 1e9)
        while not self.aborted and self.clock.now_ns() < until_ns:
            self._tell("warm-up")
            await asyncio.sleep(_TICK_S)

    async def _attack(self) -> None:
        """Load and faults together, until both have ended and service was steady again."""
        replicas = await asyncio.to_thread(self.system.replicas)
        self._vitals.weigh(replicas, BEFORE)
        fleet = Fleet(replicas)
        load = Load(self.spec, self.system, self.prompts, self.clock, more=self._more)
        self.load = load
        self._start_ns = self.clock.now_ns()
        dispatcher = Dispatcher(
            self.spec,
            self.plan,
            self.system,
            self.clock,
            self.log,
            fleet,
            self.watch,
            load,
            self.facts,
            self._say,
        )
        self.dispatcher = dispatcher
        safety = Safety(self.spec.safety, self._start_ns)
        sending = asyncio.create_task(load.run())
        renewing = asyncio.create_task(self._keep_alive())
        minding = asyncio.create_task(self._vitals.mind_health())
        try:
            while not sending.done():
                await self._drain_events()
                if not load.stopped:
                    await dispatcher.tick()
                else:
                    await dispatcher.follow()
                self._tally.look(dispatcher.records, self.watch)
                reason = safety.why_stop(load.records.values(), self.clock.now_ns())
                if reason:
                    self.abort(reason)
                if renewing.done():
                    renewing.result()
                self._tell("drain" if load.stopped else "faults", load)
                if self.aborted:
                    break
                await asyncio.wait({sending}, timeout=_TICK_S)
            if self.aborted:
                await self._cut_short(sending)
            await sending
        except asyncio.CancelledError:
            if not self.aborted:
                raise
        finally:
            for task in (sending, renewing, minding):
                task.cancel()
            await asyncio.gather(sending, renewing, minding, return_exceptions=True)

    async def _cut_short(self, sending: asyncio.Task[None]) -> None:
        """Let requests under way end for a moment, then cut them off."""
        await asyncio.wait({sending}, timeout=2.0)
        sending.cancel()

    def _more(self) -> bool:
        """Whether the load goes on beyond its own requests: faults are open, or the tail is."""
        load, dispatcher = self.load, self.dispatcher
        if load is None or dispatcher is None or self.aborted:
            return False
        if not dispatcher.finished:
            self._tail_from_ns = 0
            return load.sent < 2 * self.spec.workload.requests + 200
        steady = self.spec.steady_state
        self._tail_from_ns = self._tail_from_ns or self.clock.now_ns()
        tail_s = steady.window_s * (steady.good_windows + 2)
        return self.clock.now_ns() < self._tail_from_ns + int(tail_s * 1e9)

    async def _keep_alive(self) -> None:
        """Renew the leases as long as this run lives."""
        while True:
            if self.dispatcher is not None and self.dispatcher.active:
                await self.dispatcher.renew()
            await asyncio.sleep(self.spec.safety.ttl_s / 4)

    async def _heal(self) -> None:
        """Take back what is still there, wait until all is quiet, read the pages."""
        self._end_ns = self.clock.now_ns()
        if self.dispatcher is None:
            return
        self._tell("heal", self.load)
        await self.dispatcher.heal_all(_HURRIED_HEAL_S if self.hurried else _HEAL_S)
        self._tell("drain", self.load)
        await self._quiesce()
        await self._drain_events()
        await self._alerted()
        self._tally.look(self.dispatcher.records, self.watch)
        self.meter.false_alarms(len(attribute(self.case()).false_alarms))
        self.log.write({"type": "end", "wall_s": self.clock.wall_s()})

    async def _quiesce(self) -> None:
        """Wait until no replica has work, then note each one's page counts as an audit."""
        patience_s = _HURRIED_QUIET_S if self.hurried else _QUIET_S
        deadline_ns = self.clock.now_ns() + int(patience_s * 1e9)
        since_ns = self.clock.now_ns()
        while True:
            replicas = [one for one in await asyncio.to_thread(self.system.replicas) if one.alive]
            fresh = [one for one in replicas if one.heard_ns >= since_ns]
            busy = [one for one in fresh if one.stats.get("running") or one.stats.get("waiting")]
            if len(fresh) == len(replicas) and not busy:
                break
            if self.clock.now_ns() > deadline_ns:
                self.notes.append(
                    f"not all replicas came to rest in {patience_s:g} s: "
                    f"{len(busy)} busy, {len(replicas) - len(fresh)} silent"
                )
                break
            await asyncio.sleep(_TICK_S)
        now_ns = self.clock.now_ns()
        self.watch.take(
            Event(EventKind.PAGE_AUDIT, now_ns, one.replica, one.step, data=dict(one.stats))
            for one in replicas
            if one.stats
        )
        self._vitals.weigh(replicas, AFTER)

    async def _alerted(self) -> None:
        """Wait for the alerts of all that was seen: rules are evaluated later than checks."""
        within_s = self.system.alerted_within_s if isinstance(self.system, TellsAlerts) else 0.0
        until_ns = self.clock.now_ns() + int(within_s * 1e9)
        while self.clock.now_ns() < until_ns and not self.aborted and unalerted(self.case()):
            await asyncio.sleep(_ALERTS_S)
            await self._drain_events()

    async def _drain_events(self) -> None:
        """Take in what happened since the warm-up began; what was before is of another run."""
        self._next_event, events = await asyncio.to_thread(self.system.events, self._next_event)
        self.watch.take(events)

    def _hear_signals(self) -> Any:
        """SIGINT and SIGTERM heal and write before they end the run; returns the undoing."""
        loop = asyncio.get_running_loop()
        heard = []
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number) or signal.SIG_DFL
            try:
                loop.add_signal_handler(number, self._signalled, number)
            except (ValueError, RuntimeError, NotImplementedError):
                continue  # not in the main thread: whoever runs us minds the signals
            heard.append((number, before))

        def remove() -> None:
            for number, before in heard:
                loop.remove_signal_handler(number)
                signal.signal(number, before)

        return remove

    def _signalled(self, number: signal.Signals) -> None:
        """A person's Ctrl-C takes its time to heal; who sends SIGTERM does not wait for long."""
        self.hurried = self.hurried or number is signal.SIGTERM
        self.abort(f"{number.name} was received")

    def _say(self, text: str) -> None:
        self.notes.append(f"{(self.clock.now_ns() - self._begun_ns) / 1e9:.1f} s: {text}")
        self.progress.note(text)

    def _tell(self, phase: str, load: Load | None = None) -> None:
        """A reading for whoever watches."""
        self.progress.update(
            progress_state(
                phase,
                self.spec,
                load,
                self.dispatcher,
                self.watch,
                planned=len(self.plan.occurrences),
                begun_ns=self._begun_ns,
                start_ns=self._start_ns,
                now_ns=self.clock.now_ns(),
            )
        )
