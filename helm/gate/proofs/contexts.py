"""Value sets in which values have their effect: one that says nearly all, and its variations."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tocsin.helm.gate.choices import AXES, REST
from tocsin.helm.gate.render import Case, merged
from tocsin.helm.monitoring.examples import EXAMPLES

Values = Mapping[str, Any]

# What must be chosen together with the rest so that as many values as possible are said at once.
_ALL = {
    "state": "redis",
    "model": "volume",
    "topology": "scaled",
    "image": "digest",
    "names": "part",
    "place": "chosen",
    "resources": "large",
    "spread": "hard",
    "upgrade": "incremental",
    "access": "closed",
    "network": "narrow",
    "telemetry": "sent",
    "alertmanager": "named",
    "chaos": "armed",
    "test": "short",
    "monitoring": "everything",
}
_GPU: Values = {"worker": {"gpu": {"count": 2}, "idleTimeoutSeconds": 30}, "serve": {"numGpus": 1}}
_SPREAD: Values = {"worker": {"topologySpread": {"zone": {"maxSkew": 2}}}}
_GATEWAYS: Values = {"serve": {"gatewayReplicas": 2, "args": {"gateway_placement": "workers"}}}
# Conditions without values, a taint without one: where an operator can change.
_BARE = {
    "nodeAffinity": {
        "required": [{"key": "gpu.example/model", "operator": "Exists", "values": []}],
        "preferred": [{"key": "rack", "operator": "Exists", "values": [], "weight": 10}],
    },
    "tolerations": [{"key": "spot", "operator": "Exists", "value": "", "effect": "NoSchedule"}],
}
_FULL = {
    "nodeAffinity": {
        "required": [{"key": "gpu.example/model", "operator": "In", "values": ["h200", "b200"]}],
        "preferred": [{"key": "rack", "operator": "In", "values": ["a1", "a2"], "weight": 10}],
    },
    "tolerations": [{"key": "spot", "operator": "Equal", "value": "y1", "effect": "NoSchedule"}],
}
_REPLACED = {
    "metricRelabelings": [
        {
            "action": "replace",
            "sourceLabels": ["ray_io_cluster"],
            "regex": "(.+)",
            "targetLabel": "cluster",
            "replacement": "$1",
        }
    ]
}
_SECRETS = {
    "extraEnv": [{"name": "PROXY", "value": "", "secretKeyRef": {"name": "proxy", "key": "url"}}],
    "ray": {"gcsFaultTolerance": {"usernameSecret": {"name": "redis", "key": "user"}}},
}
_RELAY = {"enabled": True, "configSecret": "relay", "tokenSecret": {"name": "relay", "key": "t"}}


def contexts(chart: Path) -> dict[str, Case]:
    """The value sets by name, those first that say most.

    A value may act in few of them only: a schedule needs a kind that has one, the share of a volume
    a volume. Whatever a group of workers can say for itself is said in `groups`.
    """
    own = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    all_said = EXAMPLES["everything"]["monitoring"]
    # Rules and dashboards are most of a render's time, and no other value meets theirs.
    apart = dict.fromkeys(("prometheusRule", "dashboards", "links"))
    whole = merged(_chosen(_ALL), {"monitoring": apart})
    for more in (_GPU, _SPREAD, _GATEWAYS, *_everywhere(_FULL)):
        whole = merged(whole, more)
    bare = whole
    for more in (*_everywhere(_BARE), _SECRETS, _monitoring(podMonitor=_REPLACED)):
        bare = merged(bare, more)
    found = {
        "all": whole,
        "groups": _grouped(whole, own),
        "bare": bare,
        "bare groups": _grouped(bare, own),
        "rules": _monitoring(prometheusRule=all_said["prometheusRule"], links=all_said["links"]),
        "dashboards": _monitoring(dashboards=all_said["dashboards"]),
        "defaults": {},
        "relay": merged(EXAMPLES["told"], _monitoring(relay=_RELAY)),
        "relay elsewhere": EXAMPLES["relay-elsewhere"],
        "cluster": {"topology": "cluster"},
    }
    found |= {f"chaos {one.name}": _with_topology(one.name, one.values) for one in AXES["chaos"]}
    return {name: Case(values) for name, values in found.items()}


def _grouped(values: Values, own: Values) -> Values:
    """All that workers have in common, said of a group of them."""
    rest = {key: value for key, value in values.items() if key != "worker"}
    return {**rest, "workerGroups": {"checked": merged(own["worker"], values["worker"])}}


def _chosen(names: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for axis, name in names.items():
        known = {one.name: one for one in (*AXES.get(axis, ()), *REST.get(axis, ()))}
        values = merged(values, known[name].values)
    return values


def _everywhere(place: Values) -> tuple[Values, ...]:
    """A place for every pod of the chart."""
    return (
        {"head": place},
        {"worker": place},
        {"test": place},
        {"chaos": {"driver": place}},
        {"monitoring": {"relay": {"placement": place}}},
    )


def _monitoring(**parts: Any) -> Values:
    return {"monitoring": parts}


def _with_topology(name: str, values: Values) -> Values:
    return merged(values, {"topology": "cluster"}) if "ray" in name else values
