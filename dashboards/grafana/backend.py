"""From a dashboard's declaration to the JSON that Grafana imports, through Grafana's own SDK.

The SDK is needed to generate, not to use: what it makes is committed under dashboards/generated.
"""

import json
from pathlib import Path
from typing import Any, cast

from tocsin.dashboards.grafana.drawing import SOURCE, both, drawn
from tocsin.dashboards.grafana.files import DOCS_URL, GENERATED, TAG, TAG_CHAOS, as_text
from tocsin.dashboards.grafana.sdk import JSONEncoder, builders, common, models
from tocsin.dashboards.panel import Dashboard, Panel, Variable
from tocsin.dashboards.panels import DASHBOARDS

COLUMNS = 24
_GRAFANA = common.DataSourceRef(type_val="grafana", uid="-- Grafana --")


def generated() -> dict[Path, str]:
    """Path → text of every dashboard, as it must be committed."""
    return {GENERATED / f"{board.id}.json": as_text(model(board)) for board in DASHBOARDS}


def model(board: Dashboard) -> dict[str, Any]:
    """The dashboard as plain data, in Grafana's schema."""
    builder = builders.Dashboard(f"Tocsin · {both(board.title, board.title_zh)}")
    builder.uid(board.uid).description(board.description).tags([TAG]).readonly()
    builder.timezone("browser").time("now-15m", "now").refresh("10s")
    builder.tooltip(models.DashboardCursorSync.CROSSHAIR)
    builder.links([_other_dashboards()]).variables([_source(), *_variables(board), _docs()])
    for annotation in _annotations():
        builder.annotation(annotation)
    number, y = 1, 0
    for row in board.rows:
        heading = builders.Row(both(row.title, row.title_zh)).id(number).collapsed(False)
        heading.grid_pos(models.GridPos(h=1, w=COLUMNS, x=0, y=y))
        if row.repeat:
            heading.repeat(row.repeat)
        builder.with_row(heading)
        places, y = layout(row.panels, y + 1)
        number += 1
        for panel, place in zip(row.panels, places, strict=True):
            builder.with_panel(drawn(panel, number, place))
            number += 1
    return cast("dict[str, Any]", json.loads(json.dumps(builder.build(), cls=JSONEncoder)))


def layout(panels: tuple[Panel, ...], top: int) -> tuple[tuple[models.GridPos, ...], int]:
    """Places from left to right, a new line where one is full; and the first free line below."""
    places: list[models.GridPos] = []
    x, y, line = 0, top, 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            x, y, line = 0, y + line, 0
        places.append(models.GridPos(h=panel.height, w=panel.width, x=x, y=y))
        x, line = x + panel.width, max(line, panel.height)
    return tuple(places), y + line


def _other_dashboards() -> builders.DashboardLink:
    link = builders.DashboardLink("Tocsin").type(models.DashboardLinkType.DASHBOARDS)
    return link.tags([TAG]).as_dropdown(False).keep_time(True).include_vars(True)


def _source() -> builders.DatasourceVariable:
    variable = builders.DatasourceVariable("datasource").type("prometheus")
    return variable.label("Data source · 数据源").multi(False).include_all(False)


def _docs() -> builders.ConstantVariable:
    variable = builders.ConstantVariable("docs").value(DOCS_URL).label("Documents · 文档")
    return variable.description("Address of docs/, for the runbook links")


def _variables(board: Dashboard) -> list[builders.QueryVariable]:
    return [_variable(each) for each in board.variables]


def _variable(variable: Variable) -> builders.QueryVariable:
    query = f"label_values({variable.source.name}, {variable.name})"
    builder = builders.QueryVariable(variable.name).label(both(variable.label, variable.label_zh))
    builder.datasource(SOURCE).query({"query": query, "refId": variable.name}).definition(query)
    builder.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    builder.sort(models.VariableSort.ALPHABETICAL_ASC).multi(True).include_all(True)
    everything = models.VariableOption(text="All", value="$__all", selected=True)
    return builder.all_value(".*").current(everything)


def _annotations() -> list[builders.AnnotationQuery]:
    """Experiments as told by Grafana's API, faults in place and alerts as told by Prometheus."""
    told = builders.AnnotationQuery().name("Chaos runs · 混沌实验").datasource(_GRAFANA)
    told.enable(True).icon_color("purple")
    tags = builders.AnnotationTarget().limit(100).match_any(False).tags([TAG_CHAOS]).type("tags")
    told.target(cast("Any", tags))
    faults = builders.AnnotationQuery().name("Faults · 故障").datasource(SOURCE).enable(True)
    faults.icon_color("blue").expr("max by (fault) (tocsin_chaos_active) > 0")
    faults.step("10s").title_format("{{fault}}").tag_keys("fault")
    alerts = builders.AnnotationQuery().name("Alerts · 告警").datasource(SOURCE).enable(True)
    fired = 'ALERTS{alertname=~"Tocsin.+", alertstate="firing", priority!="none"}'
    alerts.icon_color("red").expr(fired)
    alerts.step("10s").title_format("{{alertname}}").text_format("{{priority}} {{operator}}")
    alerts.tag_keys("alertname,priority,operator")
    return [told, faults, alerts]
