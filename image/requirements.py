"""Prints what some extras of the project need, one requirement a line, for a layer of its own."""

import sys
import tomllib
from pathlib import Path


def requirements(project: Path, extras: list[str]) -> list[str]:
    """The project's own dependencies and those of the extras.

    Raises:
        SystemExit: an extra is not declared.
    """
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    optional = declared["optional-dependencies"]
    unknown = sorted(set(extras) - set(optional))
    if unknown:
        sys.exit(f"image: found no extra {', '.join(unknown)}, declared are {sorted(optional)}")
    return [*declared["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path("pyproject.toml"), sys.argv[1:])) + "\n")
