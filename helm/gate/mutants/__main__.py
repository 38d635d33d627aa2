"""`make helm-mutants`: hundreds of seeded faults, judged by the gate; survivors are named."""

import json
import sys
from pathlib import Path

from tocsin.helm.gate.mutants.score import TARGET, score
from tocsin.helm.gate.render import CHART

COUNT = 340
REPORT = Path("store/helm/mutants.json")


def main(count: int = COUNT) -> int:
    """Write the report, print the survivors; 1 when too many got through."""
    found = score(CHART, count)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(found.report(), indent=1) + "\n", encoding="utf-8")
    for one in found.survivors:
        sys.stdout.write(f"survived: {one.mutant.name}\n")
    sys.stdout.write(
        f"{found.caught} of {len(found.outcomes) - found.equivalent} faults caught "
        f"({found.share:.1%}), {found.equivalent} equivalent; written: {REPORT}\n"
    )
    return 0 if found.share >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
