"""A chaos run against an application that is served already: nothing is deployed or deleted."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import ray

from tocsin.chaos.contract import faults
from tocsin.chaos.policy import objections, tightened
from tocsin.chaos.progress import Progress, ProgressState
from tocsin.chaos.progress_view import progress_view
from tocsin.chaos.run import run
from tocsin.chaos.spec import Experiment
from tocsin.chaos.verdict import EXIT_UNHEALED
from tocsin.checker.weights import WeightStore
from tocsin.core.errors import ChaosForbidden, EnvironmentFault, SpecError
from tocsin.core.faulting import Scope
from tocsin.core.guard import Guard
from tocsin.core.ids import new_ulid
from tocsin.core.pods import Pods
from tocsin.engine.weights import load
from tocsin.ray_jobs.alert_reading import alert_reading
from tocsin.ray_jobs.application import Served
from tocsin.ray_jobs.attack import Attack
from tocsin.ray_jobs.board import BOARD, NAMESPACE
from tocsin.ray_jobs.chaos_file import ChaosFile
from tocsin.ray_jobs.cluster import Cluster
from tocsin.ray_jobs.commands.edge import terminated_as_interrupt
from tocsin.ray_jobs.driver_page import driver_page, read_folder
from tocsin.ray_jobs.evidence import collect, state_folder
from tocsin.ray_jobs.fetch import fetch
from tocsin.ray_jobs.ground import check_own_cluster, needs_road
from tocsin.ray_jobs.kube.guards import held_ground
from tocsin.ray_jobs.options import DTYPES, ServeOptions
from tocsin.ray_jobs.oracle import cache_folder
from tocsin.ray_jobs.places import node_folder
from tocsin.ray_jobs.prompting import Prompting
from tocsin.ray_jobs.repros import write_repros
from tocsin.ray_jobs.run_note import annotated
from tocsin.ray_jobs.service import Service, ask, check_lengths, fitted, other_build
from tocsin.ray_jobs.system import RaySystem, no_pods
from tocsin.ray_jobs.told import board_told

ANNOUNCE_ENV = "TOCSIN_CHAOS_ANNOUNCE_S"
_ANNOUNCE_MAX_S = 600.0
_HEALTHY_S = 60.0
_LOOK_S = 0.5


def attached_run(spec: Experiment, store: Path, attack: Attack, arguments: str) -> int:
    """Run an experiment on what is served; the application stays as it was.

    Returns:
        The exit code of the run; 5 when the application is not well again afterwards.

    Raises:
        ChaosForbidden: the policy, a label, another run or an alert keeps it from beginning.
        SpecError: the experiment cannot be run there.
        EnvironmentFault: no application, no cluster, no model, no room for the run's files.
    """
    progress = progress_view()
    progress.update(ProgressState(phase="set-up"))
    try:
        return _attached_run(spec, store, attack, arguments, progress)
    except KeyboardInterrupt:
        raise ChaosForbidden("chaos run: stopped before anything was injected") from None
    except ray.exceptions.RayError as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EnvironmentFault(
            f"ray: the cluster failed the run ({said}), expected one that serves with the same "
            "version of tocsin; look at its head"
        ) from error


def _attached_run(
    spec: Experiment, store: Path, attack: Attack, arguments: str, progress: Progress
) -> int:
    wait_s = announce_s()
    with ExitStack() as stack:
        service, spec, changed = _aimed(spec, attack)
        for line in changed:
            progress.note(f"{spec.name}: {line}")
        node = node_folder()
        state = stack.enter_context(state_folder(store))
        stack.enter_context(_state_is(state))
        pods, guards = _ground(stack, spec, attack, progress)
        stack.enter_context(Cluster(spec.system.replicas, visits=True))
        stack.enter_context(terminated_as_interrupt())  # anew: Ray has set a handler of its own
        board = _board(service)
        local = _local(service, spec)
        differs = other_build(service)
        if differs:
            progress.note(f"judged by margins: {'; '.join(differs)}")
        about = {
            "attached": {
                "url": service.url,
                "replaced": list(changed),
                "build": dict(service.build),
                "weights": service.weights,
                "policy": attack.policy.model_dump(mode="json") if attack.policy else None,
            }
        }
        system = RaySystem(
            Served(service.url, board, local),
            cache_folder(),
            pods=pods,
            other_build=differs,
            about=about,
            run=new_ulid()[-8:],
            road=needs_road(spec),
            alerts=alert_reading(local.served_name, progress.note),
        )
        stack.enter_context(closing(system))
        page = stack.enter_context(driver_page(state))
        if page:
            progress.note(f"own numbers at http://{page}/metrics")
        progress.note(f"watch it live at {service.url}/live")
        meter = stack.enter_context(closing(ChaosFile(read_folder(page, state, node))))
        told = f"chaos run {spec.name}, seed {spec.seed}: {arguments}"
        stack.enter_context(annotated(told, (spec.name,), progress.note))
        stack.enter_context(board_told(board, wait_s + spec.safety.max_duration_s))
        code = run(
            spec,
            system,
            store,
            progress=progress,
            arguments=arguments,
            keep=partial(_keep, state),
            bring=partial(_bring, system, time.monotonic(), state, progress.note),
            meter=meter,
            guards=guards,
            announce_s=wait_s,
        )
        return _left_well(service, code, progress)


def announce_s(settings: Mapping[str, str] = os.environ) -> float:
    """How long those who scrape the run's own page have before the first fault.

    Raises:
        SpecError: the environment says no number from 0 to 600.
    """
    text = settings.get(ANNOUNCE_ENV) or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _ANNOUNCE_MAX_S:
        raise SpecError(
            f"{ANNOUNCE_ENV}: found {text!r}, expected seconds from 0 to {_ANNOUNCE_MAX_S:g}; "
            "two scrape intervals are enough"
        )
    return seconds


def _aimed(spec: Experiment, attack: Attack) -> tuple[Service, Experiment, tuple[str, ...]]:
    """The experiment on what is served there, under the policy's limits."""
    if attack.policy is not None:
        # Before anything is asked of anybody: what is forbidden leaves no trace elsewhere.
        for line in objections(attack.policy, spec, attack.url):
            raise ChaosForbidden(line)
    service = ask(attack.url)
    spec, changed = fitted(spec, service)
    if attack.policy is not None:
        stricter = tightened(attack.policy, spec)
        if stricter.safety != spec.safety:
            changed = (
                *changed,
                f"the policy allows {attack.policy.max_concurrent_faults} faults "
                f"and {attack.policy.max_targets} replicas at a time",
            )
        spec = stricter
    return service, spec, changed


def _ground(
    stack: ExitStack, spec: Experiment, attack: Attack, progress: Progress
) -> tuple[Pods | None, tuple[Guard, ...]]:
    """Pods and guards of this place; all of them allow the run to begin."""
    check_own_cluster(spec, own=False)
    alerts = attack.alerts()
    own: tuple[Guard, ...] = ()
    if alerts is not None:
        stack.callback(alerts.close)
        own = (alerts,)
        if reason := alerts.why_not():
            raise ChaosForbidden(reason)
    if attack.policy is None:
        for fault in spec.faults:
            if faults()[fault.kind].scope is Scope.POD:
                raise SpecError(no_pods(fault.kind))
        return None, own
    ground = stack.enter_context(held_ground(attack.policy, spec, attack.url, progress.note))
    return ground.pods, (*ground.guards, *own)


def _board(service: Service) -> Any:
    """The board of the application, in the cluster that was joined.

    Raises:
        EnvironmentFault: there is none, or it is another application's.
    """
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        board = ray.get_actor(BOARD, namespace=NAMESPACE)
        known: set[str] = set(ray.get(board.replicas.remote(), timeout=15.0))
    except (ValueError, ray.exceptions.RayError, ConnectionError) as error:
        raise EnvironmentFault(
            f"ray: the cluster at {address} has no {BOARD} that answers "
            f"({type(error).__name__}), expected that of {service.url}; set RAY_ADDRESS to the "
            "cluster that serves it"
        ) from None
    if not known & set(service.replicas):
        raise EnvironmentFault(
            f"ray: the board at {address} knows none of the replicas of {service.url}, expected "
            "them all; set RAY_ADDRESS to the cluster that serves it"
        )
    return board


def _local(service: Service, spec: Experiment) -> ServeOptions:
    """The options with this process's own copy of the model, which must be the one served.

    Raises:
        EnvironmentFault: the model is not here, or has other weights.
        SpecError: a prompt of the workload is too long for what is served.
    """
    options = replace(service.options, path=str(service.options.folder()))
    model, tokenizer = load(Path(options.path), DTYPES[options.dtype])
    facts: Any = model.config
    check_lengths(spec, Prompting(tokenizer, int(facts.vocab_size), options.max_length))
    mine = WeightStore(model).digest()
    if service.weights and mine != service.weights:
        raise EnvironmentFault(
            f"weights: {options.path} has digest {mine}, {service.url} serves {service.weights}; "
            "give this process the model that is served"
        )
    return options


def _bring(system: RaySystem, began_s: float, state: Path, say: Callable[[str], None]) -> None:
    """What the replicas left on their nodes, into this process's own folder."""
    try:
        nodes = [one.node for one in system.replicas()]
    except EnvironmentFault as error:
        say(f"{error} (the replicas' evidence stays on their nodes)")
        return
    fetch(nodes, time.monotonic() - began_s, state, say)


def _keep(state: Path, run_dir: Path) -> None:
    """What this process has of it, and a reproduction of each kind of failure."""
    collect(state, run_dir)
    write_repros(run_dir)


def _left_well(service: Service, code: int, progress: Progress) -> int:
    """The exit code, when the application is as well as it was before."""
    until_s = time.monotonic() + _HEALTHY_S
    while True:
        found = _health(service.url)
        if found.get("status") == "ok" and int(found.get("replicas", 0)) >= service.expected:
            progress.note(f"{service.url} is well: {found['replicas']} replicas generate")
            return code
        if time.monotonic() > until_s:
            progress.note(
                f"{service.url}/health: {found or 'no answer'} {_HEALTHY_S:.0f} s after the run, "
                f"expected {service.expected} replicas that generate; look at the application"
            )
            return code or EXIT_UNHEALED
        time.sleep(_LOOK_S)


def _health(url: str) -> dict[str, Any]:
    try:
        found = httpx.get(f"{url}/health", timeout=5.0).json()
    except (httpx.HTTPError, ValueError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


@contextmanager
def _state_is(state: Path) -> Iterator[None]:
    """This process keeps its own files apart from the node's: a hub reads those."""
    before = os.environ.get("TOCSIN_STATE")
    os.environ["TOCSIN_STATE"] = str(state)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOCSIN_STATE"]
        else:
            os.environ["TOCSIN_STATE"] = before
