"""Network policies: what a server checks in them, and how wide they may be."""

import ipaddress
from collections.abc import Iterator

from tocsin.helm.gate import syntax
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import COMPONENT
from tocsin.helm.gate.rule import Complaint, Tree, items, on_object, sub
from tocsin.helm.gate.rules.workloads import selector_of

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# Ports that every namespace may be on the other end of: the model's own, and DNS.
OPEN_PORTS = (8000, "serve", 53)


@on_object("network.policy")
def policy(one: Manifest) -> Iterator[Complaint]:
    """A NetworkPolicy says which pods, which directions, and peers and ports that exist."""
    if one.kind != "NetworkPolicy":
        return
    spec = sub(one.body, "spec")
    if "podSelector" not in spec:
        yield Complaint("spec.podSelector", "nothing", "a selector")
    yield from selector_of("spec.podSelector", sub(spec, "podSelector"))
    types = spec.get("policyTypes")
    if not isinstance(types, list) or not types or set(types) - {"Ingress", "Egress"}:
        yield Complaint("spec.policyTypes", f"{types}", "Ingress, Egress or both, said")
        types = []
    for key, side, kind in (("ingress", "from", "Ingress"), ("egress", "to", "Egress")):
        if key in spec and kind not in types:
            yield Complaint(f"spec.{key}", "rules", f"{kind} among policyTypes")
        for index, rule in enumerate(items(spec, key)):
            yield from _flow(f"spec.{key}[{index}]", rule, side)


def _flow(path: str, rule: Tree, side: str) -> Iterator[Complaint]:
    # Outwards anybody may be asked, at ports that are named; inwards nobody comes unnamed.
    if not rule.get(side) and (side == "from" or not rule.get("ports") or side in rule):
        yield Complaint(f"{path}.{side}", "nobody named", "peers: none means everybody")
    for peer in items(rule, side):
        if not peer or ("ipBlock" in peer and len(peer) > 1):
            yield Complaint(f"{path}.{side}", f"{sorted(peer)}", "selectors, or an ipBlock alone")
        for key in ("podSelector", "namespaceSelector"):
            yield from selector_of(f"{path}.{side}.{key}", sub(peer, key))
        if "ipBlock" in peer:
            yield from _addresses(f"{path}.{side}.ipBlock", sub(peer, "ipBlock"))
    for port in items(rule, "ports"):
        number = port.get("port")
        if number is not None and not (
            syntax.is_port_number(number) or syntax.is_port_name(number)
        ):
            yield Complaint(f"{path}.ports", f"{number}", "a port or its name")
        if port.get("protocol", "TCP") not in ("TCP", "UDP", "SCTP"):
            yield Complaint(f"{path}.ports", f"{port['protocol']}", "TCP, UDP or SCTP")
        last = port.get("endPort")
        if last is not None and not (syntax.is_port_number(number) and last >= number):
            yield Complaint(f"{path}.ports", f"endPort {last}", "a port from which it counts")


def _addresses(path: str, block: Tree) -> Iterator[Complaint]:
    try:
        network = ipaddress.ip_network(str(block.get("cidr")))
        for inner in block.get("except") or ():
            part = ipaddress.ip_network(str(inner))
            if part.version != network.version or not part.subnet_of(network):  # type: ignore[arg-type]
                yield Complaint(f"{path}.except", f"{inner}", f"a part of {network}")
    except ValueError as problem:
        yield Complaint(path, f"{problem}", "a range of addresses")


@on_object("network.width")
def width(one: Manifest) -> Iterator[Complaint]:
    """What is let in or out is let by part, namespace and port, never for everything at once."""
    if one.kind != "NetworkPolicy":
        return
    spec = sub(one.body, "spec")
    if (spec.get("ingress") or spec.get("egress")) and not names_part(sub(spec, "podSelector")):
        yield Complaint("spec.podSelector", "every pod", "a component: rules are for parts")
    for key, side in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(items(spec, key)):
            path, ports = f"spec.{key}[{index}]", items(rule, "ports")
            for peer in items(rule, side):
                yield from _peer(f"{path}.{side}", peer, [port.get("port") for port in ports])


def _peer(path: str, peer: Tree, ports: list[object]) -> Iterator[Complaint]:
    if "namespaceSelector" not in peer and "podSelector" in peer:
        if not names_part(sub(peer, "podSelector")):
            yield Complaint(f"{path}.podSelector", "every pod", "a component")
        return
    if (not ports or None in ports) and path.endswith("from"):
        yield Complaint(path, "every port", "ports: the peer is not of the release")
    if "namespaceSelector" not in peer:
        return
    selector = sub(peer, "namespaceSelector")
    keys = set(sub(selector, "matchLabels")) | {
        one.get("key") for one in items(selector, "matchExpressions")
    }
    if not keys and set(ports) - set(OPEN_PORTS):
        yield Complaint(f"{path}.namespaceSelector", "every namespace", "those that are named")
    if keys - {NAMESPACE_LABEL}:
        yield Complaint(f"{path}.namespaceSelector", f"{sorted(map(str, keys))}", NAMESPACE_LABEL)


def names_part(selector: Tree) -> bool:
    """Whether a selector says which part of a release it means."""
    return COMPONENT in sub(selector, "matchLabels") or any(
        one.get("key") == COMPONENT for one in items(selector, "matchExpressions")
    )
