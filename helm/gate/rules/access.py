"""Who may do what: rights stay in the namespace, are named one by one, and are the few needed."""

from collections.abc import Iterator

from tocsin.helm.gate import syntax
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.rule import Complaint, Release, items, on_object, on_release, sub

# Every right that any account of a release may hold: group, resource → verbs.
RIGHTS: dict[tuple[str, str], frozenset[str]] = {
    # The driver strikes pods; the autoscaler marks and resizes them.
    ("", "pods"): frozenset({"get", "list", "watch", "delete", "patch"}),
    ("", "pods/resize"): frozenset({"patch"}),
    ("", "namespaces"): frozenset({"get"}),
    ("ray.io", "rayclusters"): frozenset({"get", "patch"}),
    ("coordination.k8s.io", "leases"): frozenset({"get", "update"}),
}
# Rights that make sense for one named object only.
NAMED = {("", "namespaces"), ("coordination.k8s.io", "leases")}
# Verbs that a server does not limit by name, so that a name with them would promise too much.
UNNAMED_VERBS = frozenset({"create", "list", "watch", "deletecollection"})
# What each part that asks the API cannot do without.
SCALER_NEEDS = ("get pods", "list pods", "watch pods", "get rayclusters", "patch rayclusters")
DRIVER_NEEDS = ("get pods", "list pods", "get namespaces", "get leases", "update leases")
CLUSTER_KINDS = ("ClusterRole", "ClusterRoleBinding")
ROLE_GROUP = "rbac.authorization.k8s.io"


@on_object("access.cluster_wide")
def cluster_wide(one: Manifest) -> Iterator[Complaint]:
    """No right reaches beyond the namespace, neither granted nor borrowed."""
    if one.kind in CLUSTER_KINDS:
        yield Complaint("kind", one.kind, "Role and RoleBinding")
    if one.kind == "RoleBinding" and sub(one.body, "roleRef").get("kind") != "Role":
        yield Complaint("roleRef.kind", f"{sub(one.body, 'roleRef').get('kind')}", "Role")


@on_object("access.binding_name")
def binding_name(one: Manifest) -> Iterator[Complaint]:
    """A binding is named like its role: one name to look for, and none that two parts share."""
    role = sub(one.body, "roleRef").get("name")
    if one.kind == "RoleBinding" and one.name != role:
        yield Complaint("metadata.name", one.name, f"{role}, the name of its role")


@on_object("access.rights")
def rights(one: Manifest) -> Iterator[Complaint]:
    """Each right is one of those that the program is known to need; none is a wildcard."""
    if one.kind not in ("Role", "ClusterRole"):
        return
    if not items(one.body, "rules"):
        yield Complaint("rules", "none", "rules: a role without is left out")
    for index, rule in enumerate(items(one.body, "rules")):
        path, names = f"rules[{index}]", rule.get("resourceNames")
        if rule.get("nonResourceURLs"):
            yield Complaint(f"{path}.nonResourceURLs", f"{rule['nonResourceURLs']}", "none")
        for key in ("apiGroups", "resources", "verbs"):
            if not isinstance(rule.get(key), list) or not rule[key]:
                yield Complaint(f"{path}.{key}", "nothing", "a list")
        for right in pairs_of(rule):
            yield from _right(path, right, bool(names))


def _right(path: str, right: tuple[str, str, str], is_named: bool) -> Iterator[Complaint]:
    group, resource, verb = right
    said = f"{verb} {resource}{'.' if group else ''}{group}"
    if verb not in RIGHTS.get((group, resource), frozenset()):
        yield Complaint(path, said, "a right of RIGHTS in helm/gate/rules/access.py")
    if (group, resource) in NAMED and not is_named:
        yield Complaint(path, f"{said} of any name", "resourceNames")
    if is_named and verb in UNNAMED_VERBS:
        yield Complaint(path, f"{said} with a name", "a rule without resourceNames")


def pairs_of(rule: object) -> Iterator[tuple[str, str, str]]:
    """Every (group, resource, verb) that a rule of a role grants."""
    said = sub(rule)
    for group in said.get("apiGroups") or ():
        for resource in said.get("resources") or ():
            for verb in said.get("verbs") or ():
                yield str(group), str(resource), str(verb)


def cluster_wide_pairs(objects: Iterator[Manifest] | tuple[Manifest, ...]) -> int:
    """How many (resource, verb) pairs a render grants in every namespace; the goal is 0."""
    return sum(
        sum(1 for _ in pairs_of(rule))
        for one in objects
        if one.kind == "ClusterRole"
        for rule in items(one.body, "rules")
    )


@on_object("access.binding")
def binding(one: Manifest) -> Iterator[Complaint]:
    """A binding names a role of its group, and service accounts: no user, no group of users."""
    if one.kind not in ("RoleBinding", "ClusterRoleBinding"):
        return
    reference = sub(one.body, "roleRef")
    if reference.get("apiGroup") != ROLE_GROUP or not reference.get("name"):
        yield Complaint("roleRef", f"{dict(reference)}", f"a role of {ROLE_GROUP}")
    subjects = items(one.body, "subjects")
    if not subjects:
        yield Complaint("subjects", "none", "a service account")
    for index, subject in enumerate(subjects):
        if subject.get("kind") != "ServiceAccount" or subject.get("apiGroup", "") != "":
            yield Complaint(f"subjects[{index}].kind", f"{subject.get('kind')}", "ServiceAccount")
        if not syntax.is_subdomain(subject.get("name")) or subject.get("name") == "default":
            found = subject.get("name")
            yield Complaint(f"subjects[{index}].name", f"{found}", "an account of the release")


@on_release("access.bound")
def bound(release: Release) -> Iterator[Complaint]:
    """Roles, bindings and accounts of a render fit together; none is left over."""
    accounts = {one.name for one in release.of_kind("ServiceAccount")}
    roles = {one.name for one in release.of_kind("Role")}
    used: set[str] = set()
    for one in release.of_kind("RoleBinding"):
        role = str(sub(one.body, "roleRef").get("name"))
        used.add(role)
        if role not in roles:
            yield Complaint(f"{one.where} roleRef.name", role, "a role of this render")
        for subject in items(one.body, "subjects"):
            if subject.get("name") not in accounts:
                path = f"{one.where} subjects"
                yield Complaint(path, f"{subject.get('name')}", "an account of this render")
            if subject.get("namespace") != release.namespace:
                path, found = f"{one.where} subjects", subject.get("namespace")
                yield Complaint(path, f"namespace {found}", release.namespace)
    for left in sorted(roles - used):
        yield Complaint(f"Role/{left}", "bound to nobody", "a binding")


@on_object("access.account")
def account(one: Manifest) -> Iterator[Complaint]:
    """An account gives no pod a token unasked: the pod says that it needs one."""
    if one.kind == "ServiceAccount" and one.body.get("automountServiceAccountToken") is not False:
        found = one.body.get("automountServiceAccountToken")
        yield Complaint("automountServiceAccountToken", f"{found}", "false")


@on_release("access.named")
def named(release: Release) -> Iterator[Complaint]:
    """A right on a named object names one of the release: its lease, its namespace."""
    leases = {one.name for one in release.of_kind("Lease")}
    for one in release.of_kind("Role"):
        for rule in items(one.body, "rules"):
            for resource, known in (("leases", leases), ("namespaces", {release.namespace})):
                if resource in (rule.get("resources") or ()):
                    for name in set(rule.get("resourceNames") or ()) - known:
                        path = f"{one.where} rules.resourceNames"
                        yield Complaint(path, f"{resource} {name}", "one of this release")


@on_release("access.needs")
def needs(release: Release) -> Iterator[Complaint]:
    """A part that asks the API may ask what it needs, and has a token to ask with."""
    granted = _granted(release)
    for pod in release.pods:
        name = str(pod.spec.get("serviceAccountName"))
        needed = SCALER_NEEDS if pod.injected else ()
        if pod.component == "chaos" and pod.owner.kind in ("CronJob", "Job"):
            needed = DRIVER_NEEDS
        missing = sorted(set(needed) - granted.get(name, set()))
        if missing:
            path = f"{pod.where} spec.serviceAccountName"
            yield Complaint(path, f"{name} may not {', '.join(missing)}", "a role that says so")
        has_token = pod.spec.get("automountServiceAccountToken") is True
        # A driver may run in the head of a RayCluster, which must not be made anew for it.
        waits = pod.is_ray_head and any(release.of_kind("RayCluster"))
        if has_token != (name in granted or waits):
            path = f"{pod.where} spec.automountServiceAccountToken"
            yield Complaint(path, f"{has_token} for {name}", "a token where there are rights")


def _granted(release: Release) -> dict[str, set[str]]:
    """Account → what it may do, for accounts to which some role is bound."""
    rules_of = {one.name: items(one.body, "rules") for one in release.of_kind("Role")}
    granted: dict[str, set[str]] = {}
    for one in release.of_kind("RoleBinding"):
        for subject in items(one.body, "subjects"):
            held = granted.setdefault(str(subject.get("name")), set())
            for rule in rules_of.get(str(sub(one.body, "roleRef").get("name")), ()):
                held |= {f"{verb} {resource}" for _, resource, verb in pairs_of(rule)}
    return granted
