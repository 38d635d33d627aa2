"""Fills a fault × detector matrix: simulated kinds in processes of their own, the rest in Ray."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationError

from tocsin.chaos.case import Case
from tocsin.chaos.contract import Fault, faults
from tocsin.chaos.matrix.counting import count, not_run, row_of
from tocsin.chaos.matrix.document import Matrix, Part, Where
from tocsin.chaos.matrix.page import exit_code, matrix_markdown
from tocsin.chaos.matrix.trial import (
    Trial,
    parts_of,
    served_experiment,
    served_together,
    simulated_experiment,
)
from tocsin.chaos.plan import make_plan
from tocsin.chaos.spec import Experiment
from tocsin.chaos.store import write_atomic
from tocsin.core.errors import SpecError, TocsinError
from tocsin.core.faulting import Scope
from tocsin.ray_jobs.sim.replica import Pace
from tocsin.ray_jobs.sim.simulate import BY_A_PERSON, Simulator
from tocsin.ray_jobs.sim.sources import sources_digest
from tocsin.ray_jobs.sim.strikes import STRIKES, why_not_simulated
from tocsin.ray_jobs.sim.swarm import DRAWN

FILE, PAGE = "matrix.json", "matrix.md"
Served = Callable[[Experiment], Case]
"""Runs an experiment against a served model."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a matrix is to hold.

    Attributes:
        kinds: patterns of ids, such as `kv.*`; none: every declared fault.
        occurrences: of each kind in simulation; on_ray: of each in Ray, 0: Ray is left out.
        model: what simulated replicas serve.
        recall_least: share of the occurrences that must be seen in time.
        jobs: processes; 0: this one.
        fresh: do again what was done.
    """

    kinds: tuple[str, ...] = ()
    seed: int = 7
    occurrences: int = 10
    on_ray: int = 1
    model: str = "tiny"
    recall_least: float = 0.99
    jobs: int = 2
    fresh: bool = False


@dataclass(slots=True)
class Filler:
    """Runs what is missing and adds up what there is; each run is a file as soon as it ended.

    Attributes:
        folder: of the matrix: `parts/`, `matrix.json`, `matrix.md`.
        served: where kinds go that cannot be simulated.
        say: told one line a run.
    """

    wanted: Wanted
    folder: Path
    served: Served
    say: Callable[[str], None] = lambda line: None

    def fill(self) -> Matrix:
        """The matrix, with its files.

        Raises:
            SpecError: a pattern matches no fault.
            TocsinError: a run could not be made at all.
        """
        began_s = time.monotonic()
        wanted, code = self.wanted, sources_digest()
        chosen = chosen_faults(wanted.kinds)
        where = {name: self._where(one) for name, one in chosen.items()}
        trials = {name: self._trials(name, place[0]) for name, place in where.items()}
        flat = [trial for several in trials.values() for trial in several]
        done = {} if wanted.fresh else self._known(flat, where)
        open_ = [trial for trial in flat if trial not in done]
        if len(done):
            self.say(f"{len(done)} of {len(flat)} runs were made before, and are not made again")
        for trial, part in self._made(open_, where, code):
            done[trial] = part
            self._keep(trial, part)
            self.say(_line(part))
        rows = tuple(
            row_of(chosen[name], [done[trial] for trial in several], wanted.recall_least)
            if several
            else not_run(chosen[name], where[name][1])
            for name, several in trials.items()
        )
        stale = sorted({trial.kind for trial in flat if done[trial].code != code})
        matrix = Matrix(
            seed=wanted.seed,
            occurrences=wanted.occurrences,
            occurrences_on_ray=wanted.on_ray,
            model=wanted.model,
            recall_least=wanted.recall_least,
            exit_code=exit_code(rows),
            wall_s=round(time.monotonic() - began_s, 1),
            code=code,
            stale=tuple(stale),
            rows=rows,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / FILE, matrix.model_dump_json(indent=1).encode() + b"\n")
        write_atomic(self.folder / PAGE, matrix_markdown(matrix).encode())
        return matrix

    def _where(self, declared: Fault) -> tuple[Where, str]:
        """Where a kind runs, or why it does not."""
        why = why_not_simulated(declared, engine=True)
        if declared.scope is Scope.POD:
            return Where.NOWHERE, "it acts on a pod: tocsin chaos run --kube-context"
        if self.wanted.on_ray and (why or declared.id in STRIKES):
            return Where.RAY, ""
        if why:
            return Where.NOWHERE, f"it cannot be simulated ({why}), and Ray was left out"
        return Where.SIM, ""

    def _trials(self, kind: str, where: Where) -> tuple[Trial, ...]:
        if where is Where.NOWHERE:
            return ()
        if where is Where.RAY:
            return (Trial(kind, 0, self.wanted.on_ray, self.wanted.seed),)
        return parts_of(kind, self.wanted.occurrences, self.wanted.seed)

    def _made(
        self, trials: Sequence[Trial], where: Mapping[str, tuple[Where, str]], code: str
    ) -> Iterator[tuple[Trial, Part]]:
        simulated = [one for one in trials if where[one.kind][0] is Where.SIM]
        served = [one for one in trials if where[one.kind][0] is Where.RAY]
        yield from _in_processes(simulated, self.wanted, code)
        # Together, then once more those that did not fire: another one's end may have been in
        # the way. What does not fire alone does not fire.
        for attempt in (0, 1):
            if not served:
                return
            parts: dict[Trial, Part] = {}
            for group in served_together(served):
                self.say(f"Ray: {', '.join(one.kind for one in group)}")
                case = _whole(self.served(served_experiment(group, DRAWN)))
                parts |= {one: count(case, one, where=Where.RAY, code=code) for one in group}
            whole = [one for one in served if parts[one].verified == parts[one].planned]
            served = [one for one in served if one not in whole]
            yield from ((one, parts[one]) for one in (whole if attempt == 0 else parts))

    def _path(self, trial: Trial) -> Path:
        return self.folder / "parts" / f"{trial.kind}.{trial.number}-{trial.count}.json"

    def _keep(self, trial: Trial, part: Part) -> None:
        path = self._path(trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, part.model_dump_json(indent=1).encode() + b"\n")

    def _known(
        self, trials: Sequence[Trial], where: Mapping[str, tuple[Where, str]]
    ) -> dict[Trial, Part]:
        """Runs of an earlier call that made the same plan in the same place."""
        found = {}
        for trial in trials:
            try:
                part = Part.model_validate_json(self._path(trial).read_bytes())
            except (OSError, ValidationError):
                continue  # not made yet, or cut off: it is made now
            if part.where is not where[trial.kind][0] or part.seed != trial.seed:
                continue
            if part.where is Where.RAY:
                same = part.verified == part.planned  # real time may be kinder the next time
            else:
                plan = make_plan(simulated_experiment(trial, DRAWN))
                same = part.plan_digest == plan.digest and part.model == self.wanted.model
            if same:
                found[trial] = part
        return found


def chosen_faults(patterns: Sequence[str]) -> dict[str, Fault]:
    """Declared faults by id, those that some pattern matches; all when there is none.

    Raises:
        SpecError: a pattern matches none.
    """
    known = faults()
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise SpecError(f"kinds: {pattern!r} matches no fault, known are {', '.join(known)}")
    chosen = patterns or ("*",)
    return {
        name: one
        for name, one in known.items()
        if any(fnmatchcase(name, pattern) for pattern in chosen)
    }


def _whole(case: Case) -> Case:
    """The case of a run that nobody has interrupted: half a run must not be kept as a whole one.

    Raises:
        KeyboardInterrupt: somebody has.
    """
    if case.aborted.endswith(BY_A_PERSON):
        raise KeyboardInterrupt
    return case


def _line(part: Part) -> str:
    best = max(part.detectors.values(), default=0)
    return (
        f"{part.kind} {part.number}: {part.fired} of {part.planned} fired, {part.seen} seen, "
        f"{best} by one detector; {part.requests} requests, {part.cpu_s:.0f} s of CPU"
    )


_simulators: dict[str, Simulator] = {}
"""Of this process, by model: golden answers are found out once."""


_PACE = Pace(step_s=0.3)
"""Slower than a served engine: the harness waits in seconds for a fault to be over and to be seen,
and every step of these seconds is computed."""


def _simulated(trial: Trial, model: str, code: str) -> Part:
    simulator = _simulators.setdefault(model, Simulator(model, _PACE))
    began_s = time.process_time()
    case = _whole(simulator.conduct(simulated_experiment(trial, DRAWN)))
    took_s = time.process_time() - began_s
    return count(case, trial, where=Where.SIM, code=code, cpu_s=took_s)


def _in_processes(
    trials: Sequence[Trial], wanted: Wanted, code: str
) -> Iterator[tuple[Trial, Part]]:
    """Simulate them, as they end.

    Raises:
        TocsinError: a process ended by itself.
    """
    if not trials:
        return
    if not wanted.jobs:
        yield from ((one, _simulated(one, wanted.model, code)) for one in trials)
        return
    # Spawned, not forked: torch has threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(wanted.jobs, len(trials)), mp_context=context) as pool:
        futures: dict[Future[Part], Trial] = {
            pool.submit(_simulated, one, wanted.model, code): one for one in trials
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise TocsinError(
                f"matrix: a simulating process ended by itself ({error}); the same command goes "
                "on where it was, with fewer --jobs if memory was short"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
