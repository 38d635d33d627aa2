"""The chaos part of a release: its CronJob, and why a run is not allowed there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.core.errors import ChaosForbidden, EnvironmentFault
from tocsin.ray_jobs.remote.kubectl import ForbiddenError, Kubectl, MissingError

DRY_RUN = "tocsin.dev/dry-run"
"""Annotation of the CronJob: what the release's policy says."""

LABEL = "tocsin.dev/namespace-label"
"""Annotation of the CronJob: the label that its namespace must carry, where it is another one."""

_ALLOWED = "tocsin.dev/chaos=allowed"

_INSTANCE, _COMPONENT = "app.kubernetes.io/instance", "app.kubernetes.io/component"
_NAME = "app.kubernetes.io/name=tocsin"
_CHART = "helm/tocsin"


@dataclass(frozen=True, slots=True)
class Release:
    """A release that takes chaos runs.

    Attributes:
        cron_job: the template of its runs, as the API server has it.
    """

    name: str
    namespace: str
    cron_job: Mapping[str, Any]


def find_release(kubectl: Kubectl, name: str, *, dry_run: bool) -> Release:
    """Find a release and make sure that a run is allowed in it.

    The driver checks it all again over there: this is to say early, and with a command, what
    would be refused late.

    Args:
        name: empty: the only one of the namespace.
        dry_run: only a plan is wanted: that is always allowed.

    Raises:
        ChaosForbidden: the release is dry, or its namespace not opened to chaos.
        EnvironmentFault: there is no such release, or not one only, or it has no chaos part.
    """
    selector = f"{_NAME},{_COMPONENT}=chaos" + (f",{_INSTANCE}={name}" if name else "")
    found = kubectl.get("cronjobs.batch", "-l", selector).get("items", [])
    if not found:
        raise _no_chaos(kubectl, name)
    if len(found) > 1:
        names = ", ".join(sorted(_release_of(one) for one in found))
        raise EnvironmentFault(
            f"kubectl: releases {names} take chaos runs in {_where(kubectl)}, expected one to be "
            "meant; name it: RELEASE=… (--release …)"
        )
    cron_job = found[0]
    release = Release(_release_of(cron_job), str(cron_job["metadata"]["namespace"]), cron_job)
    if not dry_run:
        _check_armed(kubectl, release)
        _check_namespace(kubectl, release)
    return release


def _check_armed(kubectl: Kubectl, release: Release) -> None:
    annotations = release.cron_job["metadata"].get("annotations") or {}
    if annotations.get(DRY_RUN) == "true":
        raise ChaosForbidden(
            f"chaos run: release {release.name} only plans (chaos.dryRun is true), expected an "
            f"armed one; arm it: {_upgrade(kubectl, release.name, release.namespace)} "
            "chaos.dryRun=false, or look at the plan: tocsin chaos run … --dry-run"
        )


def _check_namespace(kubectl: Kubectl, release: Release) -> None:
    try:
        found = kubectl.get("namespace", release.namespace)
    except (ForbiddenError, MissingError):
        return  # a person of one namespace may not look; the driver may, and does
    annotations = release.cron_job["metadata"].get("annotations") or {}
    key, _, value = str(annotations.get(LABEL) or _ALLOWED).partition("=")
    if ((found.get("metadata") or {}).get("labels") or {}).get(key) != value:
        raise ChaosForbidden(
            f"chaos run: namespace {release.namespace} does not carry the label {key}={value}, "
            "expected it where chaos is allowed; allow it: kubectl --context "
            f"{kubectl.context} label namespace {release.namespace} {key}={value}"
        )


def _no_chaos(kubectl: Kubectl, name: str) -> EnvironmentFault | ChaosForbidden:
    """Whether the release or only its chaos part is missing."""
    selector = _NAME + (f",{_INSTANCE}={name}" if name else "")
    try:
        found = kubectl.get("configmaps", "-l", selector).get("items", [])
    except ForbiddenError:
        found = [{"metadata": {"labels": {_INSTANCE: name or "<release>"}}}]
    if not found:
        wanted = f"release {name}" if name else "release of tocsin"
        return EnvironmentFault(
            f"kubectl: there is no {wanted} in {_where(kubectl)}, expected one; look: helm list "
            f"--kube-context {kubectl.context} -A, then name it: KUBE_NAMESPACE=… RELEASE=…"
        )
    release = _release_of(found[0])
    return ChaosForbidden(
        f"chaos run: release {release} in {_where(kubectl)} takes no chaos runs (chaos.enabled is "
        f"false); enable them: {_upgrade(kubectl, release, kubectl.namespace)} chaos.enabled=true"
    )


def _upgrade(kubectl: Kubectl, release: str, namespace: str) -> str:
    where = f"--kube-context {kubectl.context}" + (f" -n {namespace}" if namespace else "")
    return f"helm upgrade {release} {_CHART} {where} --reset-then-reuse-values --set"


def _release_of(found: Mapping[str, Any]) -> str:
    labels = found["metadata"].get("labels") or {}
    return str(labels.get(_INSTANCE, "<release>"))


def _where(kubectl: Kubectl) -> str:
    namespace = kubectl.namespace or "the context's own namespace"
    return f"{namespace} of {kubectl.context}"
