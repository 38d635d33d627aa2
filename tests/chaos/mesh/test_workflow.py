"""What is exported for Chaos Mesh: resources of its schema, and one line for all the rest."""

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.chaos.experiments import small
from tests.chaos.mesh.kinds import Embedded, Workflow
from tocsin.chaos.contract import faults
from tocsin.chaos.mesh.equivalents import _MADE, Equivalent, equivalent
from tocsin.chaos.mesh.workflow import Cluster, mesh_document, workflow_text
from tocsin.chaos.spec_file import load_experiment, parse_experiment
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope

HERE = Cluster("llm", "tocsin", "http://tocsin.llm.svc:8000/")
AIM: dict[str, Any] = {
    "mode": "one",
    "selector": {"namespaces": ["llm"], "labelSelectors": {"app": "worker"}},
}
KILLS = {
    "id": "kill",
    "kind": "actor.kill",
    "when": {"clock": "request", "at": [10, 30]},
    "expect": {"within": "2s", "recover_within": "7s"},
}


def _exported(**changes: Any) -> tuple[Workflow, tuple[str, ...]]:
    document, remarks = mesh_document(parse_experiment(small(**changes)), HERE)
    return Workflow.model_validate(document), remarks


@pytest.mark.parametrize("kind", sorted(_MADE))
@pytest.mark.parametrize("params", [{}, {"grace_s": 5, "latency_ms": 40.0, "jitter_ms": 10.0}])
def test_every_equivalent_has_the_fields_of_its_kind(kind: str, params: dict[str, Any]) -> None:
    """An unknown field, or one that belongs to another action, would be refused."""
    made = equivalent(kind, params, Scope.PROCESS)
    assert isinstance(made, Equivalent)
    found = Embedded.model_validate({made.field: {**AIM, **made.spec}})
    assert found.held() == [made.kind]


def test_every_declared_fault_has_an_equivalent_or_one_line_that_says_why_not() -> None:
    """Nothing is left out silently; what is new is covered by its scope."""
    for fault in faults().values():
        found = equivalent(fault.id, fault.params, fault.scope)
        if isinstance(found, str):
            assert found
            assert "\n" not in found


def test_a_workflow_keeps_the_order_and_lets_service_recover_between_faults() -> None:
    """One template a tick, each followed by the time to recover."""
    found, remarks = _exported(faults=[*small()["faults"], KILLS])
    names = next(one.children for one in found.spec.templates if one.name == "faults")
    assert names == ["kill-0", "kill-0-recovers", "kill-1", "kill-1-recovers"]
    deadlines = {one.name: one.deadline for one in found.spec.templates}
    assert (deadlines["kill-0"], deadlines["kill-0-recovers"]) == ("2s", "7s")
    assert [line.partition(":")[0] for line in remarks] == [
        "bad (batch.malformed)",
        "weights (weight.bitflip)",
        "kill (actor.kill)",
    ]


def test_a_series_becomes_a_schedule() -> None:
    """As often as it is planned, each given its time."""
    series = {**KILLS, "when": {"clock": "request", "every": 10, "count": 3}}
    found, _ = _exported(faults=[series])
    (template,) = [one for one in found.spec.templates if one.templateType == "Schedule"]
    assert template.schedule is not None
    assert (template.schedule.schedule, template.deadline) == ("@every 9s", "27s")


def test_the_workflow_ends_when_health_is_lost() -> None:
    """Only where the application is named; without it there is nothing to ask."""
    found, _ = _exported(faults=[KILLS])
    (check,) = [one for one in found.spec.templates if one.statusCheck]
    assert check.abortWithStatusCheck
    assert check.statusCheck is not None
    assert check.statusCheck.http.url == "http://tocsin.llm.svc:8000/health"
    document, _ = mesh_document(parse_experiment(small(faults=[KILLS])), Cluster("llm"))
    assert document["spec"]["entry"] == "faults"
    Workflow.model_validate(document)


def test_pods_are_chosen_as_our_own_policy_would() -> None:
    """By component, release and the label that says that a pod may be struck."""
    found, _ = _exported(faults=[KILLS])
    chaos = next(one.podChaos for one in found.spec.templates if one.podChaos)
    assert chaos is not None
    assert chaos.selector.labelSelectors == {
        "app.kubernetes.io/component": "worker",
        "app.kubernetes.io/instance": "tocsin",
        "tocsin.dev/chaos-target": "true",
    }


def test_an_experiment_without_any_equivalent_is_refused() -> None:
    """An empty workflow would look like a passed one."""
    with pytest.raises(SpecError, match="none of its 2 faults"):
        mesh_document(parse_experiment(small()), HERE)


def test_the_text_is_yaml_under_comments() -> None:
    """kubectl reads it as it is."""
    document, remarks = mesh_document(load_experiment("first-light"), HERE)
    text = workflow_text("first-light", document, remarks)
    assert yaml.safe_load(text) == document
    assert all(f"# {line}" in text.splitlines() for line in remarks)


@settings(max_examples=30, deadline=None)
@given(
    at=st.lists(st.integers(0, 500), min_size=1, max_size=4, unique=True),
    recover=st.integers(1, 90_000),
    each=st.booleans(),
)
def test_whatever_the_times_the_workflow_is_well_formed(
    at: list[int], recover: int, each: bool
) -> None:
    """Ticks, durations and targets of any size make a workflow of the schema."""
    fault = {
        **KILLS,
        "target": {"replica": "each" if each else "one"},
        "when": {"clock": "request", "at": at},
        "expect": {"within": "1ms", "recover_within": f"{recover}ms"},
    }
    found, _ = _exported(faults=[fault])
    assert sum(one.podChaos is not None for one in found.spec.templates) == len(at)


def test_the_schema_of_these_tests_can_refuse() -> None:
    """A duration beside a deadline, a field of another action, a child that is not there."""
    document, _ = mesh_document(parse_experiment(small(faults=[KILLS])), HERE)
    Workflow.model_validate(document)
    template = next(one for one in document["spec"]["templates"] if "podChaos" in one)
    for broken in ({"duration": "2s"}, {"errno": 28}, {"action": "pod-explode"}):
        before = dict(template["podChaos"])
        template["podChaos"].update(broken)
        with pytest.raises(ValidationError):
            Workflow.model_validate(document)
        template["podChaos"] = before
    document["spec"]["templates"][-1]["name"] = "other"
    with pytest.raises(ValidationError):
        Workflow.model_validate(document)
