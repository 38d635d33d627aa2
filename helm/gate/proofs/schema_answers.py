"""What helm itself says about hundreds of value sets, in one process.

The chart is made an aliased dependency of a chart of our own, once a value set: helm coalesces the
values of each alias and judges them by the schema before it renders anything. 400 sets take 0.1 s.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tocsin.core.errors import EnvironmentFault
from tocsin.helm.gate import tools

Values = Mapping[str, Any]

_TIMEOUT_S = 120
_HEAD = "values don't meet the specifications of the schema(s)"


def schema_answers(chart: Path, sets: Mapping[str, Values]) -> dict[str, tuple[str, ...]]:
    """Helm's objections to each value set, by its schema alone; none where it accepts it.

    Args:
        chart: folder of the chart.
        sets: name → values as a user's file would hold them.

    Raises:
        EnvironmentFault: helm fails for another reason.
    """
    if not sets:
        return {}
    with tempfile.TemporaryDirectory(prefix="tocsin-schema-") as place:
        root = Path(place)
        inner = root / "charts" / "inner"
        shutil.copytree(chart, inner, ignore=shutil.ignore_patterns("templates", "files"))
        _admit_global(inner / "values.schema.json")
        meta = yaml.safe_load((inner / "Chart.yaml").read_text(encoding="utf-8"))
        aliases = {f"x{number:04d}x": name for number, name in enumerate(sets)}
        needs = [
            {"name": meta["name"], "version": str(meta["version"]), "alias": alias}
            for alias in aliases
        ]
        umbrella = {"apiVersion": "v2", "name": "batch", "version": "0.0.0", "dependencies": needs}
        (root / "Chart.yaml").write_text(json.dumps(umbrella), encoding="utf-8")
        values = root / "sets.json"
        values.write_text(
            json.dumps({alias: sets[name] for alias, name in aliases.items()}), encoding="utf-8"
        )
        done = subprocess.run(
            [tools.helm(), "template", "demo", str(root), "--values", str(values)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    if done.returncode == 0:
        return {name: () for name in sets}
    if _HEAD not in done.stderr:
        raise EnvironmentFault(
            f"helm template: failed with {done.stderr.strip()[:400]!r}, expected its schema's "
            "objections; run helm lint on the chart"
        )
    return _by_set(done.stderr, aliases)


def _by_set(printed: str, aliases: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {name: [] for name in aliases.values()}
    current: list[str] = []
    for line in printed.splitlines():
        if line.removesuffix(":") in aliases:
            current = found[aliases[line.removesuffix(":")]]
        elif line.lstrip().startswith("- at "):
            # several within one object stand below a line for the object
            current.append(line.lstrip().removeprefix("- "))
        elif line.strip() and current:
            current[-1] += f" {line.strip()}"
    return {name: tuple(lines) for name, lines in found.items()}


def _admit_global(schema_file: Path) -> None:
    """A dependency is always given `global`, whatever its schema says of it."""
    schema = json.loads(schema_file.read_text(encoding="utf-8"))
    if "global" not in schema.get("properties", {}):
        schema.setdefault("properties", {})["global"] = {"type": "object"}
        schema_file.write_text(json.dumps(schema), encoding="utf-8")
