"""What a server checks in a pod beyond its containers: volumes, places, policies, grace."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tocsin.helm.gate import syntax
from tocsin.helm.gate.podviews import COMPONENT, PodView
from tocsin.helm.gate.rule import Complaint, Tree, items, on_pod, sub

MODE_MAX = 0o777
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
WEIGHT_MAX = 100
PLACES = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
INSTANCE = "app.kubernetes.io/instance"
MEDIA = ("", "Memory", "HugePages")


@on_pod("placement.volumes")
def volumes(pod: PodView) -> Iterator[Complaint]:
    """Volumes have names of their own, one source each, and are used."""
    listed = items(pod.spec, "volumes")
    for name, count in Counter(volume.get("name") for volume in listed).items():
        if count > 1:
            yield Complaint("spec.volumes", f"{name} {count} times", "each name once")
    used = {
        mount.get("name")
        for container in pod.containers()
        for mount in items(container.body, "volumeMounts")
    }
    for index, volume in enumerate(listed):
        path = f"spec.volumes[{index}]"
        if not syntax.is_label(volume.get("name")):
            yield Complaint(f"{path}.name", f"{volume.get('name')!r}", "a DNS label")
        if len(volume) != 2:
            yield Complaint(path, f"{len(volume) - 1} sources", "exactly one")
        if volume.get("name") not in used:
            yield Complaint(path, f"{volume.get('name')} unused", "a mount of it")
        yield from _source(path, volume)


def _source(path: str, volume: Tree) -> Iterator[Complaint]:
    for kind, key in (("configMap", "name"), ("secret", "secretName")):
        if kind in volume:
            yield from _projection(f"{path}.{kind}", sub(volume, kind), key)
    if "persistentVolumeClaim" in volume:
        name = sub(volume, "persistentVolumeClaim").get("claimName")
        if not syntax.is_subdomain(name):
            yield Complaint(f"{path}.persistentVolumeClaim.claimName", f"{name!r}", "a name")
    empty = sub(volume, "emptyDir")
    if empty.get("medium", "") not in MEDIA and not str(empty["medium"]).startswith("HugePages-"):
        yield Complaint(f"{path}.emptyDir.medium", f"{empty['medium']}", "nothing or Memory")
    if "sizeLimit" in empty and (syntax.quantity(empty["sizeLimit"]) or 0) <= 0:
        yield Complaint(f"{path}.emptyDir.sizeLimit", f"{empty['sizeLimit']!r}", "a quantity")


def _projection(path: str, source: Tree, key: str) -> Iterator[Complaint]:
    if not syntax.is_subdomain(source.get(key)):
        yield Complaint(f"{path}.{key}", f"{source.get(key)!r}", "a name")
    modes = [source.get("defaultMode"), *(one.get("mode") for one in items(source, "items"))]
    for mode in modes:
        if mode is not None and not (isinstance(mode, int) and 0 <= mode <= MODE_MAX):
            yield Complaint(f"{path}.defaultMode", f"{mode}", "0 to 0777, in octal")
    for index, one in enumerate(items(source, "items")):
        target = one.get("path")
        if not isinstance(target, str) or target.startswith("/") or ".." in target.split("/"):
            yield Complaint(f"{path}.items[{index}].path", f"{target!r}", "a relative path")
        if not syntax.is_config_key(one.get("key")):
            yield Complaint(f"{path}.items[{index}].key", f"{one.get('key')!r}", "a key")


@on_pod("placement.policies")
def policies(pod: PodView) -> Iterator[Complaint]:
    """Restart policy, DNS policy and the like are words that the server knows."""
    for key, allowed in (
        ("restartPolicy", ("Always", "OnFailure", "Never")),
        ("dnsPolicy", ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")),
        ("preemptionPolicy", ("PreemptLowerPriority", "Never")),
    ):
        if key in pod.spec and pod.spec[key] not in allowed:
            yield Complaint(f"spec.{key}", f"{pod.spec[key]}", " or ".join(allowed))
    grace = pod.spec.get("terminationGracePeriodSeconds", 0)
    if not isinstance(grace, int) or grace < 0:
        yield Complaint("spec.terminationGracePeriodSeconds", f"{grace}", "0 or more")
    deadline = pod.spec.get("activeDeadlineSeconds", 1)
    if not isinstance(deadline, int) or deadline < 1:
        yield Complaint("spec.activeDeadlineSeconds", f"{deadline}", "1 or more")


@on_pod("placement.names")
def names(pod: PodView) -> Iterator[Complaint]:
    """Names of accounts, classes and secrets are names; labels are labels."""
    for key in ("serviceAccountName", "priorityClassName", "runtimeClassName", "schedulerName"):
        if key in pod.spec and not syntax.is_subdomain(pod.spec[key]):
            yield Complaint(f"spec.{key}", f"{pod.spec[key]!r}", "a name")
    for one in items(pod.spec, "imagePullSecrets"):
        if not syntax.is_subdomain(one.get("name")):
            yield Complaint("spec.imagePullSecrets", f"{one.get('name')!r}", "names")
    for path, pairs in (
        ("metadata.labels", pod.labels),
        ("spec.nodeSelector", sub(pod.spec, "nodeSelector")),
    ):
        for key, value in pairs.items():
            if not (syntax.is_qualified_name(key) and syntax.is_label_value(value)):
                yield Complaint(path, f"{key}: {value!r}", "a label")
    for key, value in pod.annotations.items():
        if not (syntax.is_qualified_name(key) and isinstance(value, str)):
            yield Complaint("metadata.annotations", f"{key}: {value!r}", "a name and a text")


@on_pod("placement.user_ids")
def user_ids(pod: PodView) -> Iterator[Complaint]:
    """User and group numbers are not negative; a change of group owner is a known word."""
    contexts = [("spec.securityContext", sub(pod.spec, "securityContext"))]
    contexts += [
        (f"{one.path}.securityContext", sub(one.body, "securityContext"))
        for one in pod.containers()
    ]
    for path, context in contexts:
        for key in ("runAsUser", "runAsGroup", "fsGroup"):
            if key in context and not (isinstance(context[key], int) and context[key] >= 0):
                yield Complaint(f"{path}.{key}", f"{context[key]!r}", "0 or more")
    change = contexts[0][1].get("fsGroupChangePolicy", "Always")
    if change not in ("Always", "OnRootMismatch"):
        path = "spec.securityContext.fsGroupChangePolicy"
        yield Complaint(path, f"{change}", "Always or OnRootMismatch")


@on_pod("placement.tolerations")
def tolerations(pod: PodView) -> Iterator[Complaint]:
    """A toleration says which taint and how, as the server reads it."""
    for index, one in enumerate(items(pod.spec, "tolerations")):
        path, operator = f"spec.tolerations[{index}]", one.get("operator", "Equal")
        if operator not in ("Equal", "Exists"):
            yield Complaint(f"{path}.operator", f"{operator}", "Equal or Exists")
        if operator == "Exists" and one.get("value"):
            yield Complaint(f"{path}.value", f"{one['value']}", "nothing with Exists")
        if one.get("key") and not syntax.is_qualified_name(one["key"]):
            yield Complaint(f"{path}.key", f"{one['key']!r}", "the key of a taint")
        if not one.get("key") and operator != "Exists":
            yield Complaint(f"{path}.key", "nothing", "a key, or Exists")
        if one.get("effect", "NoSchedule") not in ("", *EFFECTS):
            yield Complaint(f"{path}.effect", f"{one['effect']}", " or ".join(EFFECTS))
        if "tolerationSeconds" in one and one.get("effect") != "NoExecute":
            yield Complaint(f"{path}.tolerationSeconds", "a time", "effect NoExecute with it")


@on_pod("placement.spread")
def spread(pod: PodView) -> Iterator[Complaint]:
    """A spread counts the pod's own kind, over a named place, by at least one."""
    seen: set[Any] = set()
    for index, one in enumerate(items(pod.spec, "topologySpreadConstraints")):
        path, unmet = f"spec.topologySpreadConstraints[{index}]", one.get("whenUnsatisfiable")
        skew = one.get("maxSkew")
        if not isinstance(skew, int) or skew < 1:
            yield Complaint(f"{path}.maxSkew", f"{skew}", "1 or more")
        if unmet not in ("DoNotSchedule", "ScheduleAnyway"):
            yield Complaint(f"{path}.whenUnsatisfiable", f"{unmet}", "a word the server knows")
        if one.get("topologyKey") not in PLACES:
            found = f"{one.get('topologyKey')!r}"
            yield Complaint(f"{path}.topologyKey", found, " or ".join(PLACES))
        selector = sub(one, "labelSelector")
        is_narrow = {INSTANCE, COMPONENT} <= sub(selector, "matchLabels").keys()
        if not is_narrow or not selects(selector, pod.final_labels):
            yield Complaint(f"{path}.labelSelector", "others", "a selector of the pod's own labels")
        key = (one.get("topologyKey"), unmet)
        if key in seen:
            yield Complaint(path, f"{key} again", "each place and policy once")
        seen.add(key)


@on_pod("placement.affinity")
def affinity(pod: PodView) -> Iterator[Complaint]:
    """Conditions on nodes use operators the server knows, with the values each needs."""
    node = sub(pod.spec, "affinity", "nodeAffinity")
    required = sub(node, "requiredDuringSchedulingIgnoredDuringExecution")
    if "requiredDuringSchedulingIgnoredDuringExecution" in node and not items(
        required, "nodeSelectorTerms"
    ):
        yield Complaint("spec.affinity.nodeAffinity", "no terms", "at least one")
    terms = list(items(required, "nodeSelectorTerms"))
    for one in items(node, "preferredDuringSchedulingIgnoredDuringExecution"):
        weight = one.get("weight")
        if not isinstance(weight, int) or not 1 <= weight <= WEIGHT_MAX:
            yield Complaint("spec.affinity.nodeAffinity", f"weight {weight}", "1 to 100")
        terms.append(sub(one, "preference"))
    for term in terms:
        if not term:
            yield Complaint("spec.affinity.nodeAffinity", "an empty term", "a condition")
        for condition in items(term, "matchExpressions"):
            yield from _condition("spec.affinity.nodeAffinity", condition)


def _condition(path: str, condition: Tree) -> Iterator[Complaint]:
    operator, values = condition.get("operator"), condition.get("values") or []
    if operator not in NODE_OPERATORS:
        yield Complaint(path, f"operator {operator}", " or ".join(NODE_OPERATORS))
    elif operator in ("In", "NotIn") and not values:
        yield Complaint(path, f"{operator} of nothing", "values")
    elif operator in ("Exists", "DoesNotExist") and values:
        yield Complaint(path, f"{operator} with values", "none")
    elif operator in ("Gt", "Lt") and not (len(values) == 1 and str(values[0]).isdecimal()):
        yield Complaint(path, f"{operator} {values}", "one whole number")
    if not syntax.is_qualified_name(condition.get("key")):
        yield Complaint(path, f"key {condition.get('key')!r}", "a node label")


def selects(selector: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    """Whether a label selector matches these labels; an empty one matches everything."""
    wanted = sub(selector, "matchLabels")
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_matches(one, labels) for one in items(selector, "matchExpressions"))


def _matches(condition: Tree, labels: Mapping[str, Any]) -> bool:
    key, values = condition.get("key"), condition.get("values") or []
    match condition.get("operator"):
        case "In":
            return labels.get(str(key)) in values
        case "NotIn":
            return labels.get(str(key)) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False
