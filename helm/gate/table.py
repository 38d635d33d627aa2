"""The gate's figures beside those of the charts that people use today."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tocsin.helm.gate.proofs.proof import Proof

# Measured on ray-cluster, kuberay-operator, production-stack, llm-d, chaos-mesh and litmus.
ROWS: tuple[tuple[str, str, str], ...] = (
    # what is counted, those charts, name of the proof
    ("wrong values accepted silently", "20 of 22", "wrong_values"),
    ("pods that pass restricted Pod Security", "0 of 11 in model and chaos charts", "objects"),
    ("cluster-wide rights (resource × verb)", "70 to 203", "blast_radius"),
    ("alert routes proven under OnNamespace", "none", "routes"),
    ("helm test, NetworkPolicy, digests", "none together", "presence"),
    ("pods rolled by a chart version bump", "ray-cluster's template changes", "stability"),
    ("command lines parsed by their programs", "not shown", "contracts"),
    ("values that change a rendered byte", "dead ones reported", "live_values"),
    ("things there if and only if a value says so", "not shown", "switches"),
    ("reads of values that nobody declares", "", "template_reads"),
    ("words like 123 that arrive as text", "not shown", "quoting"),
    ("guards of the templates that refuse", "not shown", "refusals"),
    ("helm lint --strict", "", "lint"),
    ("seeded template faults caught", "not shown", "mutants"),
)


def print_table(proofs: Sequence[Proof], seconds: float, console: Console | None = None) -> None:
    """Print the figures, then what was found."""
    console = console or Console()
    known = {proof.name: proof for proof in proofs}
    table = Table(title="make helm-check", title_justify="left", box=None)
    for name in ("", "charts in use", "this chart", "", "s"):
        table.add_column(name)
    for what, theirs, name in ROWS:
        if name in known:
            proof = known[name]
            mark = "holds" if proof.holds else f"{len(proof.findings)} findings"
            table.add_row(what, theirs, proof.says, mark, f"{proof.seconds:.0f}")
    console.print(table)
    for proof in proofs:
        for remark in proof.remarks:
            console.print(f"{proof.name}: {remark}", markup=False, highlight=False, soft_wrap=True)
    for proof in proofs:
        for finding in proof.findings:
            console.print(f"{proof.name}: {finding}", markup=False, highlight=False, soft_wrap=True)
    renders = known["objects"].figures if "objects" in known else {}
    console.print(
        f"{renders.get('renders', 0)} renders, {renders.get('objects', 0)} distinct objects, "
        f"{seconds:.0f} s",
        highlight=False,
    )


def report(proofs: Sequence[Proof], seconds: float) -> Mapping[str, Any]:
    """The same for check.json."""
    return {
        "holds": all(proof.holds for proof in proofs),
        "seconds": round(seconds, 1),
        "proofs": {
            proof.name: {
                "says": proof.says,
                "holds": proof.holds,
                "seconds": round(proof.seconds, 1),
                "figures": dict(proof.figures),
                "remarks": list(proof.remarks),
                "findings": [str(one) for one in proof.findings],
            }
            for proof in proofs
        },
    }
