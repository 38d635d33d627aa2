"""The worker pods of a release, its namespace's labels, and the deletion of one pod."""

from collections.abc import Mapping
from typing import Any

from tocsin.core.errors import ChaosForbidden, EnvironmentFault
from tocsin.core.pods import Pod
from tocsin.ray_jobs.kube.api import KubeApi, KubeConflict, KubeUnreachable

COMPONENT = "worker"
_TRIES = 3


class KubePods:
    """Implements `core.pods.Pods`.

    Args:
        target_label: `key=value` that a pod must carry to be deleted.
    """

    def __init__(self, api: KubeApi, namespace: str, release: str, target_label: str) -> None:
        """Nothing is asked yet."""
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}"
        self._selector = (
            f"app.kubernetes.io/instance={release},app.kubernetes.io/component={COMPONENT}"
        )
        self._release = release
        self._target = target_label

    def namespace_labels(self) -> Mapping[str, str]:
        """Labels of the release's namespace.

        Raises:
            ChaosForbidden: the account may not read it, or it is not there.
            KubeUnreachable: no usable answer.
        """
        found = self._api.get(self._path)
        if found is None:
            raise ChaosForbidden(
                f"kubernetes: {self._path} is not there, expected the release's namespace; "
                "correct the policy"
            )
        return _labels(found)

    def all(self) -> tuple[Pod, ...]:
        """Every worker pod of the release, by name."""
        found = self._api.get(f"{self._path}/pods", {"labelSelector": self._selector})
        items = (found or {}).get("items")
        if not isinstance(items, list):
            raise KubeUnreachable(
                f"kubernetes: GET {self._path}/pods: the answer holds no list of pods, expected "
                "one; see whether a proxy answers in the API server's place"
            )
        return tuple(sorted((_pod(item) for item in items), key=lambda pod: pod.name))

    def get(self, name: str) -> Pod | None:
        """One pod of the namespace."""
        found = self._api.get(f"{self._path}/pods/{name}")
        return None if found is None else _pod(found)

    def delete(self, pod: Pod, grace_s: int | None) -> None:
        """Delete this very pod, if it still may be: its labels are read once more.

        The deletion names the version that was read, so that no label can go in between.
        """
        for left in reversed(range(_TRIES)):
            version = self._may_go(pod)
            options: dict[str, Any] = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "preconditions": {"uid": pod.uid, "resourceVersion": version},
            }
            if grace_s is not None:
                options["gracePeriodSeconds"] = grace_s
            try:
                gone = not self._api.delete(f"{self._path}/pods/{pod.name}", options)
            except KubeConflict:
                if not left:
                    raise
                continue  # its status was written meanwhile: look again
            if gone:
                raise EnvironmentFault(
                    f"pod {pod.name}: found none, expected uid {pod.uid}; somebody else deleted it "
                    "in between"
                )
            return

    def _may_go(self, pod: Pod) -> str:
        """The version of the pod that was looked at and may be deleted."""
        found = self._api.get(f"{self._path}/pods/{pod.name}")
        now = None if found is None else _pod(found)
        if now is None or found is None or now.uid != pod.uid:
            raise EnvironmentFault(
                f"pod {pod.name}: found {now.words if now else 'none'}, expected uid {pod.uid}; "
                "it was replaced meanwhile, nothing was deleted"
            )
        reason = not_a_target(now, self._release, self._target)
        if reason:
            raise ChaosForbidden(reason)
        return str(found["metadata"].get("resourceVersion") or "")


def not_a_target(pod: Pod, release: str, target_label: str) -> str:
    """Why a pod must not be struck, in one line; empty: it may."""
    wanted = {
        "app.kubernetes.io/instance": release,
        "app.kubernetes.io/component": COMPONENT,
    }
    for key, value in [*wanted.items(), tuple(target_label.split("=", 1))]:
        if pod.labels.get(key) != value:
            return (
                f"pod {pod.name}: label {key} is {pod.labels.get(key)!r}, expected {value!r}; set "
                "worker.chaosTarget in the release's values, or leave this pod alone"
            )
    return ""


def _labels(found: Mapping[str, Any]) -> dict[str, str]:
    metadata = found.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return {str(key): str(value) for key, value in (labels or {}).items()}


def _pod(found: Any) -> Pod:
    """What matters of a pod object."""
    try:
        metadata, status = found["metadata"], found.get("status") or {}
        conditions = status.get("conditions") or []
        return Pod(
            name=str(metadata["name"]),
            uid=str(metadata["uid"]),
            node=str((found.get("spec") or {}).get("nodeName") or ""),
            ip=str(status.get("podIP") or ""),
            phase=str(status.get("phase") or ""),
            ready=any(one["type"] == "Ready" and one["status"] == "True" for one in conditions),
            terminating=bool(metadata.get("deletionTimestamp")),
            labels=_labels(found),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise KubeUnreachable(
            f"kubernetes: a pod object is not as expected ({type(error).__name__}: {error}), "
            "expected metadata with name and uid; see whether a proxy answers for the API server"
        ) from None
