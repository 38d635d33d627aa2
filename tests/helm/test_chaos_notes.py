"""What a person reads after an install: what is armed, against how much, and how it is stopped."""

import re

import pytest
import yaml

from tests.helm.chaos_values import (
    ARMED,
    CLUSTER,
    EMPTY_EXPERIMENT,
    ON,
    Values,
    experiment,
    named,
    one,
    over,
    with_chaos,
)
from tocsin.helm.gate.render import CHART, Case, render, render_many

F = "demo-tocsin"
ALLOWED = yaml.safe_load((CHART / "values.yaml").read_text())["chaos"]["allowedFaults"]
DELETES = over(ARMED, experiment(EMPTY_EXPERIMENT), {"chaos": {"allowedFaults": ["pod.delete"]}})
RAY_JOB = over(CLUSTER, with_chaos(kind="rayjob", runOnce="monday"))
SAID: dict[str, tuple[Values, tuple[str, ...]]] = {
    "off": ({}, ("Chaos: OFF.", f"ConfigMap {F}-chaos forbids every run")),
    "dry": (
        ON,
        (
            "Chaos: DRY RUN.",
            "experiment   smoke: attn.backend_fail, batch.malformed",
            f"faults of {len(ALLOWED)} kinds, at most 2 at the same time, 600 s a run",
            "0 worker pods carry the target label",
            "are never deleted",
            f"CronJob {F}-chaos is suspended",
        ),
    ),
    "armed": (
        over(
            ARMED,
            {
                "worker": {"replicas": 3, "maxReplicas": 3},
                "workerGroups": {"spare": {"replicas": 2}},
                "serve": {"replicas": 4},
                "chaos": {"schedule": "0 3 * * *", "timeZone": "Europe/Berlin", "maxTargets": 2},
            },
        ),
        (
            "Chaos: ARMED.",
            "at most 2 of 4 replicas at the same time; 5 worker pods carry the target label "
            "(groups checked, spare)",
            "0 3 * * * (Europe/Berlin)",
        ),
    ),
    "pods": (DELETES, ("faults of 1 kind,", "may be deleted, one by one")),
    "once": (with_chaos(kind="job", runOnce="monday"), ("once, now (run monday)",)),
    "in the head": (RAY_JOB, ("once, now, in the head's pod (run monday)", "rayjobs,jobs")),
}


@pytest.fixture(scope="module")
def notes() -> dict[str, str]:
    """What each value set tells."""
    told = render_many([Case(values) for values, _ in SAID.values()])
    return {name: render.notes for name, render in zip(SAID, told, strict=True)}


@pytest.mark.parametrize("case", SAID)
def test_the_notes_say_what_is_armed_and_how_much_it_may_break(
    case: str, notes: dict[str, str]
) -> None:
    """One of off, dry and armed; the blast radius as a count; when it happens."""
    for words in SAID[case][1]:
        assert words in notes[case]
    heads = re.findall(r"^Chaos: ([A-Z ]+)\.", notes[case], re.MULTILINE)
    assert len(heads) == 1


def test_the_commands_in_the_notes_name_what_was_rendered(notes: dict[str, str]) -> None:
    """A command to copy that names another object would be found out in an emergency."""
    cron = one(ON, "CronJob")
    assert f"--from=cronjob/{cron['metadata']['name']} " in notes["dry"]
    (selector,) = re.findall(r"delete jobs --selector (\S+)", notes["dry"])
    labels = dict(pair.split("=") for pair in selector.split(","))
    for body in (
        cron["spec"]["jobTemplate"],
        one(with_chaos(kind="job", runOnce="monday"), "Job"),
    ):
        assert labels.items() <= body["metadata"]["labels"].items()
    (run,) = [
        body
        for body in named(render(RAY_JOB), "RayJob")
        if labels.items() <= body["metadata"]["labels"].items()
    ]
    assert run["metadata"]["name"].startswith(f"{F}-c")
    assert "kubectl label namespace tocsin-demo tocsin.dev/chaos=allowed" in notes["armed"]


@pytest.mark.parametrize("case", [case for case in SAID if case != "off"])
def test_an_upgrade_in_the_notes_keeps_the_releases_values(
    case: str, notes: dict[str, str]
) -> None:
    """And takes a newer chart's defaults for the rest, which `--reuse-values` would not."""
    upgrades = re.findall(r"helm upgrade \S+ CHART.*", notes[case])
    assert upgrades
    assert all(" --reset-then-reuse-values " in line for line in upgrades)
