"""What must hold on Kubernetes while a chaos run lasts: its policy, labels, and its lease."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tocsin.chaos.policy import POLICY_ENV, ChaosPolicy, load_policy, objections
from tocsin.chaos.spec import Experiment
from tocsin.core.clock import SystemClock
from tocsin.core.errors import ChaosForbidden, EnvironmentFault, TocsinError
from tocsin.core.guard import Guard
from tocsin.ray_jobs.kube.api import KubeApi, account_of_environment
from tocsin.ray_jobs.kube.lease import KubeLease
from tocsin.ray_jobs.kube.pods import KubePods, not_a_target

_MISSES_MAX = 2


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a run stands: the pods that it may strike, and what must hold meanwhile."""

    pods: KubePods
    guards: tuple[Guard, ...]


class PolicyStands:
    """Implements `core.guard.Guard`: the policy's file, read anew, still allows the run.

    A mounted ConfigMap follows its object, so that switching chaos off ends a run under way.
    """

    def __init__(self, path: Path, spec: Experiment, url: str) -> None:
        """Nothing is read yet."""
        self._path, self._spec, self._url = path, spec, url

    def why_not(self) -> str:
        """The first objection of the policy as it is now."""
        try:
            policy = load_policy(self._path)
        except TocsinError as error:
            return str(error)
        if policy.dry_run:
            return "policy: dry_run is true by now, expected false for a run that injects"
        return next(iter(objections(policy, self._spec, self._url)), "")


class LabelsStand:
    """Implements `core.guard.Guard`: namespace and worker pods carry the labels that allow chaos.

    A look that fails counts once it is followed by another one; the very first must not fail.
    """

    def __init__(self, pods: KubePods, policy: ChaosPolicy) -> None:
        """Nothing is asked yet."""
        self._pods, self._policy = pods, policy
        self._misses = _MISSES_MAX - 1
        self._begun = False

    def why_not(self) -> str:
        """The first label that is missing."""
        try:
            reason = self._look()
        except ChaosForbidden as error:
            return str(error)
        except TocsinError as error:
            self._misses += 1
            return str(error) if self._misses >= _MISSES_MAX else ""
        self._misses = 0
        self._begun = True  # from now on the only pod may be away for a moment
        return reason

    def _look(self) -> str:
        policy = self._policy
        key, wanted = policy.namespace_label.split("=", 1)
        found = self._pods.namespace_labels().get(key)
        if found != wanted:
            return (
                f"namespace {policy.namespace}: label {key} is {found!r}, expected {wanted!r}; to "
                f"allow chaos: kubectl label namespace {policy.namespace} {key}={wanted}"
            )
        pods = self._pods.all()
        if not pods and not self._begun:
            return (
                f"namespace {policy.namespace}: found no worker pod of release {policy.release}, "
                "expected one at least; correct the policy"
            )
        reasons = (not_a_target(pod, policy.release, policy.target_label) for pod in pods)
        return next((reason for reason in reasons if reason), "")


@contextmanager
def kube_pods(policy: ChaosPolicy) -> Iterator[KubePods]:
    """The release's pods, through this pod's service account.

    Raises:
        EnvironmentFault: this is no pod, or it has no account.
    """
    api = _api()
    try:
        yield _pods(policy, api)
    finally:
        api.close()


@contextmanager
def held_ground(
    policy: ChaosPolicy, spec: Experiment, url: str, say: Callable[[str], None]
) -> Iterator[Ground]:
    """Make sure that all that must hold does, and take the lease; given back at the end.

    Raises:
        ChaosForbidden: something does not hold.
        EnvironmentFault: it cannot be found out.
    """
    api = _api()
    try:
        pods = _pods(policy, api)
        path = Path(os.environ[POLICY_ENV])
        guards: list[Guard] = [PolicyStands(path, spec, url), LabelsStand(pods, policy)]
        refuse(guards)
        if not policy.lease_name:
            yield Ground(pods, tuple(guards))
            return
        holder = f"{os.environ.get('POD_NAME') or socket.gethostname()}/{os.getpid()}"
        lease = KubeLease(api, policy.namespace, policy.lease_name, holder, SystemClock(), say)
        lease.acquire()
        try:
            lease.keep()
            yield Ground(pods, (*guards, lease))
        finally:
            lease.release()
    finally:
        api.close()


def refuse(guards: list[Guard]) -> None:
    """Ask all of them.

    Raises:
        ChaosForbidden: one says why not.
    """
    for guard in guards:
        if reason := guard.why_not():
            raise ChaosForbidden(reason)


def _api() -> KubeApi:
    account = account_of_environment()
    if account is None:
        raise EnvironmentFault(
            f"kubernetes: {POLICY_ENV} is set and KUBERNETES_SERVICE_HOST is not, expected a pod "
            f"of the release; run it there, or unset {POLICY_ENV} on a bare cluster"
        )
    return KubeApi(account)


def _pods(policy: ChaosPolicy, api: KubeApi) -> KubePods:
    return KubePods(api, policy.namespace, policy.release, policy.target_label)
