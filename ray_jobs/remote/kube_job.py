"""The Job of one run, made of a release's CronJob: another experiment, the same guards."""

import copy
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.remote.order import SPEC, Order

CONTAINER = "chaos"
"""Name of the driver's container; others in the pod are somebody else's."""

_NAME_MOST = 63
_RUN = ("chaos", "run")
_REPLACED = ("--seed", "--profile")


def job_manifest(cron_job: Mapping[str, Any], order: Order) -> dict[str, Any]:
    """What `kubectl create job --from=cronjob/…` would make, with the caller's experiment in it.

    Raises:
        EnvironmentFault: the CronJob runs something else.
    """
    template = copy.deepcopy(cron_job["spec"]["jobTemplate"])
    found = template.get("metadata") or {}
    metadata = cron_job["metadata"]
    spec: dict[str, Any] = template["spec"]
    # A run that failed is a result; it is not tried again until it passes.
    spec["backoffLimit"] = 0
    pod = spec["template"]["spec"]
    pod["restartPolicy"] = "Never"
    container = driver_of(pod["containers"])
    _set_words(container, order, str(metadata["name"]))
    _set_environment(container, order.environment())
    suffix = f"-{secrets.token_hex(4)}"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": str(metadata["name"])[: _NAME_MOST - len(suffix)].rstrip("-.") + suffix,
            "namespace": metadata["namespace"],
            "labels": dict(found.get("labels") or {}),
            "annotations": {
                **(found.get("annotations") or {}),
                "cronjob.kubernetes.io/instantiate": "manual",
            },
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "CronJob",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": spec,
    }


def driver_of(containers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The driver's container, or the only one."""
    named = [one for one in containers if one.get("name") == CONTAINER]
    return (named or list(containers))[0]


def _set_words(container: dict[str, Any], order: Order, name: str) -> None:
    """Put the caller's experiment, seed and profile where the release's are."""
    for key in ("args", "command"):
        words = [str(word) for word in container.get(key) or []]
        place = _behind_run(words)
        if place is None:
            continue
        rest = _without(words[place + 1 :], _REPLACED)
        more = order.options()  # in front: where the release says it too, the release counts
        if "--print-archive" not in rest:
            more.append("--print-archive")
        container[key] = [*words[:place], f"env:{SPEC}", *more, *rest]
        return
    raise EnvironmentFault(
        f"kubectl: CronJob {name} does not run `tocsin chaos run <experiment> …`, expected it "
        "in the container's command or args; is it of this chart's version?"
    )


def _behind_run(words: Sequence[str]) -> int | None:
    """Index of the experiment: what follows `chaos run`."""
    for index in range(len(words) - len(_RUN)):
        if tuple(words[index : index + len(_RUN)]) == _RUN:
            place = index + len(_RUN)
            return place if not words[place].startswith("-") else None
    return None


def _without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Words without some options and their values."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in options:
            skip = True
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept


def _set_environment(container: dict[str, Any], variables: Mapping[str, str]) -> None:
    others = [one for one in container.get("env") or [] if one.get("name") not in variables]
    container["env"] = [*others, *({"name": n, "value": v} for n, v in variables.items())]
