"""What a server checks in jobs, services, data and budgets beyond their schemas."""

from collections.abc import Iterator
from typing import Any
from zoneinfo import available_timezones

from tocsin.helm.gate import syntax
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import COMPONENT
from tocsin.helm.gate.rule import Complaint, Tree, items, on_object, sub

DATA_SIZE_MAX = 1 << 20
CRON_JOB_COUNTS = ("successfulJobsHistoryLimit", "failedJobsHistoryLimit")
JOB_COUNTS = ("backoffLimit", "ttlSecondsAfterFinished")
JOB_COUNTS_POSITIVE = ("activeDeadlineSeconds",)
INSTANCE = "app.kubernetes.io/instance"
SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


@on_object("workloads.job")
def job(one: Manifest) -> Iterator[Complaint]:
    """A Job's pods end by themselves, its counts are in range, its selector is the server's."""
    for path, spec in _jobs(one):
        policy = sub(spec, "template", "spec").get("restartPolicy")
        if policy not in ("Never", "OnFailure"):
            yield Complaint(f"{path}.template.spec.restartPolicy", f"{policy}", "Never")
        for key in ("selector", "manualSelector"):
            if key in spec:
                yield Complaint(f"{path}.{key}", "a choice", "none: the server makes it")
        for keys, least in (
            ((*JOB_COUNTS, "parallelism", "completions"), 0),
            (JOB_COUNTS_POSITIVE, 1),
        ):
            yield from _counts(path, spec, keys, least)
        if spec.get("completionMode", "NonIndexed") not in ("NonIndexed", "Indexed"):
            yield Complaint(f"{path}.completionMode", f"{spec['completionMode']}", "NonIndexed")
        if spec.get("podReplacementPolicy", "Failed") not in ("Failed", "TerminatingOrFailed"):
            yield Complaint(f"{path}.podReplacementPolicy", "an unknown word", "Failed")
        if "activeDeadlineSeconds" not in spec:
            yield Complaint(f"{path}.activeDeadlineSeconds", "nothing", "a time at which it ends")
        yield from _pod_failure_policy(path, spec)


def _jobs(one: Manifest) -> Iterator[tuple[str, Tree]]:
    if one.kind == "Job":
        yield "spec", sub(one.body, "spec")
    if one.kind == "CronJob":
        yield "spec.jobTemplate.spec", sub(one.body, "spec", "jobTemplate", "spec")


def _pod_failure_policy(path: str, spec: Tree) -> Iterator[Complaint]:
    if "podFailurePolicy" not in spec:
        return
    if sub(spec, "template", "spec").get("restartPolicy") != "Never":
        yield Complaint(f"{path}.podFailurePolicy", "with restarts", "restartPolicy Never")
    names = {item.get("name") for item in items(spec, "template", "spec", "containers")}
    for index, rule in enumerate(items(spec, "podFailurePolicy", "rules")):
        where = f"{path}.podFailurePolicy.rules[{index}]"
        if rule.get("action") not in ("FailJob", "Ignore", "Count", "FailIndex"):
            yield Complaint(f"{where}.action", f"{rule.get('action')}", "a known action")
        if len(rule.keys() & {"onExitCodes", "onPodConditions"}) != 1:
            yield Complaint(where, "not one condition", "onExitCodes or onPodConditions")
        codes = sub(rule, "onExitCodes")
        if codes:
            values = codes.get("values") or []
            if codes.get("operator") not in ("In", "NotIn") or not values:
                yield Complaint(f"{where}.onExitCodes", "no set of codes", "In or NotIn, values")
            if values != sorted(set(values)) or (codes.get("operator") == "In" and 0 in values):
                yield Complaint(f"{where}.onExitCodes.values", f"{values}", "rising, without 0")
            if codes.get("containerName") is not None and codes["containerName"] not in names:
                yield Complaint(f"{where}.onExitCodes.containerName", "unknown", "a container")


@on_object("workloads.pod")
def pod(one: Manifest) -> Iterator[Complaint]:
    """A pod that is made by itself, such as a test, ends: it is not started again."""
    if one.kind == "Pod" and sub(one.body, "spec").get("restartPolicy") != "Never":
        found = f"{sub(one.body, 'spec').get('restartPolicy')}"
        yield Complaint("spec.restartPolicy", found, "Never")


@on_object("workloads.cron_job")
def cron_job(one: Manifest) -> Iterator[Complaint]:
    """A CronJob has a schedule that reads, a zone apart from it, and a word on overlaps."""
    if one.kind != "CronJob":
        return
    spec = sub(one.body, "spec")
    if not syntax.is_schedule(spec.get("schedule")):
        yield Complaint("spec.schedule", f"{spec.get('schedule')!r}", "a five-field schedule")
    zone = spec.get("timeZone")
    # Where the machine has no zones to compare with, only the form is looked at.
    if zone is not None and not (
        zone in available_timezones() or (zone and not available_timezones())
    ):
        yield Complaint("spec.timeZone", f"{zone!r}", "a zone such as Europe/Zurich")
    if spec.get("concurrencyPolicy") not in ("Forbid", "Replace"):
        path, found = "spec.concurrencyPolicy", spec.get("concurrencyPolicy")
        yield Complaint(path, f"{found}", "Forbid: one run at a time")
    template = sub(spec, "jobTemplate")
    labels = sub(template, "metadata", "labels")
    if labels != sub(template, "spec", "template", "metadata", "labels"):
        path = "spec.jobTemplate.metadata.labels"
        yield Complaint(path, f"{dict(labels)}", "those of the pods: runs are found by them")
    yield from _counts("spec", spec, (*CRON_JOB_COUNTS, "startingDeadlineSeconds"), 0)


@on_object("workloads.deployment")
def deployment(one: Manifest) -> Iterator[Complaint]:
    """A Deployment finds its own pods, by labels that no other part of a release has."""
    if one.kind != "Deployment":
        return
    spec = sub(one.body, "spec")
    wanted = sub(spec, "selector", "matchLabels")
    labels = sub(spec, "template", "metadata", "labels")
    if not {INSTANCE, COMPONENT} <= wanted.keys():
        yield Complaint("spec.selector.matchLabels", f"{dict(wanted)}", "instance and component")
    if any(labels.get(key) != value for key, value in wanted.items()):
        yield Complaint("spec.selector.matchLabels", f"{dict(wanted)}", "labels of its template")
    if sub(spec, "strategy").get("type", "Recreate") not in ("Recreate", "RollingUpdate"):
        yield Complaint("spec.strategy.type", f"{sub(spec, 'strategy')['type']}", "Recreate")
    policy = sub(spec, "template", "spec").get("restartPolicy", "Always")
    if policy != "Always":
        yield Complaint("spec.template.spec.restartPolicy", f"{policy}", "Always")
    yield from _counts("spec", spec, ("replicas", "revisionHistoryLimit"), 0)


@on_object("workloads.service")
def service(one: Manifest) -> Iterator[Complaint]:
    """A Service has ports in range, each named when there are several, and a known type."""
    if one.kind != "Service":
        return
    spec = sub(one.body, "spec")
    kinds = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
    if spec.get("type", "ClusterIP") not in kinds:
        yield Complaint("spec.type", f"{spec['type']}", "ClusterIP")
    ports = items(spec, "ports")
    if not ports:
        yield Complaint("spec.ports", "none", "at least one")
    names = [port.get("name") for port in ports]
    if len(ports) > 1 and (None in names or len(set(names)) < len(names)):
        yield Complaint("spec.ports", f"names {names}", "a name of its own for each")
    for index, port in enumerate(ports):
        if not syntax.is_port_number(port.get("port")):
            yield Complaint(f"spec.ports[{index}].port", f"{port.get('port')}", "1 to 65535")
        if port.get("protocol", "TCP") not in ("TCP", "UDP", "SCTP"):
            yield Complaint(f"spec.ports[{index}].protocol", f"{port['protocol']}", "TCP")
        target = port.get("targetPort", port.get("port"))
        if not (syntax.is_port_number(target) or syntax.is_port_name(target)):
            yield Complaint(f"spec.ports[{index}].targetPort", f"{target}", "a port or its name")


@on_object("workloads.data")
def data(one: Manifest) -> Iterator[Complaint]:
    """A ConfigMap's keys are file names, its values texts, and all fit into one object."""
    if one.kind == "Secret":
        yield Complaint("kind", "Secret", "none: the chart writes no secret")
    if one.kind != "ConfigMap":
        return
    size = 0
    for part in ("data", "binaryData"):
        for key, value in sub(one.body, part).items():
            size += len(str(value).encode())
            if not syntax.is_config_key(key):
                yield Complaint(part, f"key {key!r}", "letters, digits, - _ .")
    if size == 0:
        yield Complaint("data", "nothing", "a file at least")
    if size > DATA_SIZE_MAX:
        yield Complaint("data", f"{size} B", f"at most {DATA_SIZE_MAX} B")


@on_object("workloads.disruption_budget")
def disruption_budget(one: Manifest) -> Iterator[Complaint]:
    """A budget says one number of the two, and whose pods it is for."""
    if one.kind != "PodDisruptionBudget":
        return
    spec = sub(one.body, "spec")
    said = spec.keys() & {"minAvailable", "maxUnavailable"}
    if len(said) != 1:
        yield Complaint("spec", f"{sorted(said)}", "minAvailable or maxUnavailable")
    for key in said:
        if not _is_share(spec[key]):
            yield Complaint(f"spec.{key}", f"{spec[key]!r}", "a count or a percentage")
    if not sub(spec, "selector"):
        yield Complaint("spec.selector", "nothing", "a selector")
    yield from selector_of("spec.selector", sub(spec, "selector"))
    policy = spec.get("unhealthyPodEvictionPolicy", "IfHealthyBudget")
    if policy not in ("IfHealthyBudget", "AlwaysAllow"):
        yield Complaint("spec.unhealthyPodEvictionPolicy", f"{policy}", "AlwaysAllow")


def selector_of(path: str, selector: Tree) -> Iterator[Complaint]:
    """What is malformed in a label selector."""
    for key, value in sub(selector, "matchLabels").items():
        if not (syntax.is_qualified_name(key) and syntax.is_label_value(value)):
            yield Complaint(f"{path}.matchLabels", f"{key}: {value!r}", "a label")
    for one in items(selector, "matchExpressions"):
        operator, values = one.get("operator"), one.get("values") or []
        if operator not in SELECTOR_OPERATORS:
            yield Complaint(path, f"operator {operator}", " or ".join(SELECTOR_OPERATORS))
        elif (operator in ("In", "NotIn")) != bool(values):
            yield Complaint(path, f"{operator} with {len(values)} values", "values as it needs")
        if not syntax.is_qualified_name(one.get("key")):
            yield Complaint(path, f"key {one.get('key')!r}", "a label's key")


def _counts(path: str, spec: Tree, keys: tuple[str, ...], least: int) -> Iterator[Complaint]:
    for key in keys:
        found = spec.get(key, least)
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            yield Complaint(f"{path}.{key}", f"{found}", f"{least} or more")


def _is_share(found: Any) -> bool:
    if isinstance(found, str):
        number, percent, rest = found.partition("%")
        return bool(percent) and not rest and number.isdecimal() and int(number) <= 100
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0
