"""What the relay finds on its node: record, call, and a reproduction that is really there."""

import json
from pathlib import Path

import pytest

from tests.checker.reproduction.recorded import failing, record
from tests.dashboards.relay.stubs import alert
from tocsin.dashboards.relay.letter import Notes
from tocsin.dashboards.relay.notification import AlertBody
from tocsin.dashboards.relay.report import write_report
from tocsin.ray_jobs.alert_evidence import NodeEvidence

CHECK = "numerical.rms_range"
_BASE_32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def failure_id(node: Path) -> str:
    """One failure of rms_norm, as a replica of this node recorded it."""
    made = record(node, failing(CHECK), CHECK)
    journal = node / "journal" / "failures-replica-1.jsonl"
    line = json.loads(journal.read_text())
    line |= {"row": "failure", "operator": "rms_norm", "environment": {"threads": 1}}
    journal.write_text(json.dumps(line) + "\n")
    return made


def evidence(node: Path, tmp_path: Path) -> NodeEvidence:
    return NodeEvidence(node, tmp_path / "reproductions")


@pytest.mark.parametrize("by", ["id", "latest:rms_norm", "latest"])
def test_a_failure_is_found_by_its_id_and_as_its_operator_s_latest(
    node: Path, tmp_path: Path, failure_id: str, by: str
) -> None:
    """With the description of the call, where the tensors lie, and what ran there."""
    found = evidence(node, tmp_path).find(failure_id if by == "id" else by)
    assert found is not None
    assert found.failure_id == failure_id
    assert found.record["business_impact"] == "a token is wrong"
    assert found.call["check"] == CHECK
    assert found.snapshot is not None
    assert (found.snapshot / "call.safetensors").exists()
    assert found.environment["threads"] == 1
    assert found.environment["replica"] == "replica-1"
    assert "torch" in found.environment


def test_what_was_never_recorded_is_nothing(node: Path, tmp_path: Path, failure_id: str) -> None:
    """An alert about another node's failure goes out without evidence."""
    known = evidence(node, tmp_path)
    for name in ("01JD0000000000000000000000", "latest:rope"):
        assert known.find(name) is None
        assert known.reproduce(name) is None
    assert NodeEvidence(tmp_path / "empty", tmp_path).find("latest") is None


def test_what_failed_long_before_an_alert_is_not_its_failure(
    node: Path, tmp_path: Path, failure_id: str
) -> None:
    """A page must not carry the reproduction of another incident."""
    known = evidence(node, tmp_path)
    failed_s = (
        sum(_BASE_32.index(one) << 45 - 5 * at for at, one in enumerate(failure_id[:10])) / 1e3
    )
    found = known.find("latest:rms_norm", failed_s - 600.0)
    assert found is not None
    assert found.failure_id == failure_id
    later_s = failed_s + 60.0
    assert known.find("latest:rms_norm", later_s) is None
    assert known.reproduce("latest:rms_norm", later_s) is None


def test_a_report_of_a_real_record_names_its_tensors(
    node: Path, tmp_path: Path, failure_id: str
) -> None:
    """From the snapshot's own description."""
    found = evidence(node, tmp_path).find(failure_id)
    assert found is not None
    known = AlertBody.model_validate(alert(priority="P1", operator="rms_norm"))
    page = write_report(tmp_path / "reports", known, found, Notes(command="run me"), 0.0)
    text = page.read_text()
    for name, tensor in found.call["tensors"].items():
        assert f"| {name} | {tensor['shape']} |" in text
    assert "run me" in text
    assert json.loads((page.parent / "call.json").read_text())["check"] == CHECK


def test_a_failure_without_a_snapshot_is_stood_for_by_one_that_has_one(
    node: Path, tmp_path: Path, failure_id: str
) -> None:
    """Of the same operator; of another one nothing stands for it."""
    journal = node / "journal" / "failures-replica-1.jsonl"
    line = json.loads(journal.read_text())
    others = {"01M" + "0" * 23: "rms_norm", "01N" + "0" * 23: "rope"}
    for other, operator in others.items():
        later = {**line, "failure_id": other, "operator": operator, "snapshot": ""}
        journal.write_text(journal.read_text() + json.dumps(later) + "\n")
    known = evidence(node, tmp_path)
    assert [known._recorded(other) for other in others] == [failure_id, None]
    assert known._recorded("latest:rms_norm") == failure_id


@pytest.mark.slow
def test_a_reproduction_is_written_once_and_found_the_second_time(
    node: Path, tmp_path: Path, failure_id: str
) -> None:
    """By the command that people are given, in a process of its own."""
    known = evidence(node, tmp_path)
    first = known.reproduce("latest:rms_norm")
    assert first is not None
    assert first.command == f"tocsin reproduce {failure_id}"
    assert first.path.read_text()
    written_ns = first.path.stat().st_mtime_ns
    assert known.reproduce(failure_id) == first
    assert first.path.stat().st_mtime_ns == written_ns
