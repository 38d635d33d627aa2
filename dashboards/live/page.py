"""From a `LiveState` to HTML: the whole page, or its parts for a page that is already open."""

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from tocsin.core.terms import Layer, Operator, Profile
from tocsin.dashboards.live import numerals
from tocsin.dashboards.live.figures import CHARTS, SPAN_S, TILES, panel_of
from tocsin.dashboards.live.state import Cell, FaultRow, Figure, Line, LiveState
from tocsin.dashboards.live.words import LANGUAGES, words
from tocsin.dashboards.panel import Level, Panel

SECTIONS = ("banner", "grid", "failures", "replicas", "chaos", "switchboard", "orders")
"""Parts of the page that are sent anew when they change; figures are drawn by the script."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REFRESH_S = 5
FAULTS_SHOWN = 16
LINES_SHOWN = 6
_FOR_SCRIPT = (
    *("connecting", "live", "lost", "copied", "copy_failed", "switch_to", "weaker", "done"),
    *("bad_token", "failed", "no_data", "now", "everything", *map(str, Layer)),
)


def page(state: LiveState, language: str) -> str:
    """The whole page; complete without a script."""
    template = _environment().get_template("live.html.jinja")
    text = words(language)
    other = next(one for one in LANGUAGES if one != language)
    return template.render(
        **_context(state, language),
        parts=sections(state, language),
        other=other,
        refresh_s=REFRESH_S,
        script_words=json.dumps({key: text[key] for key in _FOR_SCRIPT}, ensure_ascii=False),
        profiles=tuple(Profile),
        charts=[_chart(state, f"{board}.{name}", language) for board, name in CHARTS],
    )


def sections(state: LiveState, language: str) -> dict[str, str]:
    """HTML of each part, by its name."""
    context = _context(state, language)
    return {
        name: _environment().get_template(f"{name}.html.jinja").render(**context).strip()
        for name in SECTIONS
    }


def asset(name: str) -> bytes:
    """A file that the page loads: `live.js` or `live.css`."""
    return (files("tocsin.dashboards.live") / "page" / name).read_bytes()


@cache
def _environment() -> Environment:
    from jinja2 import FunctionLoader

    folder = files("tocsin.dashboards.live") / "page"
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
    )
    environment.filters.update(
        count=numerals.count,
        amount=numerals.amount,
        seconds=numerals.seconds,
        countdown=numerals.countdown,
        clock=numerals.clock,
        stamp=numerals.stamp,
    )
    return environment


def _context(state: LiveState, language: str) -> dict[str, Any]:
    text = words(language)
    cells: dict[str, dict[str, Cell]] = {}
    for cell in state.cells:
        cells.setdefault(cell.operator, {})[cell.layer] = cell
    operators = [str(one) for one in Operator if str(one) in cells]
    faults = state.faults[:FAULTS_SHOWN]
    lane_s = _lane_s(faults, state.wall_s)
    return {
        "state": state,
        "t": text,
        "language": language,
        "layers": [str(layer) for layer in Layer],
        "operators": operators,
        "cells": cells,
        "mood": mood(state),
        "scopes": _scopes(state, operators),
        "tiles": [_tile(state, f"{board}.{name}", language) for board, name in TILES],
        "kv_fullest": max((row.kv_used for row in state.replicas if row.status == "up"), default=0),
        "open_circuits": sum(
            circuit != "closed"
            for row in state.replicas
            if row.status == "up"
            for circuit in row.breakers.values()
        ),
        "faults": faults,
        "lane_s": lane_s,
        "place": lambda wall_s: _place(wall_s, state.wall_s, lane_s),
        "marks": lambda fault: _marks(fault, state.wall_s, lane_s),
        "short": _short,
    }


def mood(state: LiveState) -> str:
    """The one word at the top: `down`, `severe`, `alarms`, `blind` or `well`."""
    lights = {cell.light for cell in state.cells}
    if not state.up:
        return "down"
    for word, light in (("severe", "bad"), ("alarms", "warn"), ("blind", "off")):
        if light in lights:
            return word
    return "well"


def _scopes(state: LiveState, operators: list[str]) -> list[dict[str, str]]:
    """Rows of the switchboard: everything, the layers, the operators; with what holds there."""
    rows = [{"scope": "everything", "kind": "everything", "name": "everything"}]
    rows += [{"scope": f"layer:{one}", "kind": "layer", "name": str(one)} for one in Layer]
    rows += [{"scope": f"operator:{one}", "kind": "operator", "name": one} for one in operators]
    ordered = {order.scope: order.wanted for order in state.orders}
    for row in rows:
        held = {
            cell.profile
            for cell in state.cells
            if row["kind"] == "everything" or row["name"] in (cell.layer, cell.operator)
        }
        row["profile"] = ordered.get(row["scope"]) or (held.pop() if len(held) == 1 else "mixed")
    return rows


def _tile(state: LiveState, figure: str, language: str) -> dict[str, Any]:
    panel = panel_of(figure)
    lines = _lines(state, figure)
    value = sum(line.last or 0.0 for line in lines)
    known = any(line.last is not None for line in lines)
    return {
        "title": _title(panel, language),
        "text": numerals.amount(value if known else None, panel.unit),
        "level": str(_level(panel, value)) if known else str(Level.IDLE),
        "hint": panel.description,
    }


def _chart(state: LiveState, figure: str, language: str) -> dict[str, Any]:
    panel = panel_of(figure)
    return {
        "id": figure,
        "title": _title(panel, language),
        "description": panel.description,
        "no_value": panel.no_value,
        "unit": panel.unit,
        "stacked": panel.stacked,
        "maximum": panel.maximum,
        "limits": ",".join(f"{one.at:g}" for one in panel.thresholds if one.level is Level.BAD),
        "lines": [
            {"name": line.name, "text": numerals.amount(line.last, panel.unit)}
            for line in shown(_lines(state, figure))
        ],
    }


def _lines(state: LiveState, figure: str) -> tuple[Line, ...]:
    found: Figure | None = next((one for one in state.figures if one.id == figure), None)
    return found.lines if found else ()


def _title(panel: Panel, language: str) -> str:
    return panel.title_zh if language == "zh" else panel.title


def _level(panel: Panel, value: float) -> Level:
    level = panel.base
    for threshold in panel.thresholds:
        if value >= threshold.at:
            level = threshold.level
    return level


def _lane_s(faults: tuple[FaultRow, ...], now_s: float) -> float:
    """How far the lanes reach back: as little as shows all that is listed, in whole minutes."""
    oldest_s = max((now_s - fault.injected_s for fault in faults), default=0.0)
    return min(max(60.0 * math.ceil(oldest_s / 60.0), 120.0), SPAN_S)


def _place(wall_s: float, now_s: float, lane_s: float) -> str:
    """Where a time stands in a lane, in percent."""
    share = 1.0 - (now_s - wall_s) / lane_s
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


def _marks(fault: FaultRow, now_s: float, lane_s: float) -> list[Mapping[str, str]]:
    """One above the other by kind: what coincides in time stays apart to the eye."""
    marks = (
        ("injected", fault.injected_s, "50%"),
        ("fired", fault.fired_s, "22%"),
        ("detected", fault.detected_s, "50%"),
        ("healed", fault.healed_s, "78%"),
    )
    return [
        {"kind": kind, "x": _place(wall_s, now_s, lane_s), "y": y}
        for kind, wall_s, y in marks
        if wall_s is not None and now_s - wall_s <= lane_s
    ]


def shown(lines: tuple[Line, ...], most: int = LINES_SHOWN) -> tuple[Line, ...]:
    """The lines that a figure has room for: the highest ones, in their own order."""
    if len(lines) <= most:
        return lines
    heights = {line.name: max((value for _, value in line.points), default=0.0) for line in lines}
    ranked = sorted(lines, key=lambda line: (-heights[line.name], line.name))
    chosen = ranked[:1] + [line for line in ranked[1:most] if heights[line.name] > 0]
    return tuple(line for line in lines if line in chosen)


def _short(replica: str) -> str:
    """A replica's id, short enough for a table; the whole stands in the title."""
    return replica if len(replica) <= 10 else f"…{replica[-6:]}"
