"""The dashboards' page: the prose is written by hand, the tables of panels are declared."""

from collections.abc import Iterable

from tocsin.core.markdown import cell, code
from tocsin.dashboards.panel import Dashboard, Panel, metrics_in
from tocsin.dashboards.panels import DASHBOARDS

BEGIN, END = "<!-- panels: begin -->", "<!-- panels: end -->"


def dashboards_page(text: str, boards: Iterable[Dashboard] = DASHBOARDS) -> str:
    """The page with its tables renewed between the marks; the rest stays as it is."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{panel_tables(boards)}\n{END}{after}"


def panel_tables(boards: Iterable[Dashboard]) -> str:
    """One section a dashboard: what it is for, and a line for each panel."""
    lines: list[str] = []
    for board in boards:
        panels = board.panels
        lines += [f"### {board.title} · {board.title_zh}", "", board.description, ""]
        choices = code(f"${variable.name}" for variable in board.variables)
        lines += [f"`{board.uid}`, {len(panels)} panels; choices: {choices}.", ""]
        lines += ["| panel | shows | metrics | runbook |", "|---|---|---|---|"]
        lines += [*map(_line, panels), ""]
    return "\n".join(lines)


def _line(panel: Panel) -> str:
    metrics = sorted(metrics_in(query.expr for query in panel.queries))
    runbook = f"[{panel.runbook}](runbooks/{panel.runbook}.md)"
    title = f"**{cell(panel.title)}**<br>{cell(panel.title_zh)}"
    return f"| {title} | {cell(panel.description)} | {code(metrics)} | {runbook} |"
