"""Every panel can be read, drawn and acted upon; every metric is looked at by somebody."""

import itertools
import re

import promql_parser
import pytest

from tests.checkout import ROOT
from tocsin.checker import plan
from tocsin.core.metrics import CATALOGUE, CHECK_DURATION, REQUESTS, MetricType
from tocsin.dashboards.contract import alerts
from tocsin.dashboards.panel import (
    DEFAULTS,
    Dashboard,
    Kind,
    Panel,
    Query,
    Take,
    metrics_in,
    substitute,
    variables_of,
)
from tocsin.dashboards.panels import DASHBOARDS
from tocsin.dashboards.query import quantile, rate, select
from tocsin.dashboards.recordings import RECORDINGS

PANELS = [(board, panel) for board in DASHBOARDS for panel in board.panels]
QUERIES = [(board, panel, query) for board, panel in PANELS for query in panel.queries]
BY_PANEL = pytest.mark.parametrize(
    ("board", "panel"), PANELS, ids=[f"{board.id}-{panel.id}" for board, panel in PANELS]
)
BY_QUERY = pytest.mark.parametrize(
    ("board", "panel", "query"),
    QUERIES,
    ids=[f"{board.id}-{panel.id}-{query.legend}" for board, panel, query in QUERIES],
)
BY_BOARD = pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.id)
CHOSEN = ("model", "operator", "replica")
METRICS = {metric.name: metric for metric in CATALOGUE}
SERIES = {name: metric for metric in CATALOGUE for name in metric.series}
# A total since the start, because the number is small and exact, and a rate of it would be zero.
BARE_COUNTERS = {
    "tocsin_chaos_faults_injected_total",
    "tocsin_chaos_faults_detected_total",
    "tocsin_chaos_faults_healed_total",
    "tocsin_chaos_false_alarms_total",
    "tocsin_check_switch_changes_total",
    "tocsin_repro_runs_total",
    "tocsin_alert_deliveries_total",
}


def _nodes(expr: str) -> list[promql_parser.Expr]:
    nodes: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(substitute(expr)), nodes.append)
    return nodes


def _selectors(expr: str) -> list[promql_parser.VectorSelector]:
    return [node for node in _nodes(expr) if isinstance(node, promql_parser.VectorSelector)]


def test_every_metric_is_looked_at_by_a_panel_or_a_rule() -> None:
    """Nobody pays for a series that no one sees; nobody asks for one that is not exported."""
    exprs = [query.expr for _, _, query in QUERIES]
    exprs += [alert.expr for alert in alerts().values()] + [rule.expr for rule in RECORDINGS]
    used = metrics_in(exprs) - {"tocsin_never"}  # the watchdog asks for what must not exist
    assert used == METRICS.keys()


def test_a_name_that_the_catalogue_lacks_is_not_hidden() -> None:
    """The comparison above can fail: an unknown name is returned as it stands."""
    found = metrics_in(["rate(tocsin_renamed_total[1m]) + tocsin_step_duration_seconds_bucket"])
    assert found == {"tocsin_renamed_total", "tocsin_step_duration_seconds"}


def test_there_are_six_dashboards_and_every_file_is_one() -> None:
    """A dashboard whose file was forgotten in the list would never be rendered."""
    files = {path.stem for path in (ROOT / "dashboards" / "panels").glob("*.py")}
    assert {board.id for board in DASHBOARDS} == files - {"__init__", "choices"}
    assert len(DASHBOARDS) == 6


@BY_BOARD
def test_a_dashboard_offers_the_choices_that_its_queries_use(board: Dashboard) -> None:
    """A variable that is missing makes a query fail; one without effect misleads."""
    used = {
        name
        for panel in board.panels
        for query in panel.queries
        for name in variables_of(query.expr)
    }
    assert {name for name in used if not name.startswith("__")} == {
        variable.name for variable in board.variables
    }
    for variable in board.variables:
        assert variable.name in variable.source.labels
    assert {row.repeat for row in board.rows} <= {"", *(each.name for each in board.variables)}


@BY_BOARD
def test_panels_of_a_dashboard_have_ids_of_their_own(board: Dashboard) -> None:
    """Links and the live page find a panel by its id."""
    names = [panel.id for panel in board.panels]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)
    headings = [panel.title for panel in board.panels]
    assert len(headings) == len(set(headings))


@BY_PANEL
def test_a_panel_says_what_it_shows_in_two_languages(board: Dashboard, panel: Panel) -> None:
    """Description, text for no data, and titles are written, not left to be guessed."""
    assert re.search(r"[\u4e00-\u9fff]", panel.title_zh)
    assert len(panel.title) <= 48
    assert len(panel.description) >= 20
    assert panel.description.endswith(".")
    assert len(panel.no_value) >= 10
    assert panel.queries


@BY_PANEL
def test_a_panel_leads_to_a_runbook_that_exists(board: Dashboard, panel: Panel) -> None:
    """Who sees something red has one click to what can be done."""
    assert panel.runbook in alerts()
    assert (ROOT / "docs" / "runbooks" / f"{panel.runbook}.md").is_file()


@BY_PANEL
def test_thresholds_rise_and_words_stand_for_different_values(
    board: Dashboard, panel: Panel
) -> None:
    """Grafana takes the last step below a value, so steps out of order would colour wrongly."""
    levels = [threshold.at for threshold in panel.thresholds]
    assert levels == sorted(set(levels))
    assert len({each.value for each in panel.values}) == len(panel.values)
    assert all(re.search(r"[\u4e00-\u9fff]", each.text_zh) for each in panel.values)
    if panel.kind is Kind.STATE:
        assert panel.thresholds, "a band without thresholds has one colour"


@BY_QUERY
def test_a_query_is_promql(board: Dashboard, panel: Panel, query: Query) -> None:
    """It parses once its variables have values, and no variable is left over."""
    expr = substitute(query.expr)
    promql_parser.parse(expr)
    assert variables_of(expr) == ()


@BY_QUERY
def test_a_query_selects_by_labels_that_the_metric_has(
    board: Dashboard, panel: Panel, query: Query
) -> None:
    """A label that does not exist matches nothing, and says nothing about it."""
    for selector in _selectors(query.expr):
        metric = SERIES.get(selector.name)
        if metric is None:
            assert selector.name in {"ALERTS", "scrape_duration_seconds"}
            continue
        assert {matcher.name for matcher in selector.matchers.matchers} <= set(metric.labels)


@BY_QUERY
def test_a_query_is_held_to_what_the_person_chose(
    board: Dashboard, panel: Panel, query: Query
) -> None:
    """Choosing a model must change every panel that could tell models apart."""
    offered = {variable.name for variable in board.variables}
    for selector in _selectors(query.expr):
        metric = SERIES.get(selector.name)
        wanted = set(metric.labels) & set(CHOSEN) & offered if metric else set()
        matched = {
            matcher.name
            for matcher in selector.matchers.matchers
            if matcher.value == DEFAULTS.get(matcher.name)
        }
        assert wanted <= matched


@BY_QUERY
def test_a_range_is_the_interval_that_grafana_computes(
    board: Dashboard, panel: Panel, query: Query
) -> None:
    """A fixed range shorter than four scrapes shows gaps, a long one shows the past."""
    ranges = re.findall(r"\[([^\]]+)\]", query.expr)
    assert set(ranges) <= {"$__rate_interval", "$__range"}
    if "$__range" in ranges:
        assert query.instant, "a whole-range increase at every step would be a sliding sum"


@BY_QUERY
def test_a_counter_is_asked_how_it_grows(board: Dashboard, panel: Panel, query: Query) -> None:
    """A bare counter shows how old the process is; the few exceptions are named."""
    ranged = {
        node.vector_selector.name
        for node in _nodes(query.expr)
        if isinstance(node, promql_parser.MatrixSelector)
    }
    bare = {selector.name for selector in _selectors(query.expr)} - ranged
    for name in bare & SERIES.keys():
        counts = SERIES[name].type is not MetricType.GAUGE
        assert not counts or name in BARE_COUNTERS


@BY_QUERY
def test_series_of_one_panel_can_be_told_apart(
    board: Dashboard, panel: Panel, query: Query
) -> None:
    """The legend names a label by which the query groups, or is the only one of its name."""
    grouped = set(re.findall(r"by \(([^)]*)\)", query.expr))
    labels = {name.strip() for group in grouped for name in group.split(",")}
    named = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
    assert named <= labels | {"instance", "stage"}
    legends = [each.legend for each in panel.queries]
    assert len(legends) == len(set(legends))


@BY_QUERY
def test_the_words_of_a_query_say_what_its_promql_says(
    board: Dashboard, panel: Panel, query: Query
) -> None:
    """The live page computes from the words, so they must name the same metric and labels."""
    if query.shape is None:
        return
    assert metrics_in([query.expr]) == {query.shape.metric.name}
    for label in query.shape.by:
        assert re.search(rf"by \([^)]*\b{label}\b", query.expr)
    for label, pattern in query.shape.where.items():
        assert f'{label}=~"{pattern}"' in query.expr
    histogram = query.shape.take in (Take.QUANTILE, Take.MEAN, Take.BUCKETS)
    assert histogram == (query.shape.metric.type is MetricType.HISTOGRAM)


def test_the_marks_of_the_exception_rate_are_those_of_the_plan() -> None:
    """One number on the screen and in `tocsin scan --plan`."""
    panel = next(
        panel
        for board in DASHBOARDS
        for row in board.rows
        for panel in row.panels
        if panel.id == "exception_rate"
    )
    assert [mark.at for mark in panel.thresholds] == [plan.LOW, plan.HIGH]


def test_most_panels_can_be_drawn_without_prometheus() -> None:
    """The live page has no PromQL: what only PromQL can say must stay the exception."""
    worded = sum(query.shape is not None for _, _, query in QUERIES)
    assert worded / len(QUERIES) > 0.75


def test_a_query_by_a_label_that_does_not_exist_is_refused() -> None:
    """The mistake is told where it is made, with the labels that there are."""
    with pytest.raises(ValueError, match=r"groups by \['replica'\].*outcome"):
        rate(REQUESTS, by=("replica",))
    with pytest.raises(ValueError, match=r"selects by \['layer'\]"):
        select(REQUESTS, {"layer": "state"})


def test_a_histogram_is_not_asked_for_as_a_number() -> None:
    """A histogram has no series of its own name: such a query is always empty."""
    with pytest.raises(ValueError, match="use quantile, mean or buckets"):
        rate(CHECK_DURATION)
    with pytest.raises(ValueError, match="a counter is asked for as bucket"):
        quantile(REQUESTS, 0.5)


def test_values_take_the_place_of_variables() -> None:
    """Both spellings are known, named values win, and PromQL's own `$1` stays."""
    text = 'x{model=~"$model", replica=~"${replica:regex}"}[$__rate_interval] "$1"'
    chosen = substitute(text, {"model": "m", "__rate_interval": "10s"})
    assert chosen == 'x{model=~"m", replica=~".*"}[10s] "$1"'
    assert variables_of(text) == ("__rate_interval", "model", "replica")


def test_dashboards_are_found_under_uids_of_their_own() -> None:
    """Links and bookmarks hold a uid; two of the same would overwrite each other."""
    uids = [board.uid for board in DASHBOARDS]
    assert len(set(uids)) == len(uids)
    assert all(len(uid) <= 40 for uid in uids)  # Grafana's limit
    for one, other in itertools.combinations(DASHBOARDS, 2):
        assert one.title != other.title
