"""`make helm-check`: prove the chart without a cluster, print the figures, say what is wrong."""

import argparse
import json
import sys
import time
from pathlib import Path

from tocsin.core.errors import TocsinError
from tocsin.helm.gate.check import MUTANTS, check
from tocsin.helm.gate.render import CHART
from tocsin.helm.gate.table import print_table, report

REPORT = Path("store/helm/check.json")


def main(words: list[str] | None = None) -> int:
    """Exit code: 0 all holds, 1 something does not, 3 the gate could not be run."""
    parser = argparse.ArgumentParser(prog="python -m tocsin.helm.gate", description=__doc__)
    parser.add_argument("--mutants", type=int, default=MUTANTS, help="seeded faults; 0: none")
    parser.add_argument("--chart", type=Path, default=CHART, help="folder of the chart")
    parser.add_argument("--report", type=Path, default=REPORT, help="where the figures go")
    asked = parser.parse_args(words)
    begun_s = time.monotonic()
    try:
        proofs = check(asked.chart, mutants=asked.mutants)
    except TocsinError as error:
        sys.stderr.write(f"helm-check: {error}\n")
        return 3
    taken_s = time.monotonic() - begun_s
    asked.report.parent.mkdir(parents=True, exist_ok=True)
    asked.report.write_text(
        json.dumps(report(proofs, taken_s), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print_table(proofs, taken_s)
    return 0 if all(proof.holds for proof in proofs) else 1


if __name__ == "__main__":
    sys.exit(main())
