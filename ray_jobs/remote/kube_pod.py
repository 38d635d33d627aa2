"""What the pod of a run waits for, and how it ended, in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.ray_jobs.remote.kube_job import driver_of

_HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"})
"""Waiting reasons that no waiting ends."""

_LETTERS_MOST = 220


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod as it was last seen.

    Attributes:
        name: empty: there is none yet.
        started: its driver runs or ran: there is a log.
        ended: its driver will write no more.
        exit_code: of the driver; None: unknown.
        waits_for: why it did not start; empty: it did.
        hopeless: it never will.
        end: how it ended, where that is more than an exit code: `OOMKilled: …`, `Evicted: …`.
    """

    name: str = ""
    started: bool = False
    ended: bool = False
    exit_code: int | None = None
    waits_for: str = ""
    hopeless: bool = False
    end: str = ""


def newest(pods: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The pod that was made last."""
    return max(
        pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None
    )


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """Read a pod."""
    name = str(pod["metadata"]["name"])
    status = pod.get("status") or {}
    phase = str(status.get("phase", "Pending"))
    containers = [dict(one) for one in status.get("containerStatuses") or []]
    container = driver_of(containers) if containers else {}
    state = container.get("state") or {}
    last = state.get("terminated")
    if last is not None:
        return PodState(
            name,
            started=True,
            ended=True,
            exit_code=int(last.get("exitCode", -1)),
            end=_container_end(last, status, pod),
        )
    if phase in ("Failed", "Succeeded"):
        return PodState(name, started=bool(container), ended=True, end=_pod_end(status))
    if state.get("running") is not None:
        return PodState(name, started=True)
    waits_for, hopeless = _waits_for(status, state)
    return PodState(name, waits_for=waits_for, hopeless=hopeless)


def job_refusal(events: Iterable[Mapping[str, Any]]) -> str:
    """Why a Job has no pod, from its events: a quota, Pod Security, an account that is missing."""
    for event in reversed(list(events)):
        if event.get("reason") in ("FailedCreate", "FailedMount", "FailedAttachVolume"):
            return _short(f"{event['reason']}: {event.get('message', '')}")
    return ""


def job_failure(job: Mapping[str, Any]) -> str:
    """Why a Job was given up; empty: it was not."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            return _short(f"{condition.get('reason', 'Failed')}: {condition.get('message', '')}")
    return ""


def _waits_for(status: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, bool]:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reason = condition.get("reason", "not scheduled")
            return _short(f"{reason}: {condition.get('message', '')}"), False
    for one in status.get("initContainerStatuses") or []:
        waiting = (one.get("state") or {}).get("waiting")
        if waiting is not None and waiting.get("reason") != "PodInitializing":
            return _waiting(waiting)
    waiting = state.get("waiting")
    return _waiting(waiting) if waiting is not None else ("a node that starts it", False)


def _waiting(waiting: Mapping[str, Any]) -> tuple[str, bool]:
    reason = str(waiting.get("reason", "waiting"))
    message = waiting.get("message", "")
    return _short(f"{reason}: {message}" if message else reason), reason in _HOPELESS


def _container_end(
    last: Mapping[str, Any], status: Mapping[str, Any], pod: Mapping[str, Any]
) -> str:
    reason = str(last.get("reason", ""))
    if reason == "OOMKilled":
        driver = driver_of(pod["spec"]["containers"])
        limit = ((driver.get("resources") or {}).get("limits") or {}).get("memory", "none")
        return (
            f"was killed for its memory (OOMKilled, limit {limit}; raise chaos.driver.resources of "
            "the release)"
        )
    if status.get("reason"):
        return _pod_end(status)
    code = last.get("exitCode")
    return f"ended with exit code {code}" + (f" ({reason})" if reason not in ("", "Error") else "")


def _pod_end(status: Mapping[str, Any]) -> str:
    reason, message = status.get("reason", "Failed"), status.get("message", "")
    return _short(f"was ended by the cluster ({reason}{f': {message}' if message else ''})")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LETTERS_MOST else f"{text[: _LETTERS_MOST - 3]}..."
