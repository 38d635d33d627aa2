"""Alertmanager's configuration as prometheus-operator builds it from AlertmanagerConfig objects.

An AlertmanagerConfig says what one namespace wants; what Alertmanager reads is the operator's work:
names are prefixed, the object's route goes before the main ones and lets alerts pass on, and by
default it is held to alerts with the object's own `namespace`. A route that is right on its own may
reach nobody there, so routes are judged in this form. The facts are from the operator's
`pkg/alertmanager/amcfg.go`; only fields that the chart writes are known, all others are refused.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from tocsin.core.errors import SpecError

Secrets = Callable[[str, str], str]
"""`(name, key) -> text`."""


class Strategy(StrEnum):
    """`alertmanagerConfigMatcherStrategy.type` of the Alertmanager object."""

    ON_NAMESPACE = "OnNamespace"
    EXCEPT_OWN = "OnNamespaceExceptForAlertmanagerNamespace"
    NONE = "None"


KUBE_PROMETHEUS_STACK: Mapping[str, Any] = {
    "global": {"resolve_timeout": "5m"},
    "inhibit_rules": [
        {
            "source_matchers": ['severity="critical"'],
            "target_matchers": ['severity=~"warning|info"'],
            "equal": ["namespace", "alertname"],
        },
        {
            "source_matchers": ['severity="warning"'],
            "target_matchers": ['severity="info"'],
            "equal": ["namespace", "alertname"],
        },
        {
            "source_matchers": ['alertname="InfoInhibitor"'],
            "target_matchers": ['severity="info"'],
            "equal": ["namespace"],
        },
        {"target_matchers": ['alertname="InfoInhibitor"']},
    ],
    "route": {
        "group_by": ["namespace"],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "12h",
        "receiver": "null",
        "routes": [{"receiver": "null", "matchers": ['alertname="Watchdog"']}],
    },
    "receivers": [{"name": "null"}],
}
"""What the main configuration says in a kube-prometheus-stack that nobody changed: no one hears."""


def merged(
    objects: Sequence[Mapping[str, Any]],
    *,
    strategy: Strategy = Strategy.ON_NAMESPACE,
    alertmanager_namespace: str = "monitoring",
    base: Mapping[str, Any] = KUBE_PROMETHEUS_STACK,
    secrets: Secrets = lambda name, key: f"secret-{name}-{key}",
) -> dict[str, Any]:
    """The document for `--config.file`.

    Args:
        objects: AlertmanagerConfigs, v1alpha1, from any namespaces.
        strategy: what the Alertmanager object says about namespaces.
        alertmanager_namespace: where that object lives.
        base: the main configuration.
        secrets: what a key of a Secret holds.

    Raises:
        SpecError: the operator would leave the object out.
    """
    document = {**base, "route": dict(base["route"])}
    routes, receivers, inhibitions = [], list(base["receivers"]), list(base["inhibit_rules"])
    for one in sorted(objects, key=_key):
        spec, held = one["spec"], _held(one, strategy, alertmanager_namespace)
        known = [receiver["name"] for receiver in spec["receivers"]]
        if len(known) != len(set(known)):
            raise SpecError(f"{_key(one)}: found receivers {known}, expected each name once")
        route = _route(spec["route"], _key(one), known)
        routes.append({**route, "matchers": [*route.get("matchers", []), *held], "continue": True})
        receivers += [_receiver(each, _key(one), secrets) for each in spec["receivers"]]
        inhibitions += [_inhibition(rule, held) for rule in spec.get("inhibitRules", ())]
    document["route"]["routes"] = [*routes, *base["route"].get("routes", ())]
    return {**document, "receivers": receivers, "inhibit_rules": inhibitions}


def _key(one: Mapping[str, Any]) -> str:
    return f"{one['metadata']['namespace']}/{one['metadata']['name']}"


def _held(one: Mapping[str, Any], strategy: Strategy, alertmanager_namespace: str) -> list[str]:
    """The matchers that the operator adds."""
    namespace = one["metadata"]["namespace"]
    free = strategy is Strategy.NONE or (
        strategy is Strategy.EXCEPT_OWN and namespace == alertmanager_namespace
    )
    return [] if free else [f'namespace="{namespace}"']


def _matcher(one: Mapping[str, str]) -> str:
    if one["matchType"] not in ("=", "!=", "=~", "!~"):
        raise SpecError(f"matchType: found {one['matchType']!r}, expected =, !=, =~ or !~")
    value = one["value"].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{one["name"]}{one["matchType"]}"{value}"'


_ROUTE = {
    "groupBy": "group_by",
    "groupWait": "group_wait",
    "groupInterval": "group_interval",
    "repeatInterval": "repeat_interval",
    "continue": "continue",
}


def _route(route: Mapping[str, Any], key: str, known: Sequence[str]) -> dict[str, Any]:
    if route["receiver"] not in known:
        raise SpecError(f"{key}: route to {route['receiver']}, expected one of {', '.join(known)}")
    made: dict[str, Any] = {"receiver": f"{key}/{route['receiver']}"}
    for name, value in route.items():
        if name in _ROUTE:
            made[_ROUTE[name]] = value
        elif name == "matchers":
            made["matchers"] = [_matcher(one) for one in value]
        elif name == "routes":
            made["routes"] = [_route(child, key, known) for child in value]
        elif name != "receiver":
            raise SpecError(f"{key}: route with {name}, expected {', '.join(_ROUTE)} or matchers")
    return made


def _inhibition(rule: Mapping[str, Any], held: list[str]) -> dict[str, Any]:
    made = {
        f"{side}_matchers": [_matcher(one) for one in rule[f"{side}Match"]]
        for side in ("source", "target")
    }
    made = {
        side: [*matchers, *(one for one in held if one not in matchers)]
        for side, matchers in made.items()
    }
    return {**made, "equal": list(rule["equal"])}


_CHANNELS = {
    "webhookConfigs": "webhook_configs",
    "pagerdutyConfigs": "pagerduty_configs",
    "slackConfigs": "slack_configs",
    "emailConfigs": "email_configs",
}
_FIELDS = {
    "url": "url",
    "urlSecret": "url",
    "sendResolved": "send_resolved",
    "routingKey": "routing_key",
    "severity": "severity",
    "description": "description",
    "details": "details",
    "apiURL": "api_url",
    "channel": "channel",
    "title": "title",
    "text": "text",
    "to": "to",
    "from": "from",
    "smarthost": "smarthost",
    "authUsername": "auth_username",
    "authPassword": "auth_password",
    "headers": "headers",
}
_PAIRS, _FROM_SECRET = ("details", "headers"), ("urlSecret", "routingKey", "apiURL", "authPassword")


def _receiver(receiver: Mapping[str, Any], key: str, secrets: Secrets) -> dict[str, Any]:
    made: dict[str, Any] = {"name": f"{key}/{receiver['name']}"}
    for name, configs in receiver.items():
        if name == "name":
            continue
        if name not in _CHANNELS:
            raise SpecError(f"{key}: receiver with {name}, expected {', '.join(_CHANNELS)}")
        made[_CHANNELS[name]] = [_config(config, key, secrets) for config in configs]
    return made


def _config(config: Mapping[str, Any], key: str, secrets: Secrets) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in config.items():
        if name == "httpConfig":
            made["http_config"] = {"authorization": _authorization(value["authorization"], secrets)}
        elif name not in _FIELDS:
            raise SpecError(f"{key}: channel with {name}, expected {', '.join(_FIELDS)}")
        elif name in _PAIRS:
            made[_FIELDS[name]] = {pair["key"]: pair["value"] for pair in value}
        elif name in _FROM_SECRET:
            made[_FIELDS[name]] = secrets(value["name"], value["key"]).strip()
        else:
            made[_FIELDS[name]] = value
    return made


def _authorization(found: Mapping[str, Any], secrets: Secrets) -> dict[str, str]:
    credentials = found["credentials"]
    text = secrets(credentials["name"], credentials["key"])
    return {"type": found.get("type", "Bearer"), "credentials": text}
