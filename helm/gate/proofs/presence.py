"""What a careful operator looks for first is there: helm test, network policies, digests."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.proofs.pods import labels_in_cluster, pods
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.proofs.selectors import matches
from tocsin.helm.gate.render import render
from tocsin.helm.gate.rule import Finding, sub

RULE = "presence"
DIGEST = "sha256:" + "0123456789abcdef" * 4


def presence(chart: Path) -> Proof:
    """At default values: tests, a policy on every pod; with a digest: no image by tag."""
    objects = render({}, chart=chart)
    tests = [one for one in objects if _hook(one) == "test"]
    policies = [one for one in objects if one.kind == "NetworkPolicy"]
    pinned = render({"image": {"digest": DIGEST}, "chaos": {"enabled": True}}, chart=chart)
    findings = [*_unguarded(objects, policies), *_by_tag(pinned)]
    if not tests:
        findings.append(Finding(RULE, "helm test", "no test pod", "one at default values"))
    return Proof(
        "presence",
        "all",
        {"tests": len(tests), "network_policies": len(policies), "digests": 1},
        tuple(findings),
    )


def _hook(one: Manifest) -> str:
    return str(sub(one.metadata, "annotations").get("helm.sh/hook", ""))


def _unguarded(objects: Sequence[Manifest], policies: Sequence[Manifest]) -> Iterator[Finding]:
    for pod in pods(objects):
        labels = labels_in_cluster(pod)
        chosen = (
            matches(sub(one.body, "spec", "podSelector"), labels)
            and "Ingress" in (sub(one.body, "spec").get("policyTypes") or ())
            for one in policies
        )
        if not any(chosen):
            yield Finding(RULE, pod.where, "open to everybody", "an ingress NetworkPolicy")


def _by_tag(objects: Sequence[Manifest]) -> Iterator[Finding]:
    for pod in pods(objects):
        for container in pod.containers():
            image = str(container.body.get("image", DIGEST))
            if not image.endswith(f"@{DIGEST}"):
                where = f"{pod.where} {container.name}"
                yield Finding(RULE, where, f"image {image}", "the digest that was given")
