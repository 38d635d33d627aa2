"""What an object means to those who read it, however it is written: two that mean the same are."""

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from tocsin.helm.gate import syntax

# A port of a pod, a Service or a NetworkPolicy is a TCP port unless it says otherwise; Kubernetes
# API reference, ContainerPort, ServicePort and NetworkPolicyPort: "protocol … defaults to TCP".
_PROTOCOL = {"protocol": "TCP"}
# Kubernetes API reference, Probe; prometheus-operator's, PodMetricsEndpoint; Alertmanager's
# configuration, send_resolved: what each takes where nothing is said.
_PROBE = {"periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3, "successThreshold": 1}
_ENDPOINT = {"filterRunning": True, "honorLabels": False, "path": "/metrics", "scheme": "http"}
_TOLD = {"sendResolved": True}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ports": _PROTOCOL,
    "startupProbe": _PROBE,
    "readinessProbe": _PROBE,
    "livenessProbe": _PROBE,
    "podMetricsEndpoints": _ENDPOINT,
    "webhookConfigs": _TOLD,
    "pagerdutyConfigs": _TOLD,
}
# A quantity is written as text or as a number; apimachinery, Quantity.UnmarshalJSON.
_AMOUNTS = ("requests", "limits")
# Texts that are read as YAML again: by Serve, by the program, by Ray.
_TEXTS = re.compile(r"\.(yaml|yml|json)$|^(serveConfigV2|runtimeEnvYAML)$")
# SHA-256 of texts that stand in the render too: where those mean the same, so does their digest.
_NAME = re.compile(r"-c?[0-9a-f]{8}$")
_WORD = re.compile(r"\b[0-9a-f]{64}\b")
_RUNS = ("Job", "RayJob")


def meaning(kind: str, body: Mapping[str, Any]) -> str:
    """One text for all bodies of a kind that mean the same."""
    found = _read(body)
    if kind in _RUNS:
        found["metadata"]["name"] = _NAME.sub("-(digest)", found["metadata"]["name"])
        entry = found["spec"].get("entrypoint", "")
        found["spec"]["entrypoint"] = _WORD.sub("(digest)", entry)
    return json.dumps(found, sort_keys=True, default=str)


def _read(tree: Any, key: str = "") -> Any:
    if isinstance(tree, Mapping):
        if key in _AMOUNTS:
            return {name: _amount(value) for name, value in tree.items()}
        made = {name: _read(value, str(name)) for name, value in tree.items()}
        return {**_DEFAULTS.get(key, {}), **made}
    if isinstance(tree, list):
        # Entries of a list are known by the list's name.
        return [_read(one, key) for one in tree]
    if isinstance(tree, str) and _TEXTS.search(key):
        return _loaded(tree)
    return tree


def _amount(value: Any) -> str:
    found = syntax.quantity(value)
    return repr(value) if found is None else str(found.normalize())


def _loaded(text: str) -> Any:
    """What a text holds, with its comments; the text itself where it is no mapping."""
    try:
        found = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return text
    comments = [line for line in text.splitlines() if line.startswith("#")]
    return [found, comments] if isinstance(found, dict) else text
