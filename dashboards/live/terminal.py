"""The live page in a terminal: the same state, drawn with rich."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.panel import Panel as Box
from rich.table import Table
from rich.text import Text

from tocsin.core.terms import Layer, Operator
from tocsin.dashboards.live import numerals
from tocsin.dashboards.live.figures import CHARTS, panel_of
from tocsin.dashboards.live.page import mood, shown
from tocsin.dashboards.live.state import Cell, Light, LiveState
from tocsin.dashboards.live.words import words

_SHAPES = {
    Light.ABSENT: ("", ""),
    Light.IDLE: ("○", "dim"),
    Light.OFF: ("⊘", "reverse"),
    Light.OK: ("●", "green"),
    Light.NOTE: ("◐", "cyan"),
    Light.WARN: ("▲", "bold yellow"),
    Light.BAD: ("✖", "bold red"),
}
_MOODS = {
    "well": "bold green",
    "alarms": "bold yellow",
    "severe": "bold red",
    "blind": "bold",
    "down": "bold red",
}
_HEADS = {
    "well": "all_well",
    "alarms": "alarms",
    "severe": "severe",
    "blind": "blind",
    "down": "no_replica",
}
_BLOCKS = "▁▂▃▄▅▆▇█"
SPARKS = 30
"""Points of a line that a sparkline shows."""


def draw(
    state: LiveState, language: str = "en", *, failures: int = 6, wide: bool = False
) -> RenderableType:
    """The whole screen, the gravest first.

    Args:
        failures: how many of the newest are listed.
        wide: there is room for two columns (150 characters).
    """
    text = words(language)
    rest: list[RenderableType] = []
    if state.failures:
        rest.append(_failures(state, text, failures))
    if state.faults:
        rest.append(_faults(state, text))
    if state.orders or state.degradations:
        rest.append(_orders(state, text))
    rest += [_replicas(state, text), _figures(state, language)]
    if not wide:
        return Group(_head(state, text), _grid(state, text), *rest)
    columns = Table.grid(padding=(0, 2), expand=True)
    columns.add_row(_grid(state, text), Group(*rest))
    return Group(_head(state, text), columns)


def sparkline(values: list[float], top: float = 0.0) -> str:
    """One block a value; `top` is the least height of the scale."""
    highest = max([*values, top])
    if highest <= 0:
        return _BLOCKS[0] * len(values)
    last = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(last * max(value, 0.0) / highest)] for value in values)


def _head(state: LiveState, text: Mapping[str, str]) -> RenderableType:
    word = mood(state)
    age = state.last_token_s
    token = text["never"] if age is None else f"{numerals.seconds(age)} {text['ago']}"
    line = Text.assemble(
        (text[_HEADS[word]], _MOODS[word]),
        f"   {state.model} · {text['profile']} {state.profile}"
        f" · {text['replicas_up']} {state.up}/{state.replicas_expected}"
        f" · {text['last_token']} {token} · {numerals.clock(state.wall_s)} UTC",
    )
    if state.chaos:
        line.append(f"\n{text['drill']}", style="magenta")
    return Box(line, title="tocsin top", title_align="left", border_style=_MOODS[word])


def _grid(state: LiveState, text: Mapping[str, str]) -> RenderableType:
    table = _table(text["operator"], *(text[layer] for layer in Layer))
    cells = {(cell.operator, cell.layer): cell for cell in state.cells}
    for operator in map(str, Operator):
        row = [cells.get((operator, str(layer))) for layer in Layer]
        if any(row):
            _add(table, operator, *(_cell(cell, text) for cell in row))
    return table


def _cell(cell: Cell | None, text: Mapping[str, str]) -> Text:
    if cell is None:
        return Text("")
    shape, style = _SHAPES[cell.light]
    said = text[f"light_{cell.light}"]
    if cell.light in (Light.WARN, Light.BAD):
        said = said.format(n=cell.alarms_60s)
    elif cell.light is Light.NOTE:
        said = said.format(n=int(cell.quiet_s or 0))
    elif cell.light is Light.OK:
        said += f" {numerals.count(cell.per_second)}{text['per_second']}"
    guard = f" {text['guard']}" if cell.profile == "guard" else ""
    return Text(f"{shape} {said}{guard}", style=style)


def _replicas(state: LiveState, text: Mapping[str, str]) -> RenderableType:
    table = _table(text["replica"], "", text["backends"], text["load"], text["kv"])
    styles = {"up": "green", "stalled": "bold yellow", "down": "bold red"}
    for row in state.replicas:
        circuits = Text(" ").join(
            Text(
                f"{backend}{'*' if backend == row.serving else ''}: {text.get(circuit, circuit)}",
                style="" if circuit == "closed" else "bold yellow",
            )
            for backend, circuit in row.breakers.items()
        )
        _add(
            table,
            row.replica,
            Text(text[f"status_{row.status}"], style=styles[row.status]),
            circuits,
            f"{row.running} {text['running']}, {row.waiting} {text['waiting']}",
            f"{100 * row.kv_used:.0f} %",
        )
    return table


def _figures(state: LiveState, language: str) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 1))
    figures = {figure.id: figure for figure in state.figures}
    for name in (f"{board}.{panel}" for board, panel in CHARTS):
        panel = panel_of(name)
        title = panel.title_zh if language == "zh" else panel.title
        for line in shown(figures[name].lines) if name in figures else ():
            points = [value for _, value in line.points[-SPARKS:]]
            if line.last is None or not any(points):
                continue
            value = numerals.amount(line.last, panel.unit)
            bar = sparkline(points, panel.maximum or 0.0)
            _add(table, Text(title, style="dim"), line.name, value, Text(bar, style="cyan"))
            title = ""
    return table


def _failures(state: LiveState, text: Mapping[str, str], most: int) -> RenderableType:
    table = _table(text["when"], "", text["what"], text["settled"], text["reproduce"])
    for row in state.failures[:most]:
        style = "bold red" if row.priority == "P0" else "yellow"
        _add(
            table,
            numerals.clock(row.wall_s),
            Text(row.priority, style=style),
            f"{row.check or row.operator}",
            text.get(f"cause_{row.cause}", row.cause),
            row.command,
        )
    return table


def _faults(state: LiveState, text: Mapping[str, str]) -> RenderableType:
    table = _table(text["chaos"], text["fired"], text["detected"], text["healed"])
    for row in state.faults[:8]:
        fired = numerals.clock(row.fired_s) if row.fired_s else text["not_yet"]
        _add(
            table,
            row.occurrence,
            fired,
            _after(row.fired_s, row.detected_s, text),
            _after(row.fired_s, row.healed_s, text),
        )
    return table


def _after(fired_s: float | None, then_s: float | None, text: Mapping[str, str]) -> str:
    if fired_s is None or then_s is None:
        return text["not_yet"]
    return f"+{numerals.seconds(max(then_s - fired_s, 0.0))}"


def _orders(state: LiveState, text: Mapping[str, str]) -> RenderableType:
    table = _table(text["orders"], "", text["left"], text["reason"])
    for row in (*state.orders, *state.degradations):
        _add(table, row.scope, row.wanted, numerals.countdown(row.left_s), row.reason)
    return table


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for head in heads:
        table.add_column(head)
    return table


def _add(table: Table, *cells: str | Text) -> None:
    """A row of plain text: a reason or a message may look like rich's markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
