"""One experiment in virtual time: in memory, or with all files of a run and then once more."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin.chaos.case import Case
from tocsin.chaos.conduct import Conductor
from tocsin.chaos.contract import faults
from tocsin.chaos.plan import Plan, make_plan
from tocsin.chaos.progress import Progress, Quiet
from tocsin.chaos.properties.plan.reproducible import SECOND
from tocsin.chaos.run import run
from tocsin.chaos.spec import Experiment
from tocsin.chaos.verdict import EXIT_INVALID, EXIT_SPEC
from tocsin.chaos.wal import WriteAheadLog
from tocsin.core.clock import SystemClock
from tocsin.core.errors import SpecError
from tocsin.core.virtual import VirtualClock
from tocsin.ray_jobs.sim.core import Planted
from tocsin.ray_jobs.sim.digest import first_difference, history_digest, history_document
from tocsin.ray_jobs.sim.model import STUB, SimModel, sim_model
from tocsin.ray_jobs.sim.replica import Pace
from tocsin.ray_jobs.sim.strikes import why_not_simulated
from tocsin.ray_jobs.sim.system import SimSystem

BY_A_PERSON = "was received"
"""How the reason of a run ends that a signal has stopped: nobody waits for a second one."""


@dataclass(slots=True)
class Simulator:
    """Runs experiments on one model, as often as is wanted; it remembers golden answers.

    Attributes:
        model: name as `sim_model` takes it.
        planted: changes each replica once it is built, for tests of the harness.
    """

    model: str = "tiny"
    pace: Pace = field(default_factory=Pace)
    planted: Planted | None = None
    _loaded: dict[str, SimModel] = field(default_factory=dict)

    def system(self, experiment: Experiment, clock: VirtualClock) -> SimSystem:
        """A new system for one run."""
        dtype = experiment.system.dtype
        if dtype not in self._loaded:
            self._loaded[dtype] = sim_model(self.model, experiment)
        return SimSystem(experiment, self._loaded[dtype], clock, self.pace, self.planted)

    def conduct(
        self, experiment: Experiment, plan: Plan | None = None, progress: Progress | None = None
    ) -> Case:
        """Run an experiment in memory.

        Args:
            experiment: as `spec_file.load_experiment` returns it.
            plan: a recorded one; None: made from the experiment.

        Raises:
            SpecError: it holds a fault that cannot be simulated.
            TocsinError: something is missing that it cannot begin without.
        """
        experiment = self.checked(experiment)
        clock = VirtualClock()
        system = self.system(experiment, clock)
        plan = plan or make_plan(experiment)
        conductor = Conductor(experiment, plan, system, clock, _NoLog(), progress or Quiet())
        system.drive(conductor.conduct())
        return conductor.case()

    def part(self, experiment: Experiment) -> tuple[Experiment, tuple[str, ...]]:
        """What can be simulated of an experiment, and the faults that are left out."""
        known, engine = faults(), self.model != STUB
        left_out = tuple(
            one.id for one in experiment.faults if why_not_simulated(known[one.kind], engine=engine)
        )
        kept = tuple(one for one in experiment.faults if one.id not in left_out)
        return self.checked(experiment.model_copy(update={"faults": kept})), left_out

    def checked(self, experiment: Experiment) -> Experiment:
        """The experiment as it can be simulated.

        Conditions on this host's memory are left out: nothing in a simulation depends on it.

        Raises:
            SpecError: it holds a fault that cannot be simulated.
        """
        known = faults()
        for i, fault in enumerate(experiment.faults):
            reason = why_not_simulated(known[fault.kind], engine=self.model != STUB)
            if reason:
                raise SpecError(
                    f"{experiment.name}: faults[{i}].kind: {fault.kind} cannot be simulated: "
                    f"{reason}; remove it, or run without --sim"
                )
        safety = experiment.safety
        kept = tuple(one for one in safety.abort if one.metric != "host_mem_free")
        return experiment.model_copy(update={"safety": safety.model_copy(update={"abort": kept})})


@dataclass(slots=True)
class Simulated:
    """What a recorded simulation came to.

    Attributes:
        exit_code: of the run; 3 when the second run went another way.
        run_dir: its files; None: there are none, a mistake in the spec kept it from beginning.
        difference: where the two runs part; empty: nowhere.
    """

    exit_code: int = EXIT_SPEC
    run_dir: Path | None = None
    digest: str = ""
    difference: str = ""


def simulate(
    simulator: Simulator,
    experiment: Experiment,
    store: Path,
    *,
    arguments: str,
    plan: Plan | None = None,
    progress: Progress | None = None,
    recorded: Case | None = None,
) -> Simulated:
    """Run an experiment with all its files, and compare with a second run.

    Args:
        arguments: how to run the same again, for the report.
        plan: a recorded one; None: made from the experiment.
        recorded: what to compare with; None: it is run once more, in memory.

    Raises:
        SpecError: it holds a fault that cannot be simulated.
    """
    view = progress or Quiet()
    experiment = simulator.checked(experiment)
    clock = VirtualClock()
    system = simulator.system(experiment, clock)
    found: list[Path] = []
    result = Simulated()

    def learn(case: Case) -> dict[str, Any]:
        result.digest = history_digest(case)
        if case.aborted.endswith(BY_A_PERSON):
            return {}
        other = recorded or simulator.conduct(experiment, plan)
        if history_digest(other) == result.digest:
            view.note(f"both histories are equal: {result.digest[:16]}")
        else:
            result.difference = first_difference(history_document(other), history_document(case))
            view.note(f"the histories are unequal: {result.difference}")
        pair = (recorded, case) if recorded is not None else (case, other)
        return {SECOND: {"first": _told(pair[0]), "second": _told(pair[1])}}

    result.exit_code = run(
        experiment,
        system,
        store,
        progress=view,
        clock=clock,
        arguments=arguments,
        keep=found.append,
        drive=system.drive,
        calendar=SystemClock(),
        plan=plan,
        learn=learn,
    )
    result.run_dir = found[0] if found else None
    if result.difference:
        result.exit_code = EXIT_INVALID
    return result


def _told(case: Case) -> dict[str, Any]:
    """What `plan.reproducible` compares."""
    return {
        "plan_digest": case.plan.digest,
        "history_digest": history_digest(case),
        "outcomes": {one.planned.id: one.state for one in case.occurrences},
    }


class _NoLog(WriteAheadLog):
    """Nothing outlives a simulation, so nothing has to be on disk before it is injected."""

    def __init__(self) -> None:
        pass

    def write(self, record: Mapping[str, Any], *, sync: bool = True) -> None:
        pass

    def close(self) -> None:
        pass
