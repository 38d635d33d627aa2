"""Every metric and label that rules and dashboards ask for is in the program's catalogue."""

import json
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any

import promql_parser

from tocsin.core.metrics import CATALOGUE
from tocsin.dashboards.panel import substitute
from tocsin.dashboards.recordings import RECORDINGS
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.render import Case
from tocsin.helm.gate.rule import Finding, Tree, items, sub

RULE = "contract.metric"
# Labels that come with a target or with Prometheus, not with a metric.
TARGET_LABELS = frozenset(
    {
        "namespace", "release", "pod", "container", "endpoint", "job", "instance", "chaos", "node",
        "ray_io_cluster", "le", "alertname", "alertstate", "priority", "severity", "service",
        "component", "__name__",
    }
)  # fmt: skip
PROMETHEUS = frozenset(
    {"up", "ALERTS", "ALERTS_FOR_STATE", "scrape_samples_scraped", "scrape_duration_seconds"}
)


def check_metric_names(objects: Sequence[Manifest], case: Case) -> Iterator[Finding]:
    """Rules and dashboards; relabelings of monitors must not rename a metric."""
    for one in objects:
        for name, expr in _queries(one):
            for problem in problems(expr):
                yield Finding(RULE, f"{one.where} {name}", problem, "what the program exports")
        if one.kind in ("PodMonitor", "ServiceMonitor"):
            yield from _relabelings(one)


@lru_cache(maxsize=4096)
def problems(expr: str) -> tuple[str, ...]:
    """What an expression asks for that nobody exports."""
    try:
        tree = promql_parser.parse(expr)
    except ValueError as error:
        return (f"PromQL that does not parse: {error}",)
    nodes: list[Any] = []
    promql_parser.walk(tree, nodes.append)
    found = []
    for node in nodes:
        if not isinstance(node, promql_parser.VectorSelector):
            continue
        name = str(node.name or "")
        if not name:
            continue
        if name not in _labels():
            found.append(f"the metric {name}")
            continue
        known = _labels()[name]
        for matcher in node.matchers.matchers:
            if known is not None and matcher.name not in known | TARGET_LABELS:
                found.append(f"{name} by the label {matcher.name}")
    return tuple(found)


@cache
def _labels() -> dict[str, frozenset[str] | None]:
    """Series → its labels; None where they are not ours to know."""
    found: dict[str, frozenset[str] | None] = dict.fromkeys(PROMETHEUS)
    for metric in CATALOGUE:
        for series in metric.series:
            found[series] = frozenset(metric.labels)
    for rule in RECORDINGS:
        found[rule.record] = frozenset({"model"})
    return found


def _queries(one: Manifest) -> Iterator[tuple[str, str]]:
    if one.kind == "PrometheusRule":
        for group in items(one.body, "spec", "groups"):
            for rule in items(group, "rules"):
                name = rule.get("alert") or rule.get("record") or "?"
                yield str(name), str(rule.get("expr", ""))
    if one.kind == "ConfigMap" and "dashboard" in one.name:
        for name, text in sub(one.body, "data").items():
            if str(name).endswith(".json"):
                yield from _of_dashboard(str(name), str(text))


@lru_cache(maxsize=64)
def _of_dashboard(name: str, text: str) -> tuple[tuple[str, str], ...]:
    try:
        board = json.loads(text)
    except ValueError:
        return ((name, "not JSON"),)
    known = {str(one.get("name")): ".*" for one in items(board, "templating", "list")}
    known |= {"__rate_interval": "1m", "__range": "1h", "__interval": "1m"}
    found = []
    for expr in _exprs(board):
        try:
            found.append((name, substitute(expr, known)))
        except KeyError as error:
            found.append((name, f"a variable that the dashboard has not: {error}"))
    return tuple(found)


def _exprs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "expr" and isinstance(value, str):
                yield value
            else:
                yield from _exprs(value)
    elif isinstance(node, list):
        for value in node:
            yield from _exprs(value)


def _relabelings(one: Manifest) -> Iterator[Finding]:
    for endpoint in (
        *items(one.body, "spec", "podMetricsEndpoints"),
        *items(one.body, "spec", "endpoints"),
    ):
        for step in items(endpoint, "metricRelabelings"):
            yield from _known(one, step)
        for step in items(endpoint, "relabelings"):
            target = step.get("targetLabel")
            if target is not None and target not in TARGET_LABELS:
                expected = f"a label that rules know: {sorted(TARGET_LABELS)}"
                yield Finding(RULE, f"{one.where} relabelings", f"target {target!r}", expected)


def _known(one: Manifest, step: Tree) -> Iterator[Finding]:
    if step.get("targetLabel") == "__name__":
        yield Finding(RULE, one.where, "a metric renamed on the way", "the name as exported")
