"""The system that an exported Chaos Toolkit experiment is aimed at: served for it, then taken down.

`tocsin chaos export` names `served` in the document; $TOCSIN_CTK_SYSTEM may name another function
of the same form.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tocsin.chaos.ctk.session import STORE, Subject
from tocsin.chaos.policy import POLICY_ENV
from tocsin.chaos.spec import Experiment
from tocsin.core.errors import SpecError
from tocsin.engine.weights import prepare
from tocsin.ray_jobs.application import deploy
from tocsin.ray_jobs.chaos_run import environment, keep_evidence
from tocsin.ray_jobs.cluster import Cluster, free_port
from tocsin.ray_jobs.evidence import state_folder
from tocsin.ray_jobs.ground import check_own_cluster, needs_road
from tocsin.ray_jobs.oracle import cache_folder, options_of
from tocsin.ray_jobs.system import RaySystem

_HOST = "127.0.0.1"


@contextmanager
def served(experiment: Experiment, configuration: Mapping[str, Any]) -> Iterator[Subject]:
    """The experiment's model on Ray, as `tocsin chaos run` serves it.

    Raises:
        SpecError: this place has a chaos policy, which `tocsin chaos run` alone keeps to.
        EnvironmentFault: no model, no cluster, no port.
    """
    if os.environ.get(POLICY_ENV):
        raise SpecError(
            f"{experiment.name}: found a chaos policy (${POLICY_ENV}), expected none under the "
            "Chaos Toolkit, which does not read it; use tocsin chaos run here"
        )
    options = options_of(experiment, prepare(experiment.system.model))
    store = Path(str(configuration.get(STORE) or "store"))
    with ExitStack() as stack:
        state = stack.enter_context(state_folder(store))
        run = f"{experiment.name} {experiment.seed}"
        stack.enter_context(
            environment(TOCSIN_STATE=str(state), TOCSIN_DRILL="1", TOCSIN_CHAOS_RUN=run)
        )
        cluster = stack.enter_context(Cluster(options.replicas, nodes=experiment.system.nodes))
        check_own_cluster(experiment, own=cluster.started)
        token = os.environ.get("TOCSIN_TOKEN", "")
        application = deploy(options, host=_HOST, port=free_port(_HOST), token=token)
        system = RaySystem(application, cache_folder(), road=needs_road(experiment))
        stack.enter_context(closing(system))
        yield Subject(system, partial(keep_evidence, state))
