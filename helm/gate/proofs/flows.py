"""Whoever has to reach a pod is let through, in and out; nobody is let out to a strange port."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import COMPONENT, PodView
from tocsin.helm.gate.proofs.pods import labels_in_cluster, pods, ports
from tocsin.helm.gate.proofs.selectors import OURS, matches
from tocsin.helm.gate.render import Case
from tocsin.helm.gate.rule import Finding, Tree, items, sub

RULE = "contract.flow"
OUTSIDE = "another namespace"
SERVE, DASHBOARD, CLIENT, METRICS, RELAY = 8000, 8265, 10001, 9464, 9465
ALL_PORTS = (SERVE, DASHBOARD, CLIENT, METRICS, 6379, 20000)
"""Ray's own processes choose most of their ports: one of those stands for all of them."""
DNS, API = 53, (443, 6443)
# Where somebody outside is listening: names, the API server, the web.
WELL_KNOWN = frozenset({DNS, *API, 80})
# Who must reach whom, and where.
FLOWS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("head", "head", ALL_PORTS),
    ("head", "worker", ALL_PORTS),
    ("worker", "head", ALL_PORTS),
    ("worker", "worker", ALL_PORTS),
    # The driver asks the application, joins it as a Ray client, and deploys nothing.
    ("chaos", "head", (SERVE, DASHBOARD, CLIENT)),
    ("test", "head", (SERVE,)),
    ("test", "worker", (SERVE,)),
    # Callers, the operator, whoever scrapes, Alertmanager.
    (OUTSIDE, "head", (SERVE, DASHBOARD, METRICS)),
    (OUTSIDE, "worker", (SERVE, METRICS)),
    (OUTSIDE, "chaos", (METRICS,)),
    (OUTSIDE, "relay", (RELAY, METRICS)),
)


def check_flows(objects: Sequence[Manifest], case: Case) -> Iterator[Finding]:
    """What the policies of a render let through, held against what must and what may pass."""
    policies = [one for one in objects if one.kind == "NetworkPolicy"]
    known = {pod.component: pod for pod in pods(objects)}
    given = _given(case.values)
    for source, target, numbers in FLOWS:
        if target in known:
            labels = _labels(known, source, case)
            for number in numbers:
                if not _comes_in(policies, known[target], labels, number):
                    where = f"{target} port {number}"
                    yield Finding(RULE, where, f"closed to {source}", "a policy that lets it in")
        if source in known and target in known:
            yield from _held_back(policies, known[source], known[target], numbers)
    bound = {
        subject.get("name")
        for one in objects
        if one.kind == "RoleBinding"
        for subject in items(one.body, "subjects")
    }
    for pod in known.values():
        asks = pod.spec.get("serviceAccountName") in bound
        needs = {"names": {DNS}} | ({"the API": {*API, *given}} if asks else {})
        for name, places in needs.items():
            if not any(_goes_out(policies, pod, {}, number) for number in places):
                where = f"{pod.component} to {name}"
                yield Finding(RULE, where, "not let out", f"let out to one of {sorted(places)}")
    yield from _strange(policies, list(known.values()), given)


def _held_back(
    policies: Sequence[Manifest], source: PodView, target: PodView, numbers: Sequence[int]
) -> Iterator[Finding]:
    labels = labels_in_cluster(target)
    for number in numbers:
        if not _goes_out(policies, source, labels, number, target):
            where = f"{source.component} to {target.component} port {number}"
            yield Finding(RULE, where, "not let out", "a policy that lets it out")


def _labels(known: Mapping[str, PodView], source: str, case: Case) -> dict[str, str] | None:
    """Labels of a pod of this part, made or yet to be made; None for one of somebody else."""
    if source == OUTSIDE:
        return None
    if source in known:
        return labels_in_cluster(known[source])
    return {OURS[0]: case.release, OURS[1]: "tocsin", COMPONENT: source}


def _governing(policies: Sequence[Manifest], pod: PodView, kind: str) -> list[Tree]:
    specs = [sub(one.body, "spec") for one in policies]
    labels = labels_in_cluster(pod)
    return [
        spec
        for spec in specs
        if kind in (spec.get("policyTypes") or ()) and matches(sub(spec, "podSelector"), labels)
    ]


def _comes_in(
    policies: Sequence[Manifest], pod: PodView, source: dict[str, str] | None, number: int
) -> bool:
    specs = _governing(policies, pod, "Ingress")
    rules = [rule for spec in specs for rule in items(spec, "ingress")]
    return not specs or any(
        _is_port(rule, number, pod) and any(_is_peer(one, source) for one in items(rule, "from"))
        for rule in rules
    )


def _goes_out(
    policies: Sequence[Manifest],
    pod: PodView,
    target: dict[str, str],
    number: int,
    there: PodView | None = None,
) -> bool:
    """Whether a pod may ask for a port: of one with these labels, or of anybody where none is."""
    specs = _governing(policies, pod, "Egress")
    rules = [rule for spec in specs for rule in items(spec, "egress")]
    return not specs or any(
        _is_port(rule, number, there)
        and ("to" not in rule or any(_is_peer(one, target or None) for one in items(rule, "to")))
        for rule in rules
    )


def _is_peer(peer: Tree, labels: dict[str, str] | None) -> bool:
    if "ipBlock" in peer or "namespaceSelector" in peer:
        return labels is None or ("ipBlock" not in peer and not sub(peer, "namespaceSelector"))
    return labels is not None and matches(sub(peer, "podSelector"), labels)


def _is_port(rule: Tree, number: int, pod: PodView | None) -> bool:
    said = [port.get("port") for port in items(rule, "ports")]
    named = {name: n for c in pod.containers() for name, n in ports(c).items()} if pod else {}
    return "ports" not in rule or number in said or any(named.get(str(p)) == number for p in said)


def _strange(
    policies: Sequence[Manifest], known: Sequence[PodView], given: set[int]
) -> Iterator[Finding]:
    """Outwards, a port is one that a pod of the release opens, a well-known one, or given."""
    for one in policies:
        for index, rule in enumerate(items(one.body, "spec", "egress")):
            where = f"{one.where} spec.egress[{index}]"
            inner = [
                sub(peer, "podSelector") for peer in items(rule, "to") if "podSelector" in peer
            ]
            opened = {
                number
                for pod in known
                if any(matches(selector, labels_in_cluster(pod)) for selector in inner)
                for container in pod.containers()
                for number in ports(container).values()
            }
            may = opened if inner else WELL_KNOWN | given
            said = [
                (port.get("port"), port.get("protocol", "TCP")) for port in items(rule, "ports")
            ]
            for number, _ in said:
                if number not in may:
                    yield Finding(RULE, where, f"port {number}", f"one of {sorted(may)}")
            over = {protocol for number, protocol in said if number == DNS}
            if over and over != {"TCP", "UDP"}:
                yield Finding(RULE, where, f"names over {sorted(over)}", "TCP and UDP")


def _given(values: Any) -> set[int]:
    """Every number and every address's port that a person wrote."""
    if isinstance(values, Mapping):
        return {number for value in values.values() for number in _given(value)}
    if isinstance(values, list | tuple):
        return {number for value in values for number in _given(value)}
    if isinstance(values, int) and not isinstance(values, bool):
        return {values}
    if isinstance(values, str) and "://" in values:
        try:
            return {urlsplit(values).port or 443}
        except ValueError:
            return set()
    return set()
