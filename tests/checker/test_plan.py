"""The plan proposes levels that the evaluations can carry, and writes what a replica accepts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tocsin.checker.counters import Rate
from tocsin.checker.journal import Journal
from tocsin.checker.plan import (
    Proposal,
    failures_in_journal,
    joined,
    propose,
    rates_in_metrics,
    rates_in_status,
    settings_for,
    table_of,
    wilson,
)
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.switchboard import Level
from tocsin.core.errors import SpecError
from tocsin.core.terms import Operator, Profile

SCRAPE = """
# HELP tocsin_checks_total Check evaluations by result
# TYPE tocsin_checks_total counter
tocsin_checks_total{model="m",operator="linear",layer="numerical",result="ok"} 9000
tocsin_checks_total{model="m",operator="linear",layer="numerical",result="alarm"} 600
tocsin_checks_total{replica="2",model="n",operator="linear",layer="memory",result="ok"} 400.0
tocsin_checks_total{model="m",operator="rope",layer="numerical",result="ok"} 1e5 1700000000
tocsin_checks_total{model="m",operator="rope",layer="numerical",result="error"} 7
tocsin_check_failures_total{operator="rope"} 5
"""


def of(proposals: tuple[Proposal, ...], operator: Operator) -> Proposal:
    return next(one for one in proposals if one.operator is operator)


@pytest.mark.parametrize(
    ("evaluations", "alarms", "level"),
    [
        (10_000, 501, Level.ALL),
        (10_000, 500, Level.GUARD),
        (100_000, 50, Level.NUMERICAL),
        (100_000, 100, Level.GUARD),
        (10_000, 0, Level.NUMERICAL),
        (1_000, 0, Level.GUARD),
        (0, 0, None),
    ],
    ids=["above 5 %", "5 % itself", "0.05 %", "0.1 % itself", "none", "too few to say", "no data"],
)
def test_levels_follow_the_rates(evaluations: int, alarms: int, level: Level | None) -> None:
    """Proves both marks, their near misses, and that few evaluations are no low rate."""
    proposal = of(propose({"swiglu": Rate(evaluations, alarms)}), Operator.SWIGLU)
    assert proposal.level is level
    assert proposal.low <= proposal.rate.share <= proposal.high


def test_the_interval_is_wilsons() -> None:
    """Proves the interval against published values, and at both ends."""
    assert wilson(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert wilson(5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-5)
    assert wilson(10, 10)[1] == pytest.approx(1.0)


def test_a_scrape_is_summed_over_replicas_models_and_layers() -> None:
    """Proves the reading of the text format: labels in any order, exponents, time stamps."""
    assert rates_in_metrics(SCRAPE, "scrape") == {
        "linear": Rate(10_000, 600),
        "rope": Rate(100_000, 0),
    }
    with pytest.raises(SpecError, match="holds no tocsin_checks_total"):
        rates_in_metrics("up 1\n", "scrape")


def test_a_status_is_summed_over_replicas() -> None:
    """Proves the other source: every `counters.checks` in the answer, wherever it stands."""
    checks = {"linear/numerical/ok": 90, "linear/numerical/alarm": 10}
    status: dict[str, Any] = {
        "replicas": [{"counters": {"checks": checks}}, {"gate": {"counters": {"checks": checks}}}]
    }
    assert rates_in_status(json.loads(json.dumps(status)), "status") == {"linear": Rate(200, 20)}
    with pytest.raises(SpecError, match="counters of checks"):
        rates_in_status({"replicas": []}, "status")


def test_findings_of_the_journal_count_as_alarms(tmp_path: Path) -> None:
    """Proves that alarms of a process that is gone are not forgotten with its counters."""
    journal = Journal(tmp_path / "failures.jsonl")
    for number in range(3):
        journal.write(
            {"failure_id": f"F{number}", "findings": [{"operator": "rope"}, {"operator": "linear"}]}
        )
    journal.write({"failure_id": "G", "findings": [{"check": "x"}, "text"]})
    journal.close()
    failures = failures_in_journal(tmp_path)
    assert failures == {"rope": 3, "linear": 3}
    rates = joined({"rope": Rate(20, 1), "linear": Rate(50, 7), "swiglu": Rate(9, 0)}, failures)
    assert rates == {"rope": Rate(20, 3), "linear": Rate(50, 7), "swiglu": Rate(9, 0)}


def test_the_settings_are_what_a_replica_accepts() -> None:
    """Proves that the file says guard with a sample, levels only where there is data."""
    settings = settings_for(propose(rates_in_metrics(SCRAPE, "scrape")), 0.01)
    again = CheckerSettings.model_validate(json.loads(settings.model_dump_json()))
    assert again.profile is Profile.GUARD
    assert again.sample == 0.01
    assert again.levels == {Operator.LINEAR: Level.ALL, Operator.ROPE: Level.NUMERICAL}


def test_the_table_names_every_operator_and_its_reason() -> None:
    """Proves what a person reads: rates, interval, level, and that no data is said to be none."""
    table = table_of(propose(rates_in_metrics(SCRAPE, "scrape")), {"warp": 1}).splitlines()
    linear = next(line for line in table if line.startswith("linear"))
    assert "6.0000%" in linear
    assert " all " in linear
    swiglu = next(line for line in table if line.startswith("swiglu"))
    assert swiglu.endswith("no evaluation: sample it first")
    assert "warp" in table[-1]
    assert len(table) == len(Operator) + 2
