"""A soak: random windows against one system until so many requests or hours are done."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from tocsin.chaos.case import Case, Conclusion
from tocsin.chaos.judge import judge
from tocsin.chaos.soak.document import Soak, Trend, Window
from tocsin.chaos.soak.page import soak_page
from tocsin.chaos.soak.trend import trends
from tocsin.chaos.spec import Experiment
from tocsin.chaos.store import write_atomic
from tocsin.chaos.verdict import (
    EXIT_FAIL,
    EXIT_INVALID,
    EXIT_PASS,
    EXIT_UNKNOWN,
    RunVerdict,
)
from tocsin.chaos.vitals import held
from tocsin.core.draw import draw_below, draw_choice
from tocsin.core.errors import TocsinError
from tocsin.core.history import EventKind, Outcome
from tocsin.ray_jobs.sim.experiment_file import with_workload, write_experiment
from tocsin.ray_jobs.sim.simulate import Simulator
from tocsin.ray_jobs.sim.swarm import drawn_experiment

FILE, PAGE = "soak.json", "soak.html"
_FINE = (EXIT_PASS, EXIT_UNKNOWN)


class Ground(Protocol):
    """What windows are run on."""

    @property
    def where(self) -> Literal["sim", "ray"]:
        """What it is."""
        ...

    @property
    def model(self) -> str:
        """What is served."""
        ...

    def fitted(self, experiment: Experiment) -> Experiment:
        """A drawn experiment as it can be run here."""
        ...

    def judged(self, experiment: Experiment) -> tuple[Case, RunVerdict, str]:
        """Run it and judge it; the last is its folder, empty: it has none."""
        ...

    def processes(self) -> Mapping[str, Mapping[str, Any]]:
        """What each process holds that outlives a window."""
        ...


@dataclass(slots=True)
class SimGround:
    """Windows in simulation: the process that outlives them is this one."""

    pid: int
    simulator: Simulator = field(default_factory=Simulator)
    where: Literal["sim", "ray"] = "sim"

    @property
    def model(self) -> str:
        """What simulated replicas serve."""
        return self.simulator.model

    def fitted(self, experiment: Experiment) -> Experiment:
        """As it was drawn."""
        return experiment

    def judged(self, experiment: Experiment) -> tuple[Case, RunVerdict, str]:
        """In memory, in this process."""
        case = self.simulator.conduct(experiment)
        return case, judge(case), ""

    def processes(self) -> Mapping[str, Mapping[str, Any]]:
        """Of the simulation."""
        return {"simulation": held(self.pid) or {}}


@dataclass(frozen=True, slots=True)
class Terms:
    """How long, and how.

    Attributes:
        requests, hours: whichever is reached first ends it, after a whole window; None: no limit.
        window: honest requests of one window.
        faultless: nothing is injected: arrivals, batching, preemptions and cancels alone.
    """

    seed: int = 0
    requests: int | None = 2_000
    hours: float | None = None
    window: int = 200
    faultless: bool = False


@dataclass(slots=True)
class Soaker:
    """Runs windows and writes the one report anew after each.

    Attributes:
        folder: of `soak.json`, `soak.html` and the experiments that did not pass.
    """

    terms: Terms
    ground: Ground
    folder: Path
    say: Callable[[str], None] = lambda line: None
    now_s: Callable[[], float] = time.monotonic
    _windows: list[Window] = field(default_factory=list)
    _begun_s: float = 0.0

    def soak(self) -> Soak:
        """To the end, or until it is interrupted; what is known by then is in the report."""
        self._begun_s = self.now_s()
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            window = self._window(len(self._windows))
            self._windows.append(window)
            soak = self._soak(done=self._over())
            self._write(soak)
            self.say(
                f"window {window.index}: {window.verdict}: {window.requests} requests, "
                f"{window.fired} of {window.planned} faults fired; {window.sentence}"
            )
            if soak.done:
                return soak

    def _over(self) -> bool:
        served = sum(one.requests for one in self._windows)
        hours = (self.now_s() - self._begun_s) / 3600.0
        terms = self.terms
        enough = terms.requests is not None and served >= terms.requests
        return enough or (terms.hours is not None and hours >= terms.hours)

    def _window(self, index: int) -> Window:
        """Run one window; one that cannot be run at all is a window that is invalid."""
        experiment = self.ground.fitted(window_experiment(self.terms, index))
        began_s = self.now_s()
        try:
            case, verdict, folder = self.ground.judged(experiment)
        except TocsinError as error:
            return _broken(index, experiment, str(error), self.now_s() - began_s)
        kept = folder
        if verdict.exit_code not in _FINE and not folder:
            path = self.folder / f"{experiment.name}.yaml"
            words = (f"Did not pass in a soak: {' '.join(verdict.sentence.split())[:200]}",)
            kept = str(write_experiment(path, experiment, words))
        took_s = self.now_s() - began_s
        return _told(index, experiment, case, verdict, took_s, self.ground.processes(), kept)

    def _soak(self, *, done: bool) -> Soak:
        known = trends(self._windows)
        code, verdict, sentence = concluded(self._windows, known, done=done)
        return Soak(
            where=self.ground.where,
            model=self.ground.model,
            seed=self.terms.seed,
            faultless=self.terms.faultless,
            wanted_requests=self.terms.requests,
            wanted_hours=self.terms.hours,
            done=done,
            verdict=verdict,
            exit_code=code,
            sentence=sentence,
            requests=sum(one.requests for one in self._windows),
            wall_s=round(self.now_s() - self._begun_s, 1),
            windows=tuple(self._windows),
            trends=known,
        )

    def _write(self, soak: Soak) -> None:
        write_atomic(self.folder / FILE, soak.model_dump_json(indent=1).encode() + b"\n")
        write_atomic(self.folder / PAGE, soak_page(soak).encode())


def window_experiment(terms: Terms, index: int) -> Experiment:
    """The experiment of a window; it depends on the terms and the index alone."""
    drawn = drawn_experiment(terms.seed, index)
    key = ("soak", index)
    # A served system remembers occurrences: no window may use an id of another one.
    renamed = tuple(one.model_copy(update={"id": f"{one.id}-{index}"}) for one in drawn.faults)
    changes: dict[str, Any] = {"name": f"soak-{terms.seed}-{index}", "faults": renamed}
    if terms.faultless:
        # Eight rows of some five pages each: with few pages requests are preempted and come back.
        pages = draw_choice((28, 36, 96), terms.seed, *key, "pages")
        shape = {"pages": pages, "slots": 8, "max_length": 128}
        changes["faults"] = ()
        changes["system"] = drawn.system.model_copy(update=shape)
        changes["workload"] = drawn.workload.model_copy(
            update={
                "arrival": draw_choice(("closed", "poisson"), terms.seed, *key, "arrival"),
                "rate": 8.0 + draw_below(24, terms.seed, *key, "rate"),
                "concurrency": 8 + draw_below(17, terms.seed, *key, "concurrency"),
                "max_new_tokens": 12,
                "abort_ratio": draw_choice((0.05, 0.2, 0.4), terms.seed, *key, "abort"),
            }
        )
    return with_workload(drawn.model_copy(update=changes), requests=terms.window)


def concluded(
    windows: list[Window], known: tuple[Trend, ...], *, done: bool
) -> tuple[int, str, str]:
    """Exit code, verdict and sentence of the windows so far.

    A window without anything to look at for some property counts as one that passed, as in a
    swarm; a trend that is not known does not.
    """
    failed = [one for one in windows if one.exit_code == EXIT_FAIL]
    bad = [one for one in windows if one.exit_code not in (*_FINE, EXIT_FAIL)]
    leaks = [one for one in known if one.verdict == "leak"]
    unsure = [one for one in known if one.verdict == "unknown"]
    if failed:
        text = f"{len(failed)} of {len(windows)} windows failed: {failed[0].sentence}"
        return EXIT_FAIL, str(Conclusion.FAIL), text
    if leaks:
        text = f"{leaks[0].reading} of {leaks[0].process} {leaks[0].why}"
        return EXIT_FAIL, str(Conclusion.FAIL), text
    if bad:
        text = f"{len(bad)} of {len(windows)} windows prove nothing: {bad[0].sentence}"
        return EXIT_INVALID, str(Conclusion.INVALID), text
    if unsure or not known:
        why = unsure[0].why if unsure else "no process could be read"
        return EXIT_UNKNOWN, str(Conclusion.UNKNOWN), f"whether anything leaks is unknown: {why}"
    fired = sum(one.fired for one in windows)
    compared = sum(one.compared for one in windows)
    going = "" if done else " so far"
    text = f"{fired} faults, {compared} answers compared, none wrong; nothing grows{going}"
    return EXIT_PASS, str(Conclusion.PASS), text


def _told(
    index: int,
    experiment: Experiment,
    case: Case,
    verdict: RunVerdict,
    wall_s: float,
    processes: Mapping[str, Mapping[str, Any]],
    kept: str,
) -> Window:
    golden = next((one for one in verdict.properties if one.id == "golden.tokens"), None)
    kinds = [event.kind for event in case.events]
    return Window(
        index=index,
        name=experiment.name,
        kinds=tuple(sorted({one.kind for one in experiment.faults})),
        verdict=str(verdict.conclusion),
        exit_code=verdict.exit_code,
        sentence=verdict.sentence,
        requests=len(case.honest),
        compared=golden.checked if golden is not None else 0,
        tokens=verdict.tokens,
        planned=len(case.occurrences),
        fired=sum(one.fired for one in case.occurrences),
        detected=sum(one.detected for one in verdict.faults),
        healed=sum(one.healed for one in case.occurrences),
        false_alarms=verdict.false_alarms,
        divergences=dict(golden.classes) if golden is not None else {},
        cancelled=sum(one.outcome is Outcome.CANCELLED for one in case.records),
        preempted=kinds.count(EventKind.REQUEST_PREEMPTED),
        resumed=kinds.count(EventKind.REQUEST_RESUMED),
        availability=verdict.availability,
        wall_s=round(wall_s, 2),
        processes={name: dict(reading) for name, reading in processes.items()},
        kept=kept,
    )


def _broken(index: int, experiment: Experiment, error: str, wall_s: float) -> Window:
    return Window(
        index=index,
        name=experiment.name,
        kinds=tuple(sorted({one.kind for one in experiment.faults})),
        verdict=str(Conclusion.INVALID),
        exit_code=EXIT_INVALID,
        sentence=error,
        wall_s=round(wall_s, 2),
    )
