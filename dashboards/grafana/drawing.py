"""One panel's declaration as Grafana's own builders draw it."""

from tocsin.dashboards.grafana.sdk import (
    PromQueryFormat,
    bargauge,
    builders,
    common,
    common_builders,
    heatmap,
    models,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from tocsin.dashboards.panel import Kind, Level, Panel, Query, Threshold

COLOURS = {
    Level.OK: "green",
    Level.NOTE: "blue",
    Level.WARN: "orange",
    Level.BAD: "red",
    Level.IDLE: "gray",
}
SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
DOCS = "${docs}"

Builder = (
    timeseries.Panel
    | stat.Panel
    | bargauge.Panel
    | statetimeline.Panel
    | table.Panel
    | heatmap.Panel
)


def drawn(panel: Panel, number: int, place: models.GridPos) -> Builder:
    """The panel, placed; `number` is its id within the dashboard."""
    builder = _by_kind(panel)
    builder.id(number).title(both(panel.title, panel.title_zh)).description(panel.description)
    builder.datasource(SOURCE).grid_pos(place).links([_runbook(panel)])
    builder.unit(panel.unit).no_value(panel.no_value).thresholds(_thresholds(panel))
    if panel.minimum is not None:
        builder.min(panel.minimum)
    if panel.maximum is not None:
        builder.max(panel.maximum)
    if panel.values:
        builder.mappings([_value_map(panel)])
    for ref, query in zip("ABCDEFGH", panel.queries, strict=False):
        builder.with_target(_target(query, ref, panel.kind))
    return builder


def both(english: str, chinese: str) -> str:
    """A heading in both languages; once where they are the same."""
    return english if english == chinese else f"{english} · {chinese}"


def _by_kind(panel: Panel) -> Builder:
    match panel.kind:
        case Kind.TIMESERIES:
            return _timeseries(panel)
        case Kind.STAT:
            return (
                stat.Panel()
                .color_mode(common.BigValueColorMode.VALUE)
                .graph_mode(common.BigValueGraphMode.NONE)
                .reduce_options(_last())
            )
        case Kind.BAR:
            return (
                bargauge.Panel()
                .display_mode(common.BarGaugeDisplayMode.GRADIENT)
                .orientation(common.VizOrientation.HORIZONTAL)
                .reduce_options(_last())
            )
        case Kind.STATE:
            return (
                statetimeline.Panel()
                .merge_values(True)
                .show_value(common.VisibilityMode.AUTO)
                .color_scheme(_by_threshold())
                .legend(_legend())
            )
        case Kind.TABLE:
            hidden = models.DataTransformerConfig(
                id_val="organize", options={"excludeByName": {"Time": True}}
            )
            return table.Panel().with_transformation(hidden).filterable(True)
        case Kind.HEATMAP:
            axis = heatmap.YAxisConfig().unit(panel.unit)
            return heatmap.Panel().calculate(False).y_axis(axis).cell_gap(1)


def _timeseries(panel: Panel) -> timeseries.Panel:
    builder = timeseries.Panel().line_width(2).fill_opacity(40 if panel.stacked else 8)
    builder.span_nulls(False).show_points(common.VisibilityMode.AUTO).legend(_legend())
    builder.tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    builder.color_scheme(
        builders.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC_BY_NAME)
    )
    if panel.stacked:
        builder.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if panel.thresholds:
        dashed = common.GraphThresholdsStyleMode.DASHED
        builder.thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(dashed))
    return builder


def _target(query: Query, ref: str, kind: Kind) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(ref).datasource(SOURCE).expr(query.expr)
    target.legend_format(query.legend).exemplar(query.exemplars)
    if query.instant:
        target.instant()
    else:
        target.range()
    if kind is Kind.TABLE:
        target.format(PromQueryFormat.TABLE)
    elif kind is Kind.HEATMAP:
        target.format(PromQueryFormat.HEATMAP)
    else:
        target.format(PromQueryFormat.TIME_SERIES)
    return target


def _runbook(panel: Panel) -> builders.DashboardLink:
    link = builders.DashboardLink("Runbook · 处置手册").type(models.DashboardLinkType.LINK)
    return link.url(f"{DOCS}/runbooks/{panel.runbook}.md").target_blank(True)


def _thresholds(panel: Panel) -> builders.ThresholdsConfig:
    def step(each: Threshold) -> models.Threshold:
        return models.Threshold(value=each.at, color=COLOURS[each.level])

    first = models.Threshold(value=None, color=COLOURS[panel.base])
    config = builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
    return config.steps([first, *map(step, panel.thresholds)])


def _value_map(panel: Panel) -> models.ValueMap:
    options = {
        f"{each.value:g}": models.ValueMappingResult(
            text=both(each.text, each.text_zh), color=COLOURS[each.level], index=index
        )
        for index, each in enumerate(panel.values)
    }
    return models.ValueMap(options=options)


def _legend() -> common_builders.VizLegendOptions:
    legend = common_builders.VizLegendOptions().show_legend(True)
    return legend.display_mode(common.LegendDisplayMode.LIST).placement(
        common.LegendPlacement.BOTTOM
    )


def _last() -> common_builders.ReduceDataOptions:
    return common_builders.ReduceDataOptions().calcs(["lastNotNull"])


def _by_threshold() -> builders.FieldColor:
    return builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)
