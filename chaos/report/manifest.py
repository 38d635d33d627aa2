"""What the run wrote about itself before its verdict: how to run it again, versions, host."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tocsin.chaos.case import Case
from tocsin.chaos.store import MANIFEST


def read_manifest(run_dir: Path) -> Mapping[str, Any]:
    """The manifest of a run; empty where there is none that can be read."""
    try:
        document = json.loads((run_dir / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def replay_command(manifest: Mapping[str, Any], case: Case) -> str:
    """The command that runs the same plan again: as it was given, or by name and seed."""
    given = manifest.get("replay")
    if isinstance(given, str) and given:
        return given
    return f"tocsin chaos run {shlex.quote(case.spec.name)} --seed {case.spec.seed}"


def near(path: Path) -> str:
    """The path as a person in the working directory would write it."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else path)
