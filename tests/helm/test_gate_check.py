"""`make helm-check`: the figures are printed beside those of other charts, and decide the exit."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from tocsin.helm.gate import __main__ as command
from tocsin.helm.gate.check import check
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.render import CHART
from tocsin.helm.gate.rule import Finding
from tocsin.helm.gate.table import ROWS, print_table, report

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns of its own future

GOOD = Proof("wrong_values", "0 of 4702", {"wrong": 4702})
APART = Proof("refusals", "1 of 2 guards tripped", {}, remarks=("not tripped here: 'a'",))
BAD = Proof("objects", "90% of 10", {}, (Finding("restricted.x", "Pod/a", "root", "a user"),))


def test_a_finding_is_printed_in_full_and_the_figures_stand_beside_others() -> None:
    """On a narrow terminal too a finding is one line to copy."""
    out = io.StringIO()
    print_table([GOOD, APART, BAD], 41.4, Console(file=out, width=100))
    text = out.getvalue()
    assert "0 of 4702" in text
    assert "20 of 22" in text
    assert "objects: Pod/a: root, expected a user [restricted.x]" in text
    assert "41 s" in text
    assert "refusals: not tripped here: 'a'" in text


def test_every_proof_has_its_row() -> None:
    """A proof that nobody prints is one that nobody reads."""
    names = {name for _, _, name in ROWS}
    assert {"objects", "contracts", "blast_radius", "lint", "wrong_values", "refusals"} <= names
    assert {"routes", "stability", "presence", "live_values", "quoting", "mutants"} <= names
    assert {"switches", "template_reads"} <= names


@pytest.mark.parametrize(("proofs", "code"), [([GOOD], 0), ([GOOD, BAD], 1)])
def test_the_exit_code_says_whether_all_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proofs: list[Proof], code: int
) -> None:
    """And check.json says what did not."""
    monkeypatch.setattr(command, "check", lambda chart, mutants: proofs)
    file = tmp_path / "helm" / "check.json"
    assert command.main(["--report", str(file)]) == code
    written = json.loads(file.read_text())
    assert written["holds"] is (code == 0)
    assert written["proofs"]["wrong_values"]["figures"] == {"wrong": 4702}
    assert written == json.loads(json.dumps(report(proofs, written["seconds"])))


@pytest.mark.slow
def test_the_chart_holds() -> None:
    """Every proof but the mutants', on the chart as it is."""
    proofs = check(CHART, mutants=0)
    assert [str(finding) for proof in proofs for finding in proof.findings] == []
