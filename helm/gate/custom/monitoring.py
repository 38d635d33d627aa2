"""PodMonitor, PrometheusRule and AlertmanagerConfig: the fields that the chart may write.

Written from the API reference of prometheus-operator (monitoring.coreos.com).
"""

from tocsin.helm.gate.custom.declare import (
    COUNT,
    FLAG,
    LABELS,
    TEXT,
    WORD,
    Schema,
    closed,
    listed,
    one_of,
    pattern,
    resource,
)

VERSION = "monitoring.coreos.com/v1"
ALPHA = "monitoring.coreos.com/v1alpha1"

DURATION = pattern(r"0|([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?") | {
    "minLength": 1
}
_WEB_ADDRESS = pattern(r"https?://.+")
_SECRET_KEY = closed({"name!": WORD, "key!": WORD, "optional": FLAG})
_SELECTOR = closed(
    {
        "matchLabels": LABELS,
        "matchExpressions": listed(
            closed(
                {
                    "key!": WORD,
                    "operator!": one_of("In", "NotIn", "Exists", "DoesNotExist"),
                    "values": listed(TEXT),
                }
            )
        ),
    }
)
_LABEL_NAME = pattern(r"[a-zA-Z_][a-zA-Z0-9_]*")
_RELABELING = closed(
    {
        "action": one_of("replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep"),
        "sourceLabels": listed(_LABEL_NAME),
        "separator": TEXT,
        "regex": TEXT,
        "targetLabel": _LABEL_NAME,
        "replacement": TEXT,
    },
    rules={
        "(has(self.action) && self.action != 'replace') || has(self.targetLabel)": (
            "a targetLabel to write to"
        ),
    },
    least=1,
)
_ENDPOINT = closed(
    {
        "port!": WORD,
        "path": one_of("/metrics"),
        "scheme": one_of("http", "https"),
        "interval": DURATION,
        "scrapeTimeout": DURATION,
        "honorLabels": {"const": False},
        "honorTimestamps": FLAG,
        "filterRunning": FLAG,
        "followRedirects": FLAG,
        "relabelings": listed(_RELABELING),
        "metricRelabelings": listed(_RELABELING),
    }
)
POD_MONITOR = closed(
    {
        "selector!": _SELECTOR,
        "namespaceSelector": closed({"matchNames!": listed(WORD, least=1)}),
        "podMetricsEndpoints!": listed(_ENDPOINT, least=1),
        "podTargetLabels": listed(WORD),
        "jobLabel": WORD,
        "sampleLimit": COUNT,
        "labelLimit": COUNT,
        "labelNameLengthLimit": COUNT,
        "labelValueLengthLimit": COUNT,
        "targetLimit": COUNT,
        "attachMetadata": closed({"node!": FLAG}),
        "scrapeClass": WORD,
        "fallbackScrapeProtocol": one_of(
            "PrometheusProto",
            "OpenMetricsText0.0.1",
            "OpenMetricsText1.0.0",
            "PrometheusText0.0.4",
            "PrometheusText1.0.0",
        ),
    }
)
_RULE = closed(
    {
        "alert": WORD,
        "record": pattern(r"[a-zA-Z_:][a-zA-Z0-9_:]*"),
        "expr!": WORD,
        "for": DURATION,
        "keep_firing_for": DURATION,
        "labels": {"type": "object", "propertyNames": _LABEL_NAME, "additionalProperties": TEXT},
        "annotations": {
            "type": "object",
            "propertyNames": _LABEL_NAME,
            "additionalProperties": TEXT,
        },
    },
    rules={
        "has(self.alert) != has(self.record)": "alert or record, one of them",
        "!has(self.record) || !('for' in self || has(self.annotations))": (
            "neither for nor annotations with record"
        ),
    },
)
_GROUP = closed(
    {
        "name!": WORD,
        "interval": DURATION,
        "query_offset": DURATION,
        "limit": COUNT,
        "labels": LABELS,
        "rules!": listed(_RULE, least=1),
    }
)
PROMETHEUS_RULE = closed({"groups!": listed(_GROUP, least=1, by="name")})

_MATCHER = closed(
    {
        "name!": _LABEL_NAME,
        "value!": TEXT,
        "matchType!": one_of("=", "!=", "=~", "!~"),
    }
)
_HTTP = closed(
    {
        "authorization": closed({"type": WORD, "credentials!": _SECRET_KEY}),
        "basicAuth": closed({"username!": _SECRET_KEY, "password!": _SECRET_KEY}),
        "bearerTokenSecret": _SECRET_KEY,
        "proxyUrl": pattern(r"(http|https|socks5)://.+"),
        "followRedirects": FLAG,
    },
    least=1,
)
_WEBHOOK = closed(
    {
        "url": _WEB_ADDRESS,
        "urlSecret": _SECRET_KEY,
        "sendResolved": FLAG,
        "maxAlerts": COUNT,
        "timeout": DURATION,
        "httpConfig": _HTTP,
    },
    rules={"has(self.url) != has(self.urlSecret)": "url or urlSecret, one of them"},
)
_FIELD = closed({"title!": WORD, "value!": WORD, "short": FLAG})
_SLACK = closed(
    {
        "apiURL!": _SECRET_KEY,
        "channel": WORD,
        "username": WORD,
        "color": WORD,
        "title": WORD,
        "titleLink": TEXT,
        "pretext": WORD,
        "text": WORD,
        "fallback": WORD,
        "footer": WORD,
        "fields": listed(_FIELD, least=1),
        "sendResolved": FLAG,
        "httpConfig": _HTTP,
    }
)
_PAIR = closed({"key!": WORD, "value!": TEXT})
_PAGER_DUTY = closed(
    {
        "routingKey": _SECRET_KEY,
        "serviceKey": _SECRET_KEY,
        "url": _WEB_ADDRESS,
        "client": WORD,
        "clientURL": TEXT,
        "description": WORD,
        "severity": WORD,
        "class": WORD,
        "group": WORD,
        "component": WORD,
        "source": WORD,
        "details": listed(_PAIR),
        "sendResolved": FLAG,
        "httpConfig": _HTTP,
    },
    rules={"has(self.routingKey) != has(self.serviceKey)": "routingKey or serviceKey"},
)
_EMAIL = closed(
    {
        "to!": WORD,
        "from": WORD,
        "hello": WORD,
        "smarthost": pattern(r"[^:]+:[0-9]+"),
        "authUsername": WORD,
        "authPassword": _SECRET_KEY,
        "authIdentity": WORD,
        "headers": listed(_PAIR, by="key"),
        "html": TEXT,
        "text": TEXT,
        "requireTLS": FLAG,
        "sendResolved": FLAG,
    }
)
_RECEIVER = closed(
    {
        "name!": WORD,
        "webhookConfigs": listed(_WEBHOOK),
        "slackConfigs": listed(_SLACK),
        "pagerdutyConfigs": listed(_PAGER_DUTY),
        "emailConfigs": listed(_EMAIL),
    }
)
_ROUTE_FIELDS: dict[str, Schema] = {
    "receiver": WORD,
    "groupBy": {**listed(WORD), "uniqueItems": True},
    "groupWait": DURATION,
    "groupInterval": DURATION,
    "repeatInterval": DURATION,
    "matchers": listed(_MATCHER),
    "continue": FLAG,
    "muteTimeIntervals": listed(WORD),
    "activeTimeIntervals": listed(WORD),
}
# The API takes anything below the first route; two levels are what the chart writes.
_LEAF_ROUTE = closed({**_ROUTE_FIELDS, "receiver!": WORD, "matchers!": listed(_MATCHER, least=1)})
_BRANCH_ROUTE = closed(
    {
        **_ROUTE_FIELDS,
        "receiver!": WORD,
        "matchers!": listed(_MATCHER, least=1),
        "routes": listed(_LEAF_ROUTE),
    }
)
_INHIBITION = closed(
    {
        "sourceMatch!": listed(_MATCHER, least=1),
        "targetMatch!": listed(_MATCHER, least=1),
        "equal": listed(WORD),
    }
)
ALERTMANAGER_CONFIG = closed(
    {
        "route!": closed({**_ROUTE_FIELDS, "receiver!": WORD, "routes": listed(_BRANCH_ROUTE)}),
        "receivers!": listed(_RECEIVER, least=1, by="name"),
        "inhibitRules": listed(_INHIBITION),
    }
)

RESOURCES: dict[tuple[str, str], Schema] = {
    (VERSION, "PodMonitor"): resource(VERSION, "PodMonitor", POD_MONITOR),
    (VERSION, "PrometheusRule"): resource(VERSION, "PrometheusRule", PROMETHEUS_RULE),
    (ALPHA, "AlertmanagerConfig"): resource(ALPHA, "AlertmanagerConfig", ALERTMANAGER_CONFIG),
}
