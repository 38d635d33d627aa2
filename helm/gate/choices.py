"""What the matrix chooses from: axes that are multiplied out, and the rest that meets in pairs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tocsin.helm.monitoring.examples import EXAMPLES


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One setting of one axis."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    gives: frozenset[str] = frozenset()
    """What is true once it is chosen."""
    needs: frozenset[str] = frozenset()
    """What must be true besides; the chart refuses it otherwise."""
    bars: frozenset[str] = frozenset()
    """What must not be true."""


def _choice(
    name: str,
    values: Mapping[str, Any] | None = None,
    gives: str = "",
    needs: str = "",
    bars: str = "",
) -> Choice:
    words = (frozenset(marks.split()) for marks in (gives, needs, bars))
    return Choice(name, values or {}, *words)


def _chaos(**settings: Any) -> Mapping[str, Any]:
    return {"chaos": {"enabled": True, **settings}}


def _armed(**settings: Any) -> Mapping[str, Any]:
    allowed = {"allowedFaults": [*_FAULTS, "pod.delete"]}
    return {"worker": {"chaosTarget": True}, **_chaos(dryRun=False, **allowed, **settings)}


_FAULTS = (
    "act.bitflip",
    "attn.backend_fail",
    "attn.cu_seqlens",
    "batch.malformed",
    "batch.oob_token",
    "kv.bitflip",
    "kv.page_alias",
    "kv.poisoned_page",
    "kv.stale_after_preempt",
    "kv.write_race",
    "rope.table",
    "weight.bitflip",
)
_GATED_SCHEDULE = {"kind": "raycronjob", "rayCronJobGate": True, "schedule": "30 2 * * 1-5"}
_GPU = {"worker": {"gpu": {"count": 2}}, "serve": {"numGpus": 1}}
_VOLUME = {"model": {"source": "pvc", "name": "qwen3-8b", "claimName": "weights", "subPath": "q"}}
_REDIS = {
    "ray": {
        "gcsFaultTolerance": {
            "enabled": True,
            "redisAddress": "redis.example:6379",
            "passwordSecret": {"name": "redis"},
        }
    }
}

AXES: Mapping[str, tuple[Choice, ...]] = {
    "topology": (
        _choice("service"),
        _choice("scaled", {"ray": {"autoscaling": {"enabled": True}}}),
        _choice("cluster", {"topology": "cluster"}, gives="cluster"),
    ),
    "gpus": (_choice("0"), _choice("2", _GPU)),
    "chaos": (
        _choice("off"),
        _choice("dry", _chaos(kind="cronjob", schedule="0 3 * * *")),
        _choice("armed", _armed(kind="cronjob", schedule="15 */6 * * *")),
        _choice("armed-job", _armed(kind="job", runOnce="first")),
        _choice("armed-rayjob", _armed(kind="rayjob", runOnce="first"), needs="cluster"),
        _choice("dry-raycronjob", _chaos(**_GATED_SCHEDULE), needs="cluster"),
    ),
    "model": (_choice("image"), _choice("volume", _VOLUME)),
    "monitoring": (_choice("off"), _choice("on", EXAMPLES["told"])),
    "network": (_choice("on"), _choice("off", {"networkPolicy": {"enabled": False}})),
    "state": (_choice("head"), _choice("redis", _REDIS)),
}

_PLACE = {
    "nodeSelector": {"pool": "gpu"},
    "nodeAffinity": {
        "required": [{"key": "gpu.example/model", "operator": "In", "values": ["h200", "b200"]}],
        "preferred": [{"key": "rack", "operator": "Exists", "weight": 10}],
    },
    "tolerations": [
        {"key": "dedicated", "operator": "Equal", "value": "llm", "effect": "NoSchedule"},
        {"key": "spot"},
    ],
    "runtimeClassName": "nvidia",
    "priorityClassName": "serving",
}
_RESOURCES = {"cpu": "1500m", "cpuLimit": "4", "memory": "12Gi", "ephemeralStorage": "20Gi"}
_EXPERIMENT = """\
apiVersion: chaos/v1
kind: Experiment
name: own
seed: 3
safety: {max_duration: 2m}
faults:
  - {id: one, kind: kv.bitflip, when: {at: [9]}}
"""
_GROUPS = {
    "workerGroups": {
        "large": {"replicas": 2, "minReplicas": 1, "maxReplicas": 3, "gpu": {"count": 4}},
        "small": {"chaosTarget": True, "resources": {"cpu": "3", "memory": "6Gi"}},
    },
    "serve": {"numGpus": 0.5},
}

REST: Mapping[str, tuple[Choice, ...]] = {
    "topology": (
        _choice("service", gives="service"),
        _choice("scaled", {"ray": {"autoscaling": {"enabled": True}}}, gives="service scaled"),
        _choice("cluster", {"topology": "cluster"}, gives="cluster"),
    ),
    "image": (
        _choice("tag"),
        _choice(
            "digest",
            {
                "image": {
                    "repository": "registry.example:5000/llm/tocsin",
                    "digest": "sha256:" + "0123456789abcdef" * 4,
                    "pullPolicy": "Always",
                    "pullSecrets": ["registry"],
                }
            },
        ),
    ),
    "names": (
        _choice("own"),
        _choice("full", {"fullnameOverride": "a23456789-123456789-123456789-123456789x"}),
        _choice("part", {"nameOverride": "llm"}),
    ),
    "place": (_choice("any"), _choice("chosen", {"head": _PLACE, "worker": _PLACE})),
    "resources": (
        _choice("default"),
        _choice("large", {"head": {"resources": _RESOURCES}, "worker": {"resources": _RESOURCES}}),
    ),
    "groups": (_choice("one"), _choice("two", _GROUPS)),
    "spread": (
        _choice("soft"),
        _choice(
            "hard",
            {
                "worker": {
                    "topologySpread": {
                        "hostname": {"maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"},
                        "zone": {"maxSkew": 0},
                    }
                }
            },
        ),
    ),
    "upgrade": (
        _choice("new"),
        _choice("none", {"ray": {"upgrade": {"strategy": "None"}}}),
        _choice(
            "incremental",
            {
                "ray": {
                    "upgrade": {
                        "strategy": "NewClusterWithIncrementalUpgrade",
                        "incremental": {"gatewayClassName": "istio"},
                    }
                }
            },
            needs="scaled",
            bars="cluster",
        ),
    ),
    "access": (
        _choice("open"),
        _choice(
            "closed",
            {
                "token": {"name": "tocsin-token"},
                "extraEnv": [
                    {"name": "LOG_LEVEL", "value": "info"},
                    {"name": "PROXY", "secretKeyRef": {"name": "proxy", "key": "url"}},
                ],
                "serviceAccounts": {"annotations": {"iam.example/role": "tocsin"}},
                "head": {"podAnnotations": {"example.com/team": "llm"}},
            },
        ),
    ),
    "network": (
        _choice("default"),
        _choice("off", {"networkPolicy": {"enabled": False}}),
        _choice(
            "narrow",
            {
                "networkPolicy": {
                    "serve": {"namespaces": ["apps"], "cidrs": ["10.0.0.0/8"]},
                    "egress": {"restrict": True, "cidrs": ["192.0.2.0/24"]},
                },
                "monitoring": {
                    "alertmanagerConfig": {"degrade": {"fromNamespaces": ["alerts", "told"]}}
                },
            },
        ),
    ),
    "budget": (_choice("on"), _choice("off", {"disruptionBudget": {"enabled": False}})),
    "telemetry": (
        _choice("default"),
        _choice("off", {"telemetry": {"enabled": False}}),
        _choice("sent", {"telemetry": {"endpoint": "http://otel.example:4318", "ratio": 1}}),
    ),
    "alertmanager": (
        _choice("none"),
        _choice("named", {"alertmanager": {"url": "http://alertmanager.example:9093"}}, "alerts"),
    ),
    "chaos": (
        _choice("off"),
        _choice("dry", _chaos()),
        _choice(
            "armed",
            _armed(
                schedule="0 4 * * 6",
                experiment={"text": _EXPERIMENT, "seed": 7},
                stopOnAlert={"enabled": True},
                report={"claimName": "reports"},
                publish={"url": "s3://runs/tocsin", "secretName": "s3"},
                apiServer={"ports": [8443, 6443], "cidrs": ["203.0.113.1/32"]},
                driver={**_PLACE, "resources": {"cpu": "2", "memory": "8Gi"}},
                admissionPolicy={"enabled": True},
            ),
            needs="alerts",
        ),
        _choice("job", _chaos(kind="job", runOnce="try-1"), bars="cluster"),
        _choice("rayjob", _armed(kind="rayjob", runOnce="try-1"), needs="cluster"),
    ),
    "test": (
        _choice("on"),
        _choice("off", {"test": {"enabled": False}}),
        _choice("short", {"test": {"completion": False, **_PLACE}}),
    ),
    "monitoring": (
        _choice("off"),
        *(_choice(name, values) for name, values in sorted(EXAMPLES.items())),
    ),
    "suspend": (_choice("no"), _choice("yes", {"ray": {"suspend": True}})),
}
