"""Who may do and reach what: token, service accounts, network policies, disruption budgets."""

from typing import Annotated

from pydantic import Field

from tocsin.helm.values.section import (
    Annotations,
    Name,
    Section,
)

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9A-Fa-f]{1,4}"
# The :: of an address stands for what is missing of eight groups: one alternative for each place.
_SIX = "|".join(
    (
        rf"({_GROUP}:){{7}}{_GROUP}",
        rf"({_GROUP}:){{1,7}}:",
        *(rf"({_GROUP}:){{1,{7 - after}}}(:{_GROUP}){{1,{after}}}" for after in range(1, 7)),
        rf":((:{_GROUP}){{1,7}}|:)",
    )
)
_CIDR = (
    rf"^({_OCTET}(\.{_OCTET}){{3}}/(3[0-2]|[12]?[0-9])"
    rf"|({_SIX})/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$"
)
FORMS = {_CIDR: "a range of addresses, such as `10.0.0.0/8`"}
"""Pattern → what it asks for, in words."""

Cidr = Annotated[str, Field(pattern=_CIDR)]


class ServiceAccounts(Section):
    """The release's own service accounts; each pod kind has one."""

    annotations: Annotations = Field(default_factory=dict)
    """Annotations of all of them, for example for workload identity."""


class Peers(Section):
    """From where connections come in."""

    namespaces: list[Name] = Field(default_factory=list)
    """Names of namespaces; empty: every namespace of the cluster."""
    cidrs: list[Cidr] = Field(default_factory=list)
    """Address ranges besides, for example of a load balancer."""


class Egress(Section):
    """Where Ray pods may connect to."""

    restrict: bool = False
    """Allows only the release itself, DNS, the API server and `cidrs`."""
    cidrs: list[Cidr] = Field(default_factory=list)
    """Address ranges of Redis, OTLP endpoint, Alertmanager, archive; the private ones or single."""


class NetworkPolicyValues(Section):
    """Who may connect: nobody, besides what is named here."""

    enabled: bool = True
    """Makes NetworkPolicies: default deny of ingress, and the flows that are needed."""
    serve: Peers = Peers()
    """Who may call the model on port 8000."""
    metrics: Peers = Peers(namespaces=["monitoring"])
    """Who may scrape port 9464."""
    operator: Peers = Peers(namespaces=["kuberay-operator"])
    """Where the KubeRay operator runs; it asks the head on ports 8265 and 8000."""
    egress: Egress = Egress()
    """Where Ray pods may connect to."""


class DisruptionBudget(Section):
    """How many pods a drain may take at once."""

    enabled: bool = True
    """Makes PodDisruptionBudgets for the head (unless its state is in Redis) and for each group."""
    worker_max_unavailable: Annotated[int, Field(ge=1, le=1000)] = 1
    """Pods of one group that a drain may take at once."""
