"""What every object has in common: a text with one reading, a name, labels, no nulls, no hooks."""

from collections.abc import Iterator, Mapping
from typing import Any

from tocsin.helm.gate import syntax
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.rule import Complaint, Release, Tree, on_object, on_release, sub

# Names that become parts of DNS names or label values, and how long they may be.
LABEL_1035_KINDS = ("Service", "RayService", "RayCluster", "RayJob", "RayCronJob")
CRON_JOB_NAME_LENGTH_MAX = 52
JOB_NAME_LENGTH_MAX = 63
PATH_NAME_KINDS = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")
MANAGED = ("app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart")
ANNOTATIONS_SIZE_MAX = 262144
HOOK = "helm.sh/hook"
CHART_NAME = "tocsin"
MANAGER = "Helm"
# What an object can be a part of.
COMPONENTS = ("service", "head", "worker", "chaos", "test", "network", "monitoring", "relay")
INT32_MAX = 2**31 - 1
CLUSTER_SCOPED = (
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "PriorityClass",
    "StorageClass",
    "PersistentVolume",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "APIService",
    "Node",
)
# The only objects outside the namespace that a value can ask for; they grant nothing.
CLUSTER_SCOPED_ALLOWED = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


@on_object("metadata.text")
def text(one: Manifest) -> Iterator[Complaint]:
    """The text is YAML with one reading: no key twice, no word that means two things."""
    for fault in one.faults:
        yield Complaint("", fault, "YAML that every reader takes for the same")


@on_object("metadata.nulls")
def nulls(one: Manifest) -> Iterator[Complaint]:
    """Nothing is null: a null is a value that was forgotten, and servers differ about it."""
    for path in _nulls(one.body, ""):
        yield Complaint(path, "null", "a value, or no key")


def _nulls(tree: Any, path: str) -> Iterator[str]:
    if tree is None:
        yield path.removeprefix(".")
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _nulls(value, f"{path}.{key}")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _nulls(value, f"{path}[{index}]")


@on_object("metadata.numbers")
def numbers(one: Manifest) -> Iterator[Complaint]:
    """No whole number needs more than 32 bits: servers refuse it in most fields, it fits none."""
    for path in _wide(one.body, ""):
        yield Complaint(path, "beyond 32 bits", f"at most {INT32_MAX}")


def _wide(tree: Any, path: str) -> Iterator[str]:
    if isinstance(tree, int) and abs(tree) > INT32_MAX:
        yield path.removeprefix(".")
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _wide(value, f"{path}.{key}")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _wide(value, f"{path}[{index}]")


@on_object("metadata.name")
def name(one: Manifest) -> Iterator[Complaint]:
    """An object has a kind, and a name of the form and length that its kind asks for."""
    if not one.kind or not one.api_version:
        yield Complaint("kind", "none", "apiVersion and kind")
    found = one.metadata.get("name")
    if one.kind in LABEL_1035_KINDS:
        fits, form = syntax.is_label_1035(found), "a DNS label that begins with a letter"
    elif one.kind in PATH_NAME_KINDS:
        fits, form = (
            isinstance(found, str)
            and found not in ("", ".", "..")
            and not ({"/", "%"} & set(found)),
            "a name without / and %",
        )
    elif one.kind in ("CronJob", "Job"):
        limit = CRON_JOB_NAME_LENGTH_MAX if one.kind == "CronJob" else JOB_NAME_LENGTH_MAX
        fits = syntax.is_subdomain(found) and len(str(found)) <= limit
        form = f"a DNS name of at most {limit} characters"
    else:
        fits, form = syntax.is_subdomain(found), "a DNS name"
    if not fits:
        yield Complaint("metadata.name", f"{found!r}", form)


@on_object("metadata.labels")
def labels(one: Manifest) -> Iterator[Complaint]:
    """Labels and annotations are well formed, and those that find an object are there."""
    said = sub(one.metadata, "labels")
    for key, value in said.items():
        if not (syntax.is_qualified_name(key) and syntax.is_label_value(value)):
            yield Complaint("metadata.labels", f"{key}: {value!r}", "a label")
    size = 0
    for key, value in sub(one.metadata, "annotations").items():
        size += len(f"{key}{value}".encode())
        if not (syntax.is_qualified_name(str(key).lower()) and isinstance(value, str)):
            yield Complaint("metadata.annotations", f"{key}: {value!r:.60}", "a name and a text")
    if size > ANNOTATIONS_SIZE_MAX:
        yield Complaint("metadata.annotations", f"{size} B", f"at most {ANNOTATIONS_SIZE_MAX} B")
    # A pod made directly carries what pods carry, which nothing that changes is part of.
    for key in LABELS if one.kind == "Pod" else (*LABELS, *MANAGED):
        if not said.get(key):
            yield Complaint(f"metadata.labels[{key}]", "nothing", "a value")
    yield from _words(said)


def _words(said: Tree) -> Iterator[Complaint]:
    """Labels whose values are known beforehand."""
    for key, expected in ((LABELS[0], CHART_NAME), (MANAGED[0], MANAGER)):
        if said.get(key, expected) != expected:
            yield Complaint(f"metadata.labels[{key}]", f"{said[key]}", expected)
    if said.get(LABELS[2], COMPONENTS[0]) not in COMPONENTS:
        found, path = said[LABELS[2]], f"metadata.labels[{LABELS[2]}]"
        yield Complaint(path, f"{found}", " or ".join(COMPONENTS))


@on_object("metadata.hooks")
def hooks(one: Manifest) -> Iterator[Complaint]:
    """Only test pods are hooks: what a hook makes is not taken away by an uninstall."""
    found = sub(one.metadata, "annotations").get(HOOK)
    if found is not None and found != "test":
        yield Complaint(f"metadata.annotations[{HOOK}]", f"{found}", "test, or none")
    if found == "test" and one.kind not in ("Pod", "ServiceAccount", "ConfigMap", "Job"):
        yield Complaint(f"metadata.annotations[{HOOK}]", f"test on a {one.kind}", "a test pod")
    if sub(one.metadata, "annotations").get("helm.sh/resource-policy") is not None:
        yield Complaint("metadata.annotations", "helm.sh/resource-policy", "none: nothing is kept")
    if one.metadata.get("finalizers"):
        yield Complaint("metadata.finalizers", f"{one.metadata['finalizers']}", "none")


@on_object("metadata.scope")
def scope(one: Manifest) -> Iterator[Complaint]:
    """A release stays in its namespace: no object of the cluster, none of another namespace."""
    if one.kind in CLUSTER_SCOPED:
        if one.kind not in CLUSTER_SCOPED_ALLOWED:
            yield Complaint("kind", one.kind, "kinds that live in a namespace")
        if "namespace" in one.metadata:
            yield Complaint("metadata.namespace", f"{one.metadata['namespace']}", "none")
    if one.kind == "List":
        yield Complaint("kind", "List", "objects one by one")


@on_release("metadata.namespace")
def namespace(release: Release) -> Iterator[Complaint]:
    """An object names the namespace of its release, so that it is plain where it lands."""
    for one in release.objects:
        found = one.metadata.get("namespace")
        if one.kind not in CLUSTER_SCOPED and found != release.namespace:
            path = f"{one.where} metadata.namespace"
            yield Complaint(path, f"{found}", f"{release.namespace}, the release's")


@on_release("metadata.once")
def once(release: Release) -> Iterator[Complaint]:
    """No two objects of a render have one kind and name."""
    seen: set[tuple[str, str]] = set()
    for one in release.objects:
        key = (one.api_version.partition("/")[0] + one.kind, one.name)
        if key in seen:
            yield Complaint(one.where, "twice", "once")
        seen.add(key)


@on_release("metadata.chart")
def chart(release: Release) -> Iterator[Complaint]:
    """All objects of a render name one chart and one version of the program."""
    for key in MANAGED[1:]:
        said = [(one, sub(one.metadata, "labels").get(key)) for one in release.objects]
        known = [value for _, value in said if value is not None]
        for one, value in said:
            if value is not None and value != max(set(known), key=known.count):
                path = f"{one.where} metadata.labels[{key}]"
                yield Complaint(path, f"{value}", "what the other objects say")


@on_release("metadata.instance")
def instance(release: Release) -> Iterator[Complaint]:
    """The instance label says which release an object and its pods belong to."""
    labelled = [(f"{one.where} metadata", sub(one.metadata, "labels")) for one in release.objects]
    labelled += [(f"{pod.where} metadata", pod.labels) for pod in release.pods]
    for where, said in labelled:
        found = said.get(LABELS[1], release.name)
        if found != release.name:
            yield Complaint(f"{where}.labels[{LABELS[1]}]", f"{found}", release.name)
