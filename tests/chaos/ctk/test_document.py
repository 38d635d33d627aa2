"""The document: everything of the experiment is in it, in the places that the Toolkit reads."""

from typing import Any

from tests.chaos.experiments import small
from tocsin.chaos.contract import properties
from tocsin.chaos.ctk.document import toolkit_document
from tocsin.chaos.plan import make_plan
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import load_experiment, parse_experiment

PROBES = [
    {"name": "answered", "metric": "ok_ratio", "op": ">=", "value": 0.95},
    {"name": "first token", "metric": "ttft_ms_p99", "op": "<", "value": 2000},
]


def _document(spec: Experiment) -> dict[str, Any]:
    return toolkit_document(spec, "somewhere:system", "mine.yaml")


def test_every_occurrence_has_an_action_in_the_order_of_the_plan() -> None:
    """After the workload, which is in the background, and before the closing probes."""
    spec = load_experiment("first-light")
    method = _document(spec)["method"]
    names = [one.id for one in make_plan(spec).occurrences]
    assert method[0]["provider"]["func"] == "workload"
    assert method[0]["background"] is True
    actions = method[1 : 1 + len(names)]
    assert [one["provider"]["arguments"]["occurrence"] for one in actions] == names
    assert {one["type"] for one in method[1 + len(names) :]} == {"probe"}


def test_the_checks_are_those_of_the_experiment_or_all() -> None:
    """An experiment that names none is judged by every property, here as elsewhere."""
    some = parse_experiment(small(checks=[{"id": "golden.tokens"}]))
    for spec, wanted in ((some, {"golden.tokens"}), (load_experiment("smoke"), set(properties()))):
        probes = [one for one in _document(spec)["method"] if one["type"] == "probe"]
        assert {one["provider"]["arguments"]["property_id"] for one in probes} == wanted


def test_the_hypothesis_holds_verdict_baseline_and_every_probe() -> None:
    """A strict comparison stays strict: the limit is checked by our own function."""
    spec = parse_experiment(small(hypothesis="all\n  is well", steady_state={"probes": PROBES}))
    hypothesis = _document(spec)["steady-state-hypothesis"]
    assert hypothesis["title"] == "all is well"
    verdict, baseline, *probes = hypothesis["probes"]
    assert verdict["provider"]["func"] == "verdict"
    assert baseline["tolerance"] == spec.steady_state.warmup
    assert [one["name"] for one in probes] == ["answered", "first token"]
    assert probes[1]["tolerance"]["provider"]["arguments"] == {"op": "<", "limit": 2000.0}


def test_the_whole_experiment_comes_back_out_of_the_document() -> None:
    """Safety, system and workload travel with it: same spec, same plan."""
    spec = load_experiment("first-light", seed=9)
    extension = _document(spec)["extensions"][0]
    again = parse_experiment(extension["experiment"])
    assert again == spec
    assert extension["plan_digest"] == make_plan(again).digest
    assert extension["source"] == "mine.yaml"


def test_an_experiment_without_a_hypothesis_still_has_title_and_description() -> None:
    """The Toolkit refuses a document without them."""
    document = _document(parse_experiment(small()))
    assert document["description"]
    assert document["steady-state-hypothesis"]["title"]
