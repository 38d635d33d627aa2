"""The check at scale says what the properties say that look at one request after another."""

import importlib
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.chaos.histories import clean_case, clean_record
from tests.chaos.scale.histories import cases, recorded
from tocsin.chaos.case import Case
from tocsin.chaos.contract import Property
from tocsin.chaos.scale.check import ScaleReport, check_folder
from tocsin.chaos.scale.tally import PROPERTIES
from tocsin.chaos.sins import SINS
from tocsin.chaos.store import write_case
from tocsin.core.history import Outcome

UNITS: dict[str, Property] = {
    name: importlib.import_module(f"tocsin.chaos.properties.{name}").judge for name in PROPERTIES
}
_slow = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def agree(case: Case, report: ScaleReport) -> None:
    """Same conclusion, same number of cases, same requests; a repeated id has one of two names."""
    for name in PROPERTIES:
        one, tally = UNITS[name].judge(case), report.tally[name]
        assert (tally.conclusion, tally.checked) == (str(one.conclusion), one.checked), name
        assert tally.violations == len(one.violations), name
        mine = sorted(request for request, _ in tally.first if not request.startswith("request #"))
        theirs = sorted(violation.request_id for violation in one.violations)
        if tally.violations == len(mine):
            assert mine == theirs, name


@_slow
@given(case=cases(), share=st.sampled_from([0.0, 0.5, 1.0]))
def test_a_recorded_history_is_judged_as_by_the_properties(case: Case, share: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        agree(case, check_folder(recorded(Path(folder), case, share=share)))


@_slow
@given(case=cases())
def test_an_old_run_is_judged_as_by_the_properties(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_case(Path(folder), case, {})
        agree(case, check_folder(Path(folder)))


@pytest.mark.parametrize(
    "sin", [name for name in SINS if any(name in UNITS[one].sins for one in PROPERTIES)]
)
def test_a_sin_is_flagged_by_the_same_properties(sin: str, tmp_path: Path) -> None:
    cancelled = replace(clean_record(5, 10**12), outcome=Outcome.CANCELLED, terminals=0)
    clean = clean_case()
    clean = replace(clean, records=(*clean.records[:5], cancelled, *clean.records[6:]))
    case = SINS[sin].commit(clean)
    report = check_folder(recorded(tmp_path, case, chunk_rows=40))
    agree(case, report)
    flagged = {name for name, tally in report.tally.items() if tally.violations}
    assert flagged == {name for name in PROPERTIES if sin in UNITS[name].sins}
