"""Holds PromQL to one release, so that two releases neither mix nor mute each other."""

import re
from collections.abc import Mapping
from typing import Any

from tocsin.core.errors import ContractError
from tocsin.dashboards.render.yaml_text import yaml_text

NAMESPACE, RELEASE = "namespace", "release"
NAMESPACE_HERE, RELEASE_HERE = "__NAMESPACE__", "__RELEASE__"
"""Filled in by the chart's templates; both are DNS labels there, so nothing needs escaping."""
THIS_RELEASE: Mapping[str, str] = {NAMESPACE: NAMESPACE_HERE, RELEASE: RELEASE_HERE}

_NAME = r"(?:tocsin[_:][a-zA-Z0-9_:]+|up|scrape_[a-z_]+|ALERTS)"
# A string stays as it is; a name is a selector's unless it is a call or a label in a list.
_TOKEN = re.compile(
    rf"""(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    rf"""|(?P<name>(?<![\w:$]){_NAME}(?![\w:]))\s*(?P<open>\{{\s*(?P<empty>\}})?)?"""
)

_PLACE = re.compile(r"^([ -]*\w+: |[ -]*)(__[A-Z_]+__)$", re.MULTILINE)


def scoped(expr: str, where: Mapping[str, str] = THIS_RELEASE) -> str:
    """The expression with `label="value"` in each of its selectors; its layout stays.

    Args:
        expr: PromQL that the parser reads as it stands.
        where: label → value that every selected series must have.

    Raises:
        ContractError: a selector was missed, or something else was changed.
    """
    text = inserted(expr, where)
    if selectors(text) != [
        (name, sorted([*matchers, *(("=", *pair) for pair in where.items())]))
        for name, matchers in selectors(expr)
    ]:
        raise ContractError(
            f"scope: {expr}: became {text}, expected {dict(where)} in each selector and nothing "
            "else changed; select Tocsin's own series (tocsin_…, tocsin:…), up, scrape_… or ALERTS"
        )
    return text


def with_places(document: Any) -> str:
    """YAML in which a place that the chart fills in is quoted: a namespace may be called `123`."""
    return _PLACE.sub(r'\1"\2"', yaml_text(document, head=""))


def inserted(expr: str, where: Mapping[str, str]) -> str:
    """The same without the proof, for expressions that hold a dashboard's variables."""
    matchers = ", ".join(f'{label}="{value}"' for label, value in where.items())

    def put(found: re.Match[str]) -> str:
        if found["string"]:
            return found[0]
        if found["empty"] or not found["open"]:
            rest = found[0][len(found["name"]) :] if not found["open"] else ""
            return f"{found['name']}{{{matchers}}}{rest}"
        return f"{found['name']}{{{matchers}, "

    return _TOKEN.sub(put, expr)


def selectors(expr: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Each selector's metric and its sorted matchers (operator, label, value), in order."""
    import promql_parser  # needed to generate, not to install

    found: list[tuple[str, list[tuple[str, str, str]]]] = []

    def look(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append((node.name or "", sorted(map(_matcher, node.matchers.matchers))))

    promql_parser.transform(promql_parser.parse(expr), pre_visit=look)
    return found


_OPERATORS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def _matcher(matcher: Any) -> tuple[str, str, str]:
    return _OPERATORS[str(matcher.op).rpartition(".")[2]], matcher.name, matcher.value
