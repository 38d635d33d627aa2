"""The dashboards for Grafana's sidecar: each release has its own, which show nothing of others."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tocsin.core.errors import ContractError
from tocsin.dashboards.grafana.files import TAG, committed
from tocsin.dashboards.panel import substitute
from tocsin.dashboards.panels import DASHBOARDS
from tocsin.helm.monitoring.scope import (
    NAMESPACE,
    NAMESPACE_HERE,
    RELEASE,
    RELEASE_HERE,
    inserted,
    selectors,
)

DOCS_HERE, UID_HERE = "__DOCS__", "__UID__"
_WHERE = {NAMESPACE: f"${NAMESPACE}", RELEASE: f"${RELEASE}"}
_PLACES = {NAMESPACE: NAMESPACE_HERE, RELEASE: RELEASE_HERE}


def board_files() -> Mapping[str, str]:
    """Path below files/ → JSON of one dashboard, with places for the release to fill in."""
    return {
        f"dashboards/{board.id.replace('_', '-')}.json": _text(_scoped(model))
        for board, model in zip(DASHBOARDS, committed(DOCS_HERE), strict=True)
    }


def expressions(model: Any) -> Iterator[str]:
    """Every PromQL expression of a dashboard: of panels, annotations and choices."""
    for holder in _holders(model):
        if isinstance(holder.get("expr"), str):
            yield holder["expr"]
        elif isinstance(holder.get("definition"), str):
            yield holder["definition"]


def _scoped(model: dict[str, Any]) -> dict[str, Any]:
    """The dashboard under a name of its own, each question asked about this release alone."""
    for holder in _holders(model):
        if "expr" in holder:
            holder["expr"] = _asked(holder["expr"])
        if "definition" in holder:
            holder["definition"] = _choice(holder["definition"])
            holder["query"]["query"] = holder["definition"]
    tags = [TAG, f"{NAMESPACE_HERE}/{RELEASE_HERE}"]
    model |= {
        "uid": f"{model['uid']}-{UID_HERE}",
        "title": f"{model['title']} · {RELEASE_HERE} ({NAMESPACE_HERE})",
        "tags": tags,
    }
    for link in model["links"]:
        link["tags"] = tags
    variables = model["templating"]["list"]
    (pattern,) = (one for one in variables if one["name"] == "docs")
    fixed = [
        {
            **pattern,
            "name": name,
            "label": name,
            "query": place,
            "description": "Fixed: this dashboard shows one release",
        }
        for name, place in _PLACES.items()
    ]
    model["templating"]["list"] = [*fixed, *variables]
    return model


def _asked(expr: str) -> str:
    text = inserted(expr, _WHERE)
    added = sorted(("=", label, value) for label, value in _WHERE.items())
    for (name, before), (_, after) in zip(
        selectors(substitute(expr)), selectors(_tried(text)), strict=True
    ):
        if after != sorted([*before, *added]):
            raise ContractError(
                f"boards: {name} in {expr} has the matchers {after}, expected {added} more; select "
                "Tocsin's own series, up or ALERTS"
            )
    return text


def _tried(expr: str) -> str:
    """With values for the variables, but the release's own left as they stand."""
    return substitute(expr, {NAMESPACE: f"${NAMESPACE}", RELEASE: f"${RELEASE}"})


def _choice(definition: str) -> str:
    """`label_values(metric, label)` of this release's series."""
    return inserted(definition, _WHERE)


def _holders(model: Any) -> Iterator[dict[str, Any]]:
    """Every object of the dashboard that holds a question."""
    if isinstance(model, dict):
        if isinstance(model.get("expr"), str) or isinstance(model.get("definition"), str):
            yield model
        for value in model.values():
            yield from _holders(value)
    elif isinstance(model, list):
        for value in model:
            yield from _holders(value)


def _text(model: Mapping[str, Any]) -> str:
    """On one line: the release's Secret holds it twice."""
    return json.dumps(model, ensure_ascii=False, separators=(",", ":")) + "\n"
