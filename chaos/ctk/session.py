"""One run of ours under the Chaos Toolkit: made by the control, asked by the activities."""

import asyncio
import importlib
import logging
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tocsin.chaos import wal
from tocsin.chaos.case import Conclusion
from tocsin.chaos.ctk.embedded import experiment_of, extension_of
from tocsin.chaos.ctk.watched import WatchedSystem
from tocsin.chaos.heal import EXIT_HEALED, heal_logs
from tocsin.chaos.load import Load, golden_requests, load_prompts, warmup_requests
from tocsin.chaos.plan import Plan, make_plan
from tocsin.chaos.progress import ProgressState
from tocsin.chaos.run import run
from tocsin.chaos.spec import Experiment
from tocsin.chaos.steady import reading
from tocsin.chaos.verdict import EXIT_ABORTED, EXIT_SPEC, RunVerdict
from tocsin.core.clock import SystemClock
from tocsin.core.errors import EnvironmentFault, FaultDidNotFire, HealError, SpecError, TocsinError
from tocsin.core.history import Outcome, RequestRecord
from tocsin.core.system import System

SYSTEM, STORE = "tocsin_system", "tocsin_store"
"""Keys of the document's configuration: the factory, and the folder of the runs."""

VERDICT_NONE_YET = "not run yet"
_WAIT_S = 0.2
_log = logging.getLogger("chaostoolkit")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a run is aimed at.

    Attributes:
        keep: puts what the servers left into the run's folder, before it is judged.
    """

    system: System
    keep: Callable[[Path], None] = lambda run_dir: None


Factory = Callable[[Experiment, Mapping[str, Any]], AbstractContextManager[Subject]]
"""Makes the system under test from the experiment and the document's configuration."""


class Session:
    """The run, and what is known of it; also its `Progress` and one of its `Guard`s."""

    def __init__(self, document: Mapping[str, Any], configuration: Mapping[str, Any]) -> None:
        """Nothing is started, and nothing is read yet: mistakes are told to the first who asks.

        Args:
            document: the Chaos Toolkit's experiment.
            configuration: its configuration with everything filled in.
        """
        self._document, self._configuration = document, configuration
        self._stack, self._lock = ExitStack(), threading.RLock()
        self._spec: Experiment | None = None
        self._subject: Subject | None = None
        self._watched: WatchedSystem | None = None
        self._sample: list[RequestRecord] = []
        self._begun, self._done = threading.Event(), threading.Event()
        self._stop, self._samples = "", 0
        self.run_verdict: RunVerdict | None = None
        self.run_dir: Path | None = None
        self.exit_code = 0
        self.notes: list[str] = []

    @property
    def spec(self) -> Experiment:
        """Our experiment, without the occurrences whose actions were taken out of the method."""
        with self._lock:
            if self._spec is None:
                self._spec = experiment_of(self._document)
            return self._spec

    @property
    def _source(self) -> str:
        """What the exported experiment was called when it was exported."""
        return str(extension_of(self._document).get("source") or self.spec.name)

    @property
    def plan(self) -> Plan:
        """What is injected when."""
        return make_plan(self.spec)

    @property
    def store(self) -> Path:
        """The folder of the runs."""
        return Path(str(self._configuration.get(STORE) or "store"))

    @property
    def system(self) -> WatchedSystem:
        """The system under test, started when it is first asked for."""
        with self._lock:
            if self._watched is None:
                factory = _factory(str(self._configuration.get(SYSTEM) or ""))
                made = factory(self.spec, self._configuration)
                self._subject = self._stack.enter_context(made)
                self._watched = WatchedSystem(self._subject.system)
            return self._watched

    def conduct(self) -> dict[str, Any]:
        """Run the experiment: load, faults, healing, judgement; returns what it came to.

        Raises:
            SpecError: it cannot be run.
        """
        self._begun.set()
        try:
            system, subject = self.system, self._subject
            self.exit_code = run(
                self.spec,
                system,
                self.store,
                progress=self,
                arguments=shlex.join(
                    ["tocsin", "chaos", "run", self._source, "--seed", str(self.spec.seed)]
                ),
                keep=subject.keep if subject else lambda run_dir: None,
                guards=(self,),
            )
        finally:
            self._done.set()
            if self._watched is not None:
                self._watched.changed.set()
        if self.run_verdict is None:
            said = self.notes[-1] if self.notes else "it said nothing"
            raise (SpecError if self.exit_code == EXIT_SPEC else EnvironmentFault)(said)
        return self.outcome()

    def outcome(self) -> dict[str, Any]:
        """What the run came to, JSON-safe; empty while it did not end."""
        verdict = self.run_verdict
        if verdict is None or self.run_dir is None:
            return {}
        return {
            "verdict": str(verdict.conclusion),
            "exit_code": self.exit_code,
            "sentence": verdict.sentence,
            "reasons": list(verdict.reasons),
            "plan_digest": verdict.plan_digest,
            "run": str(self.run_dir),
            "report": str(self.run_dir / "report.html"),
        }

    def verdict(self) -> str:
        """The conclusion of the run; that it is none yet before it has begun."""
        if not self._begun.is_set():
            return VERDICT_NONE_YET
        with self._waiting():
            self._wait(lambda: False)
        if self.run_verdict is None:
            return str(Conclusion.UNKNOWN)
        conclusion = self.run_verdict.conclusion
        if self.exit_code and conclusion is Conclusion.PASS:
            return f"exit code {self.exit_code}"  # its files could not be written, say
        return str(conclusion)

    def property(self, property_id: str) -> dict[str, Any]:
        """What the run says of one property, once it has ended.

        Raises:
            SpecError: it was not judged.
        """
        self._need_run()
        with self._waiting():
            self._wait(lambda: False)
        document = self.run_verdict.to_json() if self.run_verdict else {"properties": []}
        for found in document["properties"]:
            if found["id"] == property_id:
                return dict(found)
        raise SpecError(f"{property_id}: was not judged in this run; see {self.run_dir}")

    def fired(self, occurrence: str) -> dict[str, Any]:
        """The evidence that an occurrence fired, once there is any.

        Raises:
            FaultDidNotFire: the run ended without it.
        """
        self._need_run()
        with self._waiting():
            self._wait(lambda: self.system.evidence(occurrence) is not None)
        evidence = self.system.evidence(occurrence)
        if evidence is None or not evidence.fired:
            what = "left no evidence that it fired" if evidence else "did not fire"
            raise FaultDidNotFire(f"{occurrence}: {what} before the end of the run")
        return {
            "occurrence": occurrence,
            "replica": self.system.replica_of(occurrence) or "client",
            "place": evidence.place,
            "before": evidence.before,
            "after": evidence.after,
            "requests": list(evidence.requests),
        }

    def sample_anew(self) -> None:
        """The next reading of a probe sends requests of its own."""
        with self._lock:
            self._sample = []

    def steady(self, metric: str) -> float | None:
        """A steady-state metric over a few requests sent now; None: no data."""
        return reading(self._sampled(), metric)

    def right_answers(self) -> int:
        """How many of those few requests were answered with their golden answers."""
        prompts = load_prompts(self.spec.workload.prompts, canaries=self.spec.workload.canaries)
        golden = self.system.golden(golden_requests(self.spec, prompts))
        return sum(
            one.outcome is Outcome.OK and one.tokens == golden[one.prompt_id].tokens
            for one in self._sampled()
        )

    def stop(self, reason: str) -> None:
        """Have the run end as soon as it can: it heals first."""
        self._stop = self._stop or reason

    def aborted(self) -> str:
        """Why the run was stopped by its own safety, empty when it was not (yet)."""
        verdict = self.run_verdict
        if verdict is None or self.exit_code != EXIT_ABORTED:
            return ""
        return verdict.reasons[0] if verdict.reasons else verdict.sentence

    def heal(self) -> list[str]:
        """Stop the run if it goes on, and heal what it may have left; returns what was found.

        Raises:
            HealError: something may still be armed.
        """
        self.stop("the Chaos Toolkit rolls back")
        if self._begun.is_set():
            self._wait(lambda: False)
        logs = sorted((self.store / self.spec.name).glob(f"*-{self.plan.digest[:12]}*/{wal.NAME}"))
        found: list[str] = []
        ours = [self.run_dir / wal.NAME] if self.run_dir else logs
        if heal_logs(ours, self._watched, say=found.append) != EXIT_HEALED:
            raise HealError("; ".join(found))
        return found

    def close(self) -> None:
        """Take down what was started."""
        self.stop("the Chaos Toolkit has ended")
        if self._begun.is_set():
            self._wait(lambda: False)
        self._stack.close()

    def why_not(self) -> str:
        """`Guard`: whether the Chaos Toolkit wants the run to end."""
        return self._stop

    def update(self, state: ProgressState) -> None:
        """`Progress`: nothing is drawn here."""

    def note(self, text: str) -> None:
        """`Progress`: into the Chaos Toolkit's own log."""
        self.notes.append(text)
        _log.info(text)

    def end(self, verdict: RunVerdict, run_dir: Path, lines: tuple[str, ...]) -> None:
        """`Progress`: the verdict is there."""
        self.run_verdict, self.run_dir = verdict, run_dir
        for line in lines:
            _log.info(line)

    def _need_run(self) -> None:
        if not self._begun.wait(_WAIT_S * 50):
            raise SpecError(
                "the workload does not run, expected the action `workload` in the background "
                "before any other; put it back at the head of the method"
            )

    def _wait(self, come: Callable[[], bool]) -> None:
        """Until something has come, or the run is over."""
        while not self._done.is_set() and not come():
            self.system.changed.wait(_WAIT_S)
            self.system.changed.clear()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Whoever interrupts an activity that waits ends the run, too."""
        try:
            yield
        except TocsinError:
            raise
        except BaseException as error:
            self.stop(f"the Chaos Toolkit was interrupted ({type(error).__name__})")
            raise

    def _sampled(self) -> list[RequestRecord]:
        with self._lock:
            if not self._sample:
                self._samples += 1
                self._sample = asyncio.run(self._send(f"s{self._samples}-"))
            return self._sample

    async def _send(self, prefix: str) -> list[RequestRecord]:
        work = self.spec.workload
        prompts = load_prompts(work.prompts, canaries=work.canaries)
        load = Load(self.spec, self.system, prompts, SystemClock())
        requests = [
            replace(one, request_id=prefix + one.request_id)
            for one in warmup_requests(self.spec, prompts)
        ]
        return list(await asyncio.gather(*map(load.send, requests)))


def _factory(path: str) -> Factory:
    module_name, _, name = path.partition(":")
    try:
        made: Factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(
            f"configuration.{SYSTEM}: found {path!r}, expected module:function that makes the "
            f"system under test ({error}); correct it, or unset TOCSIN_CTK_SYSTEM"
        ) from None
    return made
