"""Faults whose detectors are no checks of a step are seen in simulation as in earnest."""

from pathlib import Path

from tests.ray_jobs.sim.little import experiment, on_requests
from tocsin.chaos.attribution import attribute
from tocsin.core.history import Outcome
from tocsin.ray_jobs.sim.simulate import Simulator


def test_a_leak_a_jump_and_a_written_control_token_are_seen_and_harm_nobody(
    tiny: Simulator, prompts: Path
) -> None:
    """By the audit, the two clocks and the front door; every honest answer is golden."""
    case = tiny.conduct(
        experiment(
            prompts,
            {"id": "leak", "kind": "kv.leak_refcount", "when": {"at": [3]}},
            {"id": "jump", "kind": "clock.jump", "when": {"at": [4]}},
            on_requests("turn", "prompt.injection_of_template", 2),
        )
    )
    found = attribute(case)
    seen = {
        name.partition("@")[0]: {one.detector for one in found.by_occurrence[name]}
        for name in found.by_occurrence
    }
    assert "service.page_audit" in seen["leak"]
    assert "service.clock" in seen["jump"]
    assert seen["turn"] == {"service.template"}
    assert found.false_alarms == ()
    assert all(one.healed for one in case.occurrences)
    for record in case.records:
        if not record.malformed:
            assert record.outcome is Outcome.OK
            assert record.tokens == case.golden[record.prompt_id].tokens
