"""The admission policy lets the chaos driver delete what it may, and asks nobody else anything."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import cel
import pytest

from tests.helm.chaos_values import ARMED, CLUSTER, one, over
from tocsin.helm.gate.render import render

NAMESPACE, RELEASE = "tocsin-demo", "demo"
DRIVER = f"system:serviceaccount:{NAMESPACE}:demo-tocsin-chaos"
HEAD = f"system:serviceaccount:{NAMESPACE}:demo-tocsin-head"
OTHERS = (
    HEAD,
    "system:serviceaccount:elsewhere:demo-tocsin-chaos",
    f"{DRIVER}-2",
    "kubernetes-admin",
)
ALLOWED = {"tocsin.dev/chaos": "allowed"}
TARGET = {
    "app.kubernetes.io/instance": RELEASE,
    "app.kubernetes.io/component": "worker",
    "tocsin.dev/chaos-target": "true",
}
POLICY = {"chaos": {"allowedFaults": ["pod.delete"], "admissionPolicy": {"enabled": True}}}
QUIET = {
    "chaos": {
        "experiment": {"text": "{apiVersion: chaos/v1, kind: Experiment, name: quiet, seed: 1}"}
    }
}
DELETES = over(ARMED, POLICY, QUIET)


class Admission:
    """A policy as the API server applies it: conditions, then every validation."""

    def __init__(self, values: dict[str, Any]) -> None:
        """Render the policy of a release."""
        self.spec = one(values, "ValidatingAdmissionPolicy")["spec"]

    def asked(self, context: dict[str, Any]) -> bool:
        """Whether the policy looks at this request at all."""
        conditions = self.spec["matchConditions"]
        return all(cel.evaluate(condition["expression"], context) for condition in conditions)

    def refusals(self, context: dict[str, Any]) -> list[str]:
        """Messages of what does not hold; an error refuses too, as failurePolicy says."""
        if not self.asked(context):
            return []
        found = []
        for validation in self.spec["validations"]:
            try:
                holds = cel.evaluate(validation["expression"], context)
            except (RuntimeError, TypeError, ValueError):
                holds = False
            if holds is not True:
                found.append(validation["message"])
        return found


def request(
    user: str = DRIVER,
    namespace: str = NAMESPACE,
    namespace_labels: dict[str, str] | None = None,
    pod_labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """What the API server knows when somebody deletes a pod; no labels means no such key."""

    def metadata(labels: dict[str, str] | None) -> dict[str, Any]:
        return {"metadata": {"name": "x"} | ({} if labels is None else {"labels": labels})}

    return {
        "request": {
            "operation": "DELETE",
            "namespace": namespace,
            "name": "x",
            "userInfo": {"username": user, "groups": ["system:serviceaccounts"]},
        },
        "object": None,
        "oldObject": metadata(pod_labels),
        "namespaceObject": metadata(namespace_labels),
    }


def combinations() -> Iterator[tuple[str, str, dict[str, str] | None, dict[str, str] | None]]:
    """Every account × namespace × its label × the pod's labels."""
    yield from product(
        (DRIVER, *OTHERS),
        (NAMESPACE, "elsewhere"),
        (ALLOWED, {"tocsin.dev/chaos": "forbidden"}, {}, None),
        (
            TARGET,
            TARGET | {"tocsin.dev/chaos-target": "false"},
            {key: value for key, value in TARGET.items() if key != "tocsin.dev/chaos-target"},
            TARGET | {"app.kubernetes.io/instance": "another"},
            TARGET | {"app.kubernetes.io/component": "head"},
            {},
            None,
        ),
    )


def test_the_driver_deletes_exactly_labelled_workers_of_an_opted_in_release() -> None:
    """Of every account, namespace, label and pod: one combination in all is let through to it."""
    admission = Admission(DELETES)
    let_through = []
    for user, namespace, namespace_labels, pod_labels in combinations():
        refused = admission.refusals(request(user, namespace, namespace_labels, pod_labels))
        if user != DRIVER:
            assert refused == [], f"{user} is none of its business"
        elif not refused:
            let_through.append((namespace, namespace_labels, pod_labels))
    assert let_through == [(NAMESPACE, ALLOWED, TARGET)]


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (request(namespace_labels={}, pod_labels=TARGET), "does not carry the label tocsin.dev"),
        (request(namespace_labels=ALLOWED, pod_labels={}), "the pod does not carry the label"),
        (
            request(namespace="other", namespace_labels=ALLOWED, pod_labels=TARGET),
            "deletes pods of namespace tocsin-demo only",
        ),
        (
            request(
                namespace_labels=ALLOWED,
                pod_labels=TARGET | {"app.kubernetes.io/instance": "another"},
            ),
            "the pod is no worker of release demo",
        ),
    ],
)
def test_a_refusal_says_what_is_missing(context: dict[str, Any], said: str) -> None:
    """The driver's log then shows it to whoever started the run."""
    assert any(said in message for message in Admission(DELETES).refusals(context))


@pytest.mark.parametrize(
    "changes",
    [{"dryRun": True}, {"allowedFaults": ["kv.bitflip"]}],
    ids=["dry run", "pod.delete not allowed"],
)
def test_where_nothing_may_be_deleted_the_policy_refuses_even_the_right_pod(
    changes: dict[str, Any],
) -> None:
    """A driver that ignored its policy file would still be stopped, by the API server."""
    admission = Admission(over(DELETES, {"chaos": changes}))
    right = request(namespace_labels=ALLOWED, pod_labels=TARGET)
    assert admission.refusals(right) == [
        "chaos.dryRun is true or pod.delete is not allowed: the driver deletes nothing"
    ]
    assert Admission(DELETES).refusals(right) == []


def test_a_driver_in_the_heads_pod_is_bound_too() -> None:
    """There the head's account has the driver's rights, hence its limits."""
    values = over(DELETES, CLUSTER, {"chaos": {"kind": "rayjob", "runOnce": "a"}})
    wrong = request(HEAD, namespace_labels={}, pod_labels=TARGET)
    assert Admission(values).refusals(wrong) != []
    assert Admission(DELETES).refusals(wrong) == []


def test_a_label_of_ones_own_is_what_the_policy_asks_for() -> None:
    """The value and the policy name the same label."""
    admission = Admission(over(DELETES, {"chaos": {"namespaceLabel": "team.example/drills=on"}}))
    other = {"team.example/drills": "on"}
    assert admission.refusals(request(namespace_labels=other, pod_labels=TARGET)) == []
    assert admission.refusals(request(namespace_labels=ALLOWED, pod_labels=TARGET)) != []


def test_the_policy_fails_closed_denies_and_touches_deletions_of_pods_only() -> None:
    """An error in it refuses the driver, and no other kind of request waits for it."""
    policy = one(DELETES, "ValidatingAdmissionPolicy")
    binding = one(DELETES, "ValidatingAdmissionPolicyBinding")
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert "paramKind" not in policy["spec"]
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["DELETE"], ["pods"])
    assert binding["spec"] == {
        "policyName": policy["metadata"]["name"],
        "validationActions": ["Deny"],
    }


def test_two_releases_never_share_a_policy() -> None:
    """It is cluster-scoped, so the name says whose it is."""
    names = {
        one(DELETES, "ValidatingAdmissionPolicy", release=release, namespace=namespace)["metadata"][
            "name"
        ]
        for release, namespace in product(("demo", "tocsin"), ("a", "b"))
    }
    assert len(names) == 4


def test_without_the_value_nothing_is_cluster_scoped() -> None:
    """Whatever else is armed, the chart then needs no right beyond its namespace."""
    kinds = {
        item.kind
        for item in render(over(DELETES, {"chaos": {"admissionPolicy": {"enabled": False}}}))
    }
    assert not {kind for kind in kinds if kind.startswith(("Validating", "Cluster"))}
