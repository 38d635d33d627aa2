"""An experiment as a Chaos Mesh workflow: one fault after the other, stopped when health is lost.

Our clocks are logical (requests, decode steps) and Chaos Mesh knows wall time alone, so the order
of the plan is kept and its ticks are not: each fault lasts as long as it may take to be seen, and
is followed by the time in which service must recover.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tocsin.chaos.mesh.equivalents import Equivalent, equivalent, number
from tocsin.chaos.plan import Occurrence, make_plan
from tocsin.chaos.spec import Experiment, FaultSpec
from tocsin.core.errors import SpecError

API_VERSION = "chaos-mesh.org/v1alpha1"
TARGET_LABEL = ("tocsin.dev/chaos-target", "true")
_COMPONENT = "app.kubernetes.io/component"
_INSTANCE = "app.kubernetes.io/instance"
_ENTRY, _FAULTS, _HEALTH = "entry", "faults", "health"
_DEADLINE_SPARE_S = 60


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the workflow is applied.

    Attributes:
        namespace: of the release, and of the workflow.
        release: its name; empty: all pods of the namespace that carry the target label.
        url: of the application as the cluster sees it, for the check of /health; empty: none.
    """

    namespace: str
    release: str = ""
    url: str = ""


def workflow_text(name: str, document: Mapping[str, Any], remarks: Sequence[str]) -> str:
    """The workflow as YAML, after comments that say what has no equivalent or a different one."""
    head = [
        f"Experiment {name} as a Chaos Mesh workflow; apply with kubectl.",
        "It injects and does not judge: load, golden answers and verdict stay with tocsin chaos.",
        *remarks,
    ]
    body = yaml.safe_dump(dict(document), sort_keys=False, width=100, allow_unicode=True)
    return "".join(f"# {line}\n" for line in head) + body


def mesh_document(spec: Experiment, cluster: Cluster) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The workflow as JSON-safe data, and one remark for everything that is not or not quite there.

    Raises:
        SpecError: no fault of the experiment has an equivalent.
    """
    remarks: list[str] = []
    templates: list[dict[str, Any]] = []
    children: list[str] = []
    for fault, occurrences in _by_fault(spec):
        found = equivalent(fault.kind, occurrences[0].params, occurrences[0].scope)
        if isinstance(found, str):
            remarks.append(f"{fault.id} ({fault.kind}): none: {found}.")
            continue
        if found.differs:
            remarks.append(f"{fault.id} ({fault.kind}): {found.kind}: {found.differs}.")
        for one in _templates(fault, occurrences, found, cluster):
            templates.append(one)
            children.append(one["name"])
            settle = _settle(one["name"], fault)
            templates.append(settle)
            children.append(settle["name"])
    if not children:
        raise SpecError(
            f"{spec.name}: none of its {len(spec.faults)} faults has an equivalent in Chaos Mesh, "
            "expected at least one; export it with --to chaostoolkit, or run it with tocsin"
        )
    remarks += _probe_remarks(spec, cluster)
    length_s = sum(_seconds(one["deadline"]) for one in templates) + _DEADLINE_SPARE_S
    serial = {
        "name": _FAULTS,
        "templateType": "Serial",
        "deadline": f"{length_s}s",
        "children": children,
    }
    head = [serial]
    entry = _FAULTS
    if cluster.url:
        entry = _ENTRY
        both = {
            "name": _ENTRY,
            "templateType": "Parallel",
            "deadline": f"{length_s}s",
            "children": [_HEALTH, _FAULTS],
        }
        head = [both, _health(cluster, length_s), serial]
    document = {
        "apiVersion": API_VERSION,
        "kind": "Workflow",
        "metadata": {"name": spec.name, "namespace": cluster.namespace},
        "spec": {"entry": entry, "templates": [*head, *templates]},
    }
    return document, tuple(remarks)


def _by_fault(spec: Experiment) -> list[tuple[FaultSpec, list[Occurrence]]]:
    """Faults of the spec with their occurrences, in the order in which they would come first."""
    plan = make_plan(spec)
    mine = {
        fault.id: [one for one in plan.occurrences if one.fault == fault.id]
        for fault in spec.faults
    }
    return [
        (fault, mine[fault.id]) for fault in sorted(spec.faults, key=lambda f: mine[f.id][0].at)
    ]


def _templates(
    fault: FaultSpec, occurrences: Sequence[Occurrence], found: Equivalent, cluster: Cluster
) -> list[dict[str, Any]]:
    """A template for each tick of a list, one schedule for a series."""
    spec = {**_aim(fault, found, cluster), **found.spec}
    lasts_s = _whole(number(occurrences[0].params, "duration_s", default=fault.expect.within_s))
    ticks = len({one.at for one in occurrences})
    if fault.when.every is None:
        return [
            {
                "name": f"{_name(fault.id)}-{i}",
                "templateType": found.kind,
                "deadline": f"{lasts_s}s",
                found.field: spec,
            }
            for i in range(ticks)
        ]
    every_s = lasts_s + _whole(fault.expect.recover_within_s)
    return [
        {
            "name": f"{_name(fault.id)}-series",
            "templateType": "Schedule",
            "deadline": f"{every_s * ticks}s",
            "schedule": {
                "schedule": f"@every {every_s}s",
                "concurrencyPolicy": "Forbid",
                "historyLimit": 1,
                "type": found.kind,
                found.field: {**spec, **_lasting(found, lasts_s)},
            },
        }
    ]


def _lasting(found: Equivalent, lasts_s: int) -> dict[str, str]:
    """How long one of a series lasts: a schedule has no deadlines, and a kill has no length."""
    return {} if found.spec.get("action") == "pod-kill" else {"duration": f"{lasts_s}s"}


def _aim(fault: FaultSpec, found: Equivalent, cluster: Cluster) -> dict[str, Any]:
    labels = {_COMPONENT: found.component}
    if found.component == "worker":
        labels[TARGET_LABEL[0]] = TARGET_LABEL[1]
    if cluster.release:
        labels[_INSTANCE] = cluster.release
    return {
        "mode": "all" if fault.target.replica == "each" else "one",
        "selector": {"namespaces": [cluster.namespace], "labelSelectors": labels},
    }


def _settle(name: str, fault: FaultSpec) -> dict[str, Any]:
    return {
        "name": f"{name}-recovers",
        "templateType": "Suspend",
        "deadline": f"{_whole(fault.expect.recover_within_s)}s",
    }


def _health(cluster: Cluster, length_s: int) -> dict[str, Any]:
    """Our /health is ok only while a real generation succeeds, so one check stands for probes."""
    return {
        "name": _HEALTH,
        "templateType": "StatusCheck",
        "deadline": f"{length_s}s",
        "abortWithStatusCheck": True,
        "statusCheck": {
            "mode": "Continuous",
            "type": "HTTP",
            "intervalSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 15,
            "http": {
                "url": f"{cluster.url.rstrip('/')}/health",
                "method": "GET",
                "criteria": {"statusCode": "200"},
            },
        },
    }


def _probe_remarks(spec: Experiment, cluster: Cluster) -> list[str]:
    instead = (
        "/health stands for it" if cluster.url else "name the application with --url for /health"
    )
    return [
        f"steady_state.probes {probe.name}: none: Chaos Mesh looks at HTTP answers only; {instead}."
        for probe in spec.steady_state.probes
    ]


def _whole(seconds: float) -> int:
    return max(1, round(seconds))


def _seconds(deadline: Any) -> int:
    return int(str(deadline).removesuffix("s"))


def _name(fault_id: str) -> str:
    """A fault's id is a DNS label already; what an older file may hold is made one."""
    return re.sub(r"[^a-z0-9-]+", "-", fault_id.lower()).strip("-")
