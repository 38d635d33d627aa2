"""The committed JSON: fresh, valid, and without the faults that shared dashboards are known for."""

import copy
import json
from typing import Any

import jsonschema
import pytest
import yaml

from tests.checkout import ROOT
from tocsin.core.errors import EnvironmentFault
from tocsin.core.metrics import CATALOGUE
from tocsin.dashboards.grafana import files
from tocsin.dashboards.grafana.backend import COLUMNS, generated
from tocsin.dashboards.grafana.files import Addresses, committed, provisioned, write
from tocsin.dashboards.grafana.sdk import JSONEncoder, models
from tocsin.dashboards.panels import DASHBOARDS
from tocsin.dashboards.render.options import RenderOptions

SCHEMA = json.loads(
    (ROOT / "tests" / "dashboards" / "grafana" / "dashboard.schema.json").read_text("utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
MODELS = {model["uid"]: model for model in committed()}
BY_MODEL = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))


def _panels(model: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in model["panels"] if panel["type"] != "row"]


def test_what_is_committed_is_what_the_declarations_say() -> None:
    """A panel that was changed without `make docs` would never reach anybody."""
    texts = generated()
    for path, text in texts.items():
        assert path.read_text("utf-8") == text, f"{path.name} is stale: run make docs"
    assert set(texts) == set(files.GENERATED.glob("*"))


@BY_MODEL
def test_a_dashboard_is_valid(model: dict[str, Any]) -> None:
    """It is held to our schema, which is tighter than what Grafana would accept."""
    assert [error.message for error in VALIDATOR.iter_errors(model)] == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda panel: panel.update(datasource={"type": "prometheus", "uid": "abc"}),
        lambda panel: panel["targets"][0].update(
            datasource={"type": "loki", "uid": "${datasource}"}
        ),
        lambda panel: panel.pop("description"),
        lambda panel: panel["fieldConfig"]["defaults"].pop("unit"),
        lambda panel: panel["fieldConfig"]["defaults"].pop("noValue"),
        lambda panel: panel.update(links=[]),
        lambda panel: panel.update(targets=[]),
        lambda panel: panel["targets"][0].update(interval="15s"),
    ],
)
def test_the_schema_refuses_what_others_ship(spoil: Any) -> None:
    """Hard-coded sources, no description, no unit, no text for no data, no link, no query."""
    model = copy.deepcopy(MODELS["tocsin-overview"])
    spoil(_panels(model)[0])
    assert list(VALIDATOR.iter_errors(model))


@BY_MODEL
def test_grafanas_own_models_read_it_without_loss(model: dict[str, Any]) -> None:
    """What the SDK reads and writes again is what was there: no field is unknown to it."""
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    again = json.dumps(models.Dashboard.from_json(copy.deepcopy(model)), cls=JSONEncoder)
    assert json.loads(again) == model


@BY_MODEL
def test_panels_lie_side_by_side(model: dict[str, Any]) -> None:
    """No panel covers another, none sticks out, and ids are unique."""
    taken: set[tuple[int, int]] = set()
    for panel in model["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells
    numbers = [panel["id"] for panel in model["panels"]]
    assert len(numbers) == len(set(numbers))


@BY_MODEL
def test_lines_of_panels_leave_no_hole(model: dict[str, Any]) -> None:
    """Panels that stand beside each other fill the width: nothing looks as if it were lost."""
    widths: dict[int, int] = {}
    for panel in model["panels"]:
        place = panel["gridPos"]
        widths[place["y"]] = widths.get(place["y"], 0) + place["w"]
    assert set(widths.values()) == {COLUMNS}


@BY_MODEL
def test_every_variable_asks_for_labels_that_exist(model: dict[str, Any]) -> None:
    """A variable over a renamed metric is empty, and then all panels are."""
    known = {(metric.name, label) for metric in CATALOGUE for label in metric.labels}
    for variable in model["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = variable["query"]["query"][len("label_values(") : -1].split(", ")
            assert (metric, label) in known
            assert label == variable["name"]


@BY_MODEL
def test_experiments_faults_and_alerts_are_marked_on_time(model: dict[str, Any]) -> None:
    """A dip is explained where it is seen: by a drill, a fault in place, or an alert."""
    marks = {each["name"].partition(" ")[0] for each in model["annotations"]["list"]}
    assert marks == {"Chaos", "Faults", "Alerts"}


@BY_MODEL
def test_dashboards_link_to_each_other(model: dict[str, Any]) -> None:
    """All that carry the tag are one click away, at the same time and with the same choices."""
    (link,) = model["links"]
    assert link["tags"] == model["tags"]
    assert link["keepTime"]
    assert link["includeVars"]


def test_latencies_and_failures_lead_to_a_trace() -> None:
    """Exemplars are asked for where the hub exports them, and only there."""
    asking = {
        target["expr"]
        for model in MODELS.values()
        for panel in _panels(model)
        for target in panel["targets"]
        if target["exemplar"]
    }
    for metric in (
        "tocsin_check_failures_total",
        "tocsin_request_duration_seconds",
        "tocsin_time_to_first_token_seconds",
    ):
        assert any(metric in expr for expr in asking)
    assert not any("tocsin_tokens_generated_total" in expr for expr in asking)


def test_the_row_of_one_operator_appears_for_each() -> None:
    """The detail row repeats by the variable that its panels use."""
    rows = [panel for panel in MODELS["tocsin-operators"]["panels"] if panel["type"] == "row"]
    assert [row.get("repeat") for row in rows] == [None, None, "operator"]


def test_the_address_of_the_documents_is_put_in() -> None:
    """Runbook links follow one constant, so an installation needs one word."""
    for model in committed("https://wiki.example/tocsin/"):
        values = {each["name"]: each.get("query") for each in model["templating"]["list"]}
        assert values["docs"] == "https://wiki.example/tocsin"


def test_files_for_provisioning_say_where_everything_is(tmp_path: Any) -> None:
    """Grafana finds the source, the folder and six dashboards; nothing is left to click."""
    addresses = Addresses(prometheus="http://prometheus:9090", dashboards="/d")
    paths = write(tmp_path, addresses)
    assert len(paths) == 2 + len(DASHBOARDS)
    (source,) = yaml.safe_load((tmp_path / "provisioning/datasources/tocsin.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert source["uid"] == "tocsin-prometheus"
    assert source["jsonData"]["exemplarTraceIdDestinations"] == []
    (provider,) = yaml.safe_load((tmp_path / "provisioning/dashboards/tocsin.yaml").read_text())[
        "providers"
    ]
    assert provider["type"] == "file"
    assert provider["options"]["path"] == "/d"
    for board in DASHBOARDS:
        model = json.loads((tmp_path / "dashboards" / f"{board.id}.json").read_text("utf-8"))
        assert model["uid"] == board.uid


def test_a_dollar_in_a_provisioning_file_is_doubled() -> None:
    """Grafana would put an environment variable in its place, and the link would be broken."""
    addresses = Addresses(live="http://gateway:8000/", traces="http://traces/{id}")
    text = provisioned(addresses)["provisioning/datasources/tocsin.yaml"]
    assert "http://gateway:8000/live#failure=$${__value.raw}" in text
    assert "http://traces/$${__value.raw}" in text
    assert "$$$" not in text


def test_grafana_is_told_how_often_prometheus_scrapes() -> None:
    """Its rate interval is four times that; ours is what our own Prometheus file says."""
    assert Addresses().scrape_s == RenderOptions().scrape_s
    assert files.datasource(Addresses(scrape_s=15))["jsonData"]["timeInterval"] == "15s"


def test_a_missing_dashboard_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A broken installation says which file and what to do, not a traceback."""
    monkeypatch.setattr(files, "GENERATED", tmp_path)
    with pytest.raises(EnvironmentFault, match=r"overview\.json is missing.*make docs"):
        committed()
