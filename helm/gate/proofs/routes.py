"""Every declared alert reaches its receiver as the operator merges the routes, and never `null`."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tocsin.core.errors import SpecError
from tocsin.dashboards.contract import Alert, alerts
from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.render.options import RenderOptions
from tocsin.dashboards.render.routes import route_tests
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.rule import Finding, items, sub
from tocsin.helm.monitoring.merge import Strategy, merged

RULE = "routes"
_MATCHER = re.compile(r'([A-Za-z_]\w*)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')
_TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_TIMEOUT_S = 20
_THREADS = 4


def routes(objects: Sequence[Manifest], *, by_amtool: bool = True) -> Proof:
    """Route each alert in earnest, as a drill, and without its namespace.

    Args:
        objects: a render with rules and an AlertmanagerConfig.
        by_amtool: whether Alertmanager's own tool is asked too, where it is installed.
    """
    configs = [one for one in objects if one.kind == "AlertmanagerConfig"]
    rules = rendered_alerts(objects)
    try:
        config = merged(
            [one.body for one in configs],
            strategy=Strategy.ON_NAMESPACE,
            secrets=lambda name, key: f"https://{name}.example/{key}",  # amtool wants addresses
        )
    except (SpecError, KeyError, TypeError) as error:
        failed = Finding(RULE, "AlertmanagerConfig", str(error), "what the operator takes")
        return Proof("routes", "none", {}, (failed,))
    expected = _expected()
    findings: list[Finding] = []
    proven = 0
    asked: list[tuple[list[str], Mapping[str, str]]] = []
    for unit in alerts().values():
        found = list(_missed(unit, rules, config, expected))
        proven += not found
        findings += found
        if unit.name in rules:
            labels = labels_of(unit, rules[unit.name])
            asked.append((receivers(config, labels), labels))
    said = _amtool(config, asked) if by_amtool else None
    findings += said or []
    return Proof(
        "routes",
        f"{proven} of {len(alerts())}",
        {
            "alerts": len(alerts()),
            "proven": proven,
            "by_amtool": "not asked" if said is None else len(asked) - len(said),
        },
        tuple(findings),
    )


def rendered_alerts(objects: Sequence[Manifest]) -> dict[str, Mapping[str, Any]]:
    """Name → alerting rule, of all PrometheusRules."""
    return {
        str(rule["alert"]): rule
        for one in objects
        if one.kind == "PrometheusRule"
        for group in items(one.body, "spec", "groups")
        for rule in items(group, "rules")
        if "alert" in rule
    }


def labels_of(unit: Alert, rule: Mapping[str, Any]) -> dict[str, str]:
    """The labels with which Alertmanager gets it, in earnest: a template there is then empty."""
    said = {name: _TEMPLATE.sub("", str(text)) for name, text in sub(rule, "labels").items()}
    found = {"alertname": str(rule["alert"]), **unit.fires.labels, **said}
    return {name: text for name, text in found.items() if text}


def receivers(config: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    """Where Alertmanager's route tree leads an alert; the root where no child takes it."""
    return _walk(config["route"], labels) or [str(config["route"]["receiver"])]


def _walk(route: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    if not all(_matches(text, labels) for text in route.get("matchers") or ()):
        return []
    found: list[str] = []
    for child in route.get("routes") or ():
        reached = _walk(child, labels)
        found += reached
        if reached and not child.get("continue", False):
            break
    return found or [str(route.get("receiver", ""))]


def _matches(text: str, labels: Mapping[str, str]) -> bool:
    match = _MATCHER.fullmatch(text)
    if match is None:
        return False
    value = labels.get(match[1], "")
    wanted = match[3].replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
    if match[2] in ("=", "!="):
        return (value == wanted) is (match[2] == "=")
    return bool(re.fullmatch(wanted, value)) is (match[2] == "=~")


def _expected() -> dict[str, tuple[list[str], list[str] | None]]:
    """Alert → receivers in earnest, and in a drill; from the table that dashboards/ proves."""
    earnest: dict[str, list[str]] = {}
    drill: dict[str, list[str]] = {}
    for row in route_tests(RenderOptions()):
        if row.get("expect") is None:
            continue
        side = drill if DRILL in row["labels"] else earnest
        side[row["labels"]["alertname"]] = list(row["expect"])
    return {name: (found, drill.get(name)) for name, found in earnest.items()}


def _missed(
    unit: Alert,
    rules: Mapping[str, Mapping[str, Any]],
    config: Mapping[str, Any],
    expected: Mapping[str, tuple[list[str], list[str] | None]],
) -> Iterator[Finding]:
    rule = rules.get(unit.name)
    if rule is None:
        yield Finding(RULE, f"alert {unit.name}", "not in any PrometheusRule", "a rule")
        return
    labels = labels_of(unit, rule)
    earnest, drill = expected[unit.name]
    for label in ("namespace", "release", "priority", "severity"):
        if not labels.get(label):
            yield Finding(RULE, f"alert {unit.name} label {label}", "none", "one: routes ask it")
    yield from _leads(unit.name, config, labels, earnest)
    if drill is not None:
        yield from _leads(f"{unit.name} in a drill", config, {**labels, DRILL: "true"}, drill)
    elsewhere = {**labels, "namespace": "somebody-else"}
    if receivers(config, elsewhere) != ["null"]:
        found = f"{receivers(config, elsewhere)}"
        yield Finding(RULE, f"alert {unit.name} of another namespace", found, "not ours")


def _leads(
    what: str, config: Mapping[str, Any], labels: Mapping[str, str], wanted: list[str]
) -> Iterator[Finding]:
    found = [name.rpartition("/")[2] for name in receivers(config, labels)]
    if found != wanted:
        yield Finding(RULE, f"alert {what}", f"reaches {found}", f"{wanted}")


def _amtool(
    config: Mapping[str, Any], asked: Sequence[tuple[list[str], Mapping[str, str]]]
) -> list[Finding] | None:
    """What Alertmanager's own tool says of the same alerts; None where it is not installed."""
    if shutil.which("amtool") is None:
        return None
    with tempfile.TemporaryDirectory(prefix="tocsin-routes-") as place:
        path = Path(place) / "alertmanager.yml"
        path.write_text(json.dumps(config), encoding="utf-8")

        def one(row: tuple[list[str], Mapping[str, str]]) -> Finding | None:
            wanted, labels = row
            words = [f"{name}={text}" for name, text in labels.items()]
            done = subprocess.run(
                [
                    *("amtool", "config", "routes", "test", f"--config.file={path}"),
                    f"--verify.receivers={','.join(wanted)}",
                    *words,
                ],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
            if done.returncode == 0:
                return None
            said = " ".join((done.stdout + done.stderr).split())[:200]
            where = f"amtool, alert {labels['alertname']}"
            return Finding(RULE, where, said, f"{wanted}, as it is computed here")

        with ThreadPoolExecutor(_THREADS) as pool:
            return [finding for finding in pool.map(one, asked) if finding is not None]
