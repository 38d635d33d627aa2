"""A served model on Ray as the ground of a soak: one deployment, window after window."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tocsin.chaos.case import Case
from tocsin.chaos.judge import judge
from tocsin.chaos.progress import Progress
from tocsin.chaos.run import run
from tocsin.chaos.spec import Experiment, SystemSpec
from tocsin.chaos.spec_file import on_system, parse_experiment
from tocsin.chaos.store import load_case
from tocsin.chaos.verdict import RunVerdict
from tocsin.chaos.vitals import held
from tocsin.core.chaos_meter import ChaosMeter
from tocsin.core.errors import EnvironmentFault
from tocsin.engine.weights import prepare
from tocsin.ray_jobs.application import deploy
from tocsin.ray_jobs.chaos_file import ChaosFile
from tocsin.ray_jobs.chaos_run import environment, keep_evidence
from tocsin.ray_jobs.cluster import Cluster, free_port
from tocsin.ray_jobs.evidence import state_folder
from tocsin.ray_jobs.oracle import cache_folder, options_of
from tocsin.ray_jobs.system import RaySystem

_HOST = "127.0.0.1"
_SYSTEM = {"replicas": 2, "slots": 8, "pages": 192}


@dataclass(slots=True)
class RayGround:
    """Windows against one deployment; each has its folder in the store, as any run.

    Attributes:
        system: stays as it is from window to window, and so do its processes.
        spec: how it is served.
    """

    system: RaySystem
    spec: SystemSpec
    store: Path
    state: Path
    progress: Progress
    meter: ChaosMeter
    arguments: str
    where: Literal["sim", "ray"] = "ray"

    @property
    def model(self) -> str:
        """What is served."""
        return self.spec.model

    def fitted(self, experiment: Experiment) -> Experiment:
        """On the system that is served; in real time, so service needs longer to be steady.

        Raises:
            SpecError: a fault of it is not safe there.
        """
        steady = experiment.steady_state.model_copy(update={"window_s": 1.0, "good_windows": 3})
        safety = experiment.safety.model_copy(update={"max_duration_s": 3600.0})
        changed = experiment.model_copy(update={"steady_state": steady, "safety": safety})
        return on_system(changed, self.spec, experiment.name)

    def judged(self, experiment: Experiment) -> tuple[Case, RunVerdict, str]:
        """Run it with all its files, and read them back.

        Raises:
            EnvironmentFault: it could not be recorded.
        """
        found: list[Path] = []

        def keep(run_dir: Path) -> None:
            found.append(run_dir)
            keep_evidence(self.state, run_dir)

        run(
            experiment,
            self.system,
            self.store,
            progress=self.progress,
            arguments=self.arguments,
            keep=keep,
            meter=self.meter,
        )
        if not found:
            raise EnvironmentFault(f"{experiment.name}: was not recorded; see the lines above")
        case = load_case(found[0])
        return case, judge(case), str(found[0])

    def processes(self) -> Mapping[str, Mapping[str, Any]]:
        """Of the replicas that live; one that was killed meanwhile begins anew."""
        return {
            f"{one.replica} (pid {one.pid})": reading
            for one in self.system.replicas()
            if one.alive and (reading := held(one.pid)) is not None
        }


@contextmanager
def ray_ground(store: Path, model: str, progress: Progress, arguments: str) -> Iterator[RayGround]:
    """Serve a model as long as the block lasts.

    Raises:
        EnvironmentFault: no model, no cluster, no port.
    """
    frame = parse_experiment(
        {
            "apiVersion": "chaos/v1",
            "kind": "Experiment",
            "name": "soak",
            "seed": 0,
            "system": {"model": model, **_SYSTEM},
        }
    )
    options = options_of(frame, prepare(model))
    with (
        state_folder(store) as state,
        environment(TOCSIN_STATE=str(state), TOCSIN_DRILL="1", TOCSIN_CHAOS_RUN="soak"),
        Cluster(options.replicas),
    ):
        served = deploy(options, host=_HOST, port=free_port(_HOST), token="")
        system = RaySystem(served, cache_folder())
        progress.note(f"serving {options.served_name} at {served.url}")
        try:
            with closing(ChaosFile(state)) as meter:
                yield RayGround(system, frame.system, store, state, progress, meter, arguments)
        finally:
            system.close()
