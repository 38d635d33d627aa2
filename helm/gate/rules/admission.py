"""Admission policies: complete, readable, bound, and refusing rather than warning."""

import re
from collections.abc import Iterator, Sequence

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.rule import Complaint, Release, Tree, items, on_object, on_release, sub
from tocsin.helm.gate.rules.custom import readable
from tocsin.helm.gate.rules.house import POD_LABELS

OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")
REASONS = ("Unauthorized", "Forbidden", "Invalid", "RequestEntityTooLarge")
_ASKED = re.compile(r"'([^']+)' in (?:oldObject|object)\.metadata\.labels")
_READ = re.compile(r"\b(?:oldObject|object)\.metadata\.labels\['([^']+)'\]")
_ACCOUNT = re.compile(r"system:serviceaccount:([^:']*):")
INSTANCE = "app.kubernetes.io/instance"
POLICY = "ValidatingAdmissionPolicy"
BINDING = "ValidatingAdmissionPolicyBinding"


@on_object("admission.expressions")
def expressions(one: Manifest) -> Iterator[Complaint]:
    """Conditions of an admission policy are expressions that can be read."""
    if one.kind != POLICY:
        return
    for key in ("matchConditions", "validations", "variables"):
        for index, entry in enumerate(items(one.body, "spec", key)):
            problem = readable(str(entry.get("expression", "")))
            if problem:
                path = f"spec.{key}[{index}].expression"
                yield Complaint(path, problem, "an expression in CEL")


@on_object("admission.labels")
def labels(one: Manifest) -> Iterator[Complaint]:
    """Labels of pods that a condition reads are labels that pods have, and asked for before."""
    if one.kind != POLICY:
        return
    for index, entry in enumerate(items(one.body, "spec", "validations")):
        said = str(entry.get("expression", ""))
        path = f"spec.validations[{index}].expression"
        asked, read = set(_ASKED.findall(said)), set(_READ.findall(said))
        for label in sorted((asked | read) - set(POD_LABELS)):
            yield Complaint(path, label, f"one of {', '.join(POD_LABELS)}")
        for label in sorted(asked ^ read):
            yield Complaint(path, f"{label} once", "whether it is there, and what it says")


@on_object("admission.policy")
def policy(one: Manifest) -> Iterator[Complaint]:
    """An admission policy says what it is asked about, refuses in words, and fails closed."""
    if one.kind != POLICY:
        return
    spec = sub(one.body, "spec")
    if spec.get("failurePolicy") != "Fail":
        yield Complaint("spec.failurePolicy", f"{spec.get('failurePolicy')}", "Fail")
    if not items(spec, "validations"):
        yield Complaint("spec.validations", "none", "one at least")
    if not items(spec, "matchConditions"):
        yield Complaint("spec.matchConditions", "none", "whose requests it is about")
    for index, entry in enumerate(items(spec, "validations")):
        if not entry.get("message") or entry.get("reason") not in REASONS:
            yield Complaint(f"spec.validations[{index}]", "no words", "a message and a reason")
    yield from _asked_about(items(spec, "matchConstraints", "resourceRules"))


def _asked_about(rules: Sequence[Tree]) -> Iterator[Complaint]:
    if not rules:
        yield Complaint("spec.matchConstraints.resourceRules", "none", "one at least")
    for index, rule in enumerate(rules):
        path = f"spec.matchConstraints.resourceRules[{index}]"
        for key, allowed in (
            ("apiGroups", ("",)),
            ("apiVersions", ("v1",)),
            ("resources", ("pods",)),
            ("operations", OPERATIONS),
        ):
            if not rule.get(key) or set(rule[key]) - set(allowed):
                yield Complaint(f"{path}.{key}", f"{rule.get(key)}", " or ".join(allowed) or "''")
        if rule.get("scope", "Namespaced") != "Namespaced":
            yield Complaint(f"{path}.scope", f"{rule['scope']}", "Namespaced")


@on_release("admission.own")
def own(release: Release) -> Iterator[Complaint]:
    """A policy is about its own release: what is compared with a place is the release's place.

    And its words say so: a message names what its condition asks of the release.
    """
    for one in release.of_kind(POLICY):
        for index, entry in enumerate(items(one.body, "spec", "validations")):
            said, words = str(entry.get("expression", "")), str(entry.get("message", "")).split()
            path = f"{one.where} spec.validations[{index}]"
            for read, expected, names in (
                # Who is refused elsewhere asks first whose policy this is.
                ("request.namespace", release.namespace, {release.name, release.namespace}),
                (f"labels['{INSTANCE}']", release.name, {release.name}),
            ):
                for found in re.findall(rf"{re.escape(read)} == '([^']*)'", said):
                    if found != expected:
                        yield Complaint(f"{path}.expression", f"{read} == {found}", expected)
                    for name in sorted(names - set(words)):
                        found = " ".join(words)
                        yield Complaint(f"{path}.message", found, f"words that name {name}")
        for index, entry in enumerate(items(one.body, "spec", "matchConditions")):
            for found in _ACCOUNT.findall(str(entry.get("expression", ""))):
                if found != release.namespace:
                    path = f"{one.where} spec.matchConditions[{index}].expression"
                    yield Complaint(path, f"an account of {found}", f"one of {release.namespace}")


@on_release("admission.bound")
def bound(release: Release) -> Iterator[Complaint]:
    """A policy has a binding that denies; a binding has a policy of the render."""
    policies = {one.name for one in release.of_kind(POLICY)}
    used = set()
    for one in release.of_kind(BINDING):
        spec = sub(one.body, "spec")
        used.add(spec.get("policyName"))
        if spec.get("policyName") not in policies:
            path = f"{one.where} spec.policyName"
            yield Complaint(path, f"{spec.get('policyName')}", "a policy of this render")
        if spec.get("validationActions") != ["Deny"]:
            path = f"{one.where} spec.validationActions"
            yield Complaint(path, f"{spec.get('validationActions')}", "[Deny]")
    for left in sorted(policies - used):
        yield Complaint(f"{POLICY}/{left}", "no binding", "one: a policy alone does nothing")
