"""Values that do not fit each other are refused in words: one case for each guard of a template."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tocsin.core.errors import SpecError
from tocsin.helm.gate.proofs.many import HARD, Texts, texts
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.render import Case, merged
from tocsin.helm.gate.rule import Finding

RULE = "guards"
_GUARD = re.compile(r'\{\{-?\s*fail\s+(?:\(printf\s+)?"((?:[^"\\]|\\.)*)"')
_LIVE = "a live cluster alone trips it: `helm template` finds no namespace and asks nothing"
ELSEWHERE: Mapping[str, str] = {
    "chaos.dryRun: false, and namespace %s has no label": _LIVE,
    "cluster: it does not know %s": _LIVE,
    "chaos.admissionPolicy.enabled: Kubernetes is %s": "a version of Kubernetes trips it",
}
"""Guards that no case here can trip → why; tests/helm ask them of a cluster made up."""

_ON = {"enabled": True}
_CHAOS = {"chaos": _ON}
_ARMED = {"worker": {"chaosTarget": True}, "chaos": {"enabled": True, "dryRun": False}}
_RAYJOB = {"topology": "cluster", "chaos": {"enabled": True, "kind": "rayjob", "runOnce": "a"}}
_GATED = {"kind": "raycronjob", "schedule": "@daily", "rayCronJobGate": True, "enabled": True}
_TOLD = {
    "token": {"name": "token"},
    "monitoring": {
        "alertmanagerConfig": {
            "enabled": True,
            "receivers": {
                "page": {"webhookSecret": {"name": "page"}},
                "ticket": {"webhookSecret": {"name": "ticket"}},
            },
        }
    },
}


def _node(**says: Any) -> dict[str, Any]:
    return {"worker": says}


def _chaos(**says: Any) -> dict[str, Any]:
    return {"chaos": {"enabled": True, **says}}


def _told(**receivers: Any) -> dict[str, Any]:
    return merged(_TOLD, {"monitoring": {"alertmanagerConfig": {"receivers": receivers}}})


def _text(text: str) -> dict[str, Any]:
    return _chaos(experiment={"text": text})


def _own(**says: Any) -> dict[str, Any]:
    whole = {"apiVersion": "chaos/v1", "kind": "Experiment", "name": "own", "seed": 1, **says}
    return _text(json.dumps(whole))


def _relabeled(**says: Any) -> dict[str, Any]:
    return {"monitoring": {"podMonitor": {"metricRelabelings": [says]}}}


def _needs(kind: str, operator: str, values: list[str]) -> dict[str, Any]:
    entry = {"key": "disk", "operator": operator, "values": values}
    return _node(nodeAffinity={kind: [entry]})


_EXPERIMENT = (
    "{apiVersion: chaos/v1, kind: Experiment, name: own, seed: 1, safety: {max_duration: %s}}"
)
_REDIS = {"enabled": True, "redisAddress": "redis.example:6379"}

CASES: Mapping[str, tuple[Mapping[str, Any], str]] = {
    # what is wrong: (values, a part of the guard's words)
    "an old Ray": ({"ray": {"version": "2.52.9"}}, "expected 2.53.0 or later"),
    "no group": ({"workerGroups": {"checked": None}}, "no group is left"),
    "a watermark above all the memory": (
        _node(resources={"memory": "2Gi"}),
        "attention would never leave",
    ),
    "ranges that restrict nothing": (
        {"networkPolicy": {"egress": {"cidrs": ["10.0.0.0/8"]}}},
        "networkPolicy.egress.cidrs: given while",
    ),
    "no Redis": ({"ray": {"gcsFaultTolerance": _ON}}, "redisAddress: empty"),
    "an unused Redis": (
        {"ray": {"gcsFaultTolerance": {"redisAddress": "redis.example:6379"}}},
        "enabled is false",
    ),
    "an unused password": (
        {"ray": {"gcsFaultTolerance": {"passwordSecret": {"name": "p"}}}},
        "enabled is false",
    ),
    "an unused user": (
        {"ray": {"gcsFaultTolerance": {"usernameSecret": {"name": "u"}}}},
        "enabled is false",
    ),
    "a user without password": (
        {"ray": {"gcsFaultTolerance": {**_REDIS, "usernameSecret": {"name": "u"}}}},
        "passwordSecret.name: empty",
    ),
    "autoscaling that Helm fights": (
        {"topology": "cluster", "ray": {"autoscaling": _ON}},
        "both own the replicas",
    ),
    "the autoscaler's CPUs": (
        {"ray": {"autoscaling": {**_ON, "resources": {"cpu": "2", "cpuLimit": "1"}}}},
        "ray.autoscaling.resources.cpu",
    ),
    "incremental on a cluster": (
        {
            "topology": "cluster",
            "ray": {"upgrade": {"strategy": "NewClusterWithIncrementalUpgrade"}},
        },
        "has no traffic to move",
    ),
    "incremental without autoscaling": (
        {"ray": {"upgrade": {"strategy": "NewClusterWithIncrementalUpgrade"}}},
        "without autoscaling, which KubeRay refuses",
    ),
    "incremental without a gateway": (
        {
            "ray": {
                "autoscaling": _ON,
                "upgrade": {"strategy": "NewClusterWithIncrementalUpgrade"},
            }
        },
        "gatewayClassName: empty",
    ),
    "steps above the surge": (
        {
            "ray": {
                "autoscaling": _ON,
                "upgrade": {
                    "strategy": "NewClusterWithIncrementalUpgrade",
                    "incremental": {
                        "gatewayClassName": "g",
                        "stepSizePercent": 60,
                        "maxSurgePercent": 50,
                    },
                },
            }
        },
        "expected at most maxSurgePercent",
    ),
    "traces to nowhere": (
        {"telemetry": {"enabled": False, "endpoint": "http://otel.example:4318"}},
        "telemetry.endpoint",
    ),
    "a volume without claim": ({"model": {"source": "pvc"}}, "model.claimName: empty"),
    "a model of no image": ({"model": {"name": "gpt5"}}, "gpt5 with model.source image"),
    "a claim that is not used": ({"model": {"claimName": "weights"}}, "model.source: image"),
    "a folder that is not used": ({"model": {"subPath": "q"}}, "model.source: image"),
    "two gateways on the head": ({"serve": {"gatewayReplicas": 2}}, "serve.gatewayReplicas: 2"),
    "a small object store": (_node(objectStore="74Mi"), "at least 75Mi"),
    "a large object store": (_node(objectStore="2Gi"), "expected at most sharedMemory"),
    "much shared memory": (
        _node(sharedMemory="64Gi", resources={"memory": "64Gi"}),
        "sharedMemory: 64Gi, expected less",
    ),
    "a head with much shared memory": (
        {"head": {"sharedMemory": "4Gi", "resources": {"memory": "4Gi"}}},
        "head.sharedMemory: 4Gi",
    ),
    "CPUs above the limit": (
        _node(resources={"cpu": "2", "cpuLimit": "1500m"}),
        "expected at most cpuLimit",
    ),
    "a condition without values": (_needs("required", "In", []), "add a value"),
    "a condition with values": (_needs("preferred", "Exists", ["a"]), "expected none for operator"),
    "an absence with values": (_needs("required", "DoesNotExist", ["a"]), "expected none for"),
    "no numbers to exclude": (_needs("required", "NotIn", []), "add a value"),
    "a comparison with words": (_needs("required", "Gt", ["a"]), "expected one whole number"),
    "a comparison with two": (_needs("required", "Lt", ["1", "2"]), "expected one whole number"),
    "a taint with a value": (
        _node(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]),
        "expected none for operator Exists",
    ),
    "too few pods": (_node(replicas=1, minReplicas=2, maxReplicas=3), "minReplicas (2)"),
    "too many pods": (_node(replicas=4, minReplicas=1, maxReplicas=3), "to maxReplicas (3)"),
    "idle without autoscaling": (_node(idleTimeoutSeconds=5), "idleTimeoutSeconds: 5 without"),
    "one and a half GPUs": (
        {"serve": {"numGpus": 1.5}, "worker": {"gpu": {"count": 2}}},
        "expected a share of one GPU",
    ),
    "a share below Ray's smallest": ({"serve": {"numGpus": 1e-9}}, "at least 0.0001, the smallest"),
    "a device that Ray hides": ({"serve": {"args": {"device": "cuda"}}}, "device: cuda with"),
    "a device beside the GPUs": (
        {"serve": {"numGpus": 1, "args": {"device": "cpu"}}, "worker": {"gpu": {"count": 1}}},
        "device: cpu with",
    ),
    "GPUs that nobody uses": (_node(gpu={"count": 1}), "serve.numGpus: 0"),
    "more replicas than room": ({"serve": {"replicas": 9}}, "have room for"),
    "more GPUs than room": ({"serve": {"numGpus": 1}}, "have room for 0"),
    "watermarks out of order": (
        {"checker": {"essential_free_bytes": 4294967296}},
        "checker.essential_free_bytes",
    ),
    "a journal above the disk": (
        {"checker": {"journal": {"disk_bytes_max": 1099511627776}}},
        "checker.journal.disk_bytes_max",
    ),
    "a file above the journal": (
        {"checker": {"journal": {"rotate_bytes": 1099511627776}}},
        "checker.journal.rotate_bytes",
    ),
    "a snapshot above the queue": (
        {"checker": {"journal": {"snapshot_bytes_max": 1099511627776}}},
        "checker.journal.snapshot_bytes_max",
    ),
    "answers above the pages": (
        {"serve": {"args": {"max_length": 4096, "pages": 192, "page_size": 16}}},
        "serve.args.max_length: 4096",
    ),
    "a variable twice": (
        {"extraEnv": [{"name": "A_B", "value": "1"}, {"name": "A_B", "value": "2"}]},
        "is there already",
    ),
    "a variable of the chart": (
        {"extraEnv": [{"name": "TOCSIN_STATE", "value": "/x"}]},
        "KubeRay or the image sets",
    ),
    "a variable of KubeRay": (
        {"extraEnv": [{"name": "RAY_ADDRESS", "value": "x"}]},
        "KubeRay or the image sets",
    ),
    "a variable of the guards": (
        {"extraEnv": [{"name": "TOCSIN_KUBE_API", "value": "http://x.example"}]},
        "KubeRay or the image sets",
    ),
    "a variable of the loader": (
        {"extraEnv": [{"name": "LD_PRELOAD", "value": "/tmp/x.so"}]},
        "KubeRay or the image sets",
    ),
    "a variable of the image": (
        {"extraEnv": [{"name": "PATH", "value": "/tmp"}]},
        "KubeRay or the image sets",
    ),
    "a variable of two kinds": (
        {"extraEnv": [{"name": "A_B", "value": "1", "secretKeyRef": {"name": "s"}}]},
        "a value and a secretKeyRef",
    ),
    "a fault that is not allowed": (_chaos(experiment={"name": "first-light"}), "allowed are"),
    "kube-public unprotected": (
        {"chaos": {"protectedNamespaces": ["kube-system", "kube-node-lease"]}},
        "chaos.protectedNamespaces: kube-public is missing",
    ),
    "a run that is too long": (_chaos(maxDurationSeconds=60), "allows 60 s"),
    "armed without a target": (_chaos(dryRun=False), "has chaosTarget false"),
    "watching nothing": (_chaos(stopOnAlert=_ON), "alertmanager.url is empty"),
    "a Ray job on a service": (_chaos(kind="rayjob", runOnce="a"), "topology is service"),
    "a Ray cron job on a service": ({"chaos": _GATED}, "topology is service"),
    "a secret that does nothing": (
        merged(_RAYJOB, {"chaos": {"publish": {"secretName": "s"}}}),
        "have no effect",
    ),
    "a claim that does nothing": (
        merged(_RAYJOB, {"chaos": {"report": {"claimName": "c"}}}),
        "have no effect",
    ),
    "an alpha kind": (
        {"topology": "cluster", "chaos": {**_GATED, "rayCronJobGate": False}},
        "is an alpha kind",
    ),
    "credentials for nothing": (
        _chaos(publish={"secretName": "s3"}),
        "chaos.publish.secretName: s3, and chaos.publish.url is empty",
    ),
    "a minute that no clock shows": (_chaos(schedule="99 3 * * *"), '"99" is no minute'),
    "a step of nothing": (_chaos(schedule="*/0 3 * * *"), '"*/0" is no minute'),
    "a day that no month has": (_chaos(schedule="0 0 31 2 *"), "never comes"),
    "no schedule": (
        {"topology": "cluster", "chaos": {**_GATED, "schedule": ""}},
        "chaos.schedule: empty",
    ),
    "a schedule of a job": (_chaos(kind="job", schedule="@daily"), "which has no schedule"),
    "a run of a schedule": (_chaos(kind="cronjob", runOnce="a"), "which runs by its schedule"),
    "no YAML": (_text("a: ["), "is not YAML"),
    "a list": (_text("[a]"), "is a list or a single value"),
    "a word": (_text("hello"), "is a list or a single value"),
    "nothing but a comment": (_text("# later"), "apiVersion is missing and kind is missing"),
    "faults that are a mapping": (_own(faults={"a": "b"}), "faults is no list"),
    "safety that is a list": (_own(safety=["a"]), "safety is no mapping"),
    "a fault of no kind": (_own(faults=[{"id": "a", "when": {}}]), "faults[0].kind is missing"),
    "a key of no experiment": (_own(safty={}), "safty is not known"),
    "no experiment": (_text("{apiVersion: v1, kind: Pod}"), "expected chaos/v1 and Experiment"),
    "no unit": (_text(_EXPERIMENT % '"240"'), "a duration with its unit"),
    "a slow scrape": (
        {"monitoring": {"podMonitor": {**_ON, "timeoutSeconds": 20, "intervalSeconds": 15}}},
        "expected at most intervalSeconds",
    ),
    "a slow scrape beside drills": (
        {"monitoring": {"podMonitor": {**_ON, "intervalSeconds": 16}, "prometheusRule": _ON}},
        "expected at most 15 with",
    ),
    "a label of the chart's own": (
        {"monitoring": {"labels": {"app.kubernetes.io/name": "kps"}}},
        "which the chart sets itself",
    ),
    "a relabeling to nowhere": (
        {"monitoring": {"podMonitor": {"metricRelabelings": [{"regex": "a"}]}}},
        "found replace without targetLabel",
    ),
    "a relabeling by no expression": (
        _relabeled(action="drop", sourceLabels=["a"], regex="("),
        "is no regular expression",
    ),
    "a label dropped that alerts need": (
        _relabeled(action="labeldrop", regex="pod|namespace"),
        "labeldrop takes the label namespace away",
    ),
    "labels kept that are too few": (
        _relabeled(action="labelkeep", regex="__name__|job|namespace|instance"),
        "labelkeep takes the label release away",
    ),
    "a label overwritten that alerts need": (
        _relabeled(targetLabel="namespace", replacement="x"),
        "replace takes the label namespace away",
    ),
    "a relabeling of nothing": (
        {"monitoring": {"podMonitor": {"metricRelabelings": [{"action": "keep"}]}}},
        "found keep without sourceLabels",
    ),
    "two relays": (
        {"monitoring": {"relay": {**_ON, "url": "https://relay.example"}}},
        "found enabled and url",
    ),
    "a relay without file": ({"monitoring": {"relay": _ON}}, "found no configSecret"),
    "an open relay": (
        {"monitoring": {"relay": {**_ON, "configSecret": "relay"}}},
        "found no tokenSecret.name",
    ),
    "pages to nobody": (_told(page={"webhookSecret": {"name": ""}}), "page: found no way"),
    "tickets to nobody": (_told(ticket={"webhookSecret": {"name": ""}}), "receivers.ticket: found"),
    "a relay that is not there": (_told(archive={"relay": "robot"}), "there is no relay"),
    "half of a login": (
        _told(page={"email": {"username": "u"}}),
        "found one of username and passwordSecret",
    ),
    "a switch without token": (merged(_TOLD, {"token": {"name": ""}}), "found no token.name"),
}  # fmt: skip
NAMES: Mapping[str, tuple[Case, str]] = {
    "a long release": (Case({}, "a" * 50), "expected at most 40"),
    "a name with a digit first": (Case({"fullnameOverride": "1a"}), "a lower-case letter first"),
    "a protected namespace": (Case(_CHAOS, "demo", "kube-system"), "one of chaos.protectedNames"),
    "a protected namespace, armed": (Case(_ARMED, "demo", "kube-public"), "one of chaos.protected"),
}


def cases() -> dict[str, tuple[Case, str]]:
    """What is wrong → what is asked, and a part of the words that refuse it."""
    found = {name: (Case(values), says) for name, (values, says) in CASES.items() if says}
    return {**found, **NAMES}


def refusals(chart: Path) -> Proof:
    """Ask all cases; every guard of the templates must have refused one."""
    asked = cases()
    findings = []
    said: list[str] = []
    outcomes = answers(chart)
    for name, (_, says) in asked.items():
        outcome = outcomes[name]
        if not isinstance(outcome, SpecError):
            findings.append(Finding(RULE, name, "rendered", f"a refusal: …{says}…"))
        elif says not in str(outcome):
            findings.append(Finding(RULE, name, f"{outcome}", f"…{says}…"))
        else:
            said.append(str(outcome))
    known = guards(chart)
    silent = [words for words in known if not any(_speaks(words, line) for line in said)]
    apart = {words: _elsewhere(words) for words in silent}
    for words, why in apart.items():
        if not why:
            expected = "a case of helm/gate/proofs/refusals.py that it refuses"
            findings.append(Finding(RULE, f"guard {words[:60]!r}", "never tripped", expected))
    return Proof(
        "refusals",
        f"{len(known) - len(silent)} of {len(known)} guards tripped",
        {"guards": len(known), "tripped": len(known) - len(silent), "cases": len(asked)},
        tuple(findings),
        remarks=tuple(f"not tripped here: {words!r}: {why}" for words, why in apart.items() if why),
    )


def _elsewhere(words: str) -> str:
    """Why no case here trips a guard; empty where one should."""
    return next((why for start, why in ELSEWHERE.items() if words.startswith(start)), "")


def answers(chart: Path) -> dict[str, Texts | SpecError]:
    """What is wrong → what the chart makes of it."""
    asked = cases()
    # What ends helm for all cases of a call has a call of its own.
    hard = guards(chart, HARD)
    alone = [
        name for name, (_, says) in asked.items() if any(_holds(words, says) for words in hard)
    ]
    found: dict[str, Texts | SpecError] = {}
    together = [name for name in asked if name not in alone]
    for names in (together, *([name] for name in alone)):
        outcomes = texts([asked[name][0] for name in names], chart=chart)
        found |= dict(zip(names, outcomes, strict=True))
    return found


def _holds(words: str, part: str) -> bool:
    return part in re.sub(r"%[a-z]", "", words) or part in words


def guards(chart: Path, files: Sequence[str] = ()) -> list[str]:
    """The words of every `fail` in the templates, or in those with certain names."""
    found: list[str] = []
    for path in sorted((chart / "templates").rglob("*")):
        if path.is_file() and (not files or path.name in files):
            found += _GUARD.findall(path.read_text(encoding="utf-8"))
    return found


def _speaks(words: str, line: str) -> bool:
    """Whether a line was written by a guard with these words."""
    parts = [re.escape(part) for part in re.split(r"%[a-z]", words.replace("%%", "%"))]
    return re.search(".*".join(parts), line, re.DOTALL) is not None
