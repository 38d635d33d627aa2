"""Writes what the chart takes from declarations: values.yaml, its schema, its page, its files/."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tocsin.helm.values import chaos, monitoring, serving
from tocsin.helm.values.page import values_page, values_yaml
from tocsin.helm.values.schema import values_schema

ROOT = Path(__file__).resolve().parents[1]
CHART = Path("helm", "tocsin")
FILES = CHART / "files"
# Sections that add files to the chart; each returns path below files/ → text.
SECTIONS: tuple[Callable[[], Mapping[str, str]], ...] = (
    chaos.files,
    monitoring.files,
    serving.files,
)


def generated(root: Path = ROOT) -> dict[Path, str]:
    """Path → text that it must hold."""
    texts = {
        root / CHART / "values.yaml": values_yaml(),
        root / CHART / "values.schema.json": json.dumps(values_schema(), indent=1) + "\n",
        root / "docs" / "values.md": values_page(),
    }
    for section in SECTIONS:
        for name, text in section().items():
            path = root / FILES / name
            if path in texts:
                raise ValueError(f"files/{name} is declared twice; rename one of them")
            texts[path] = text
    return texts


def stale(root: Path = ROOT) -> list[Path]:
    """Files below files/ that no section declares any more."""
    declared = generated(root)
    folder = root / FILES
    return sorted(path for path in folder.rglob("*") if path.is_file() and path not in declared)


def main(root: Path = ROOT) -> None:
    """Write what differs, and take away what nobody declares."""
    for path, text in generated(root).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"written: {path.relative_to(root)}\n")
    for path in stale(root):
        path.unlink()
        sys.stdout.write(f"removed: {path.relative_to(root)}\n")


if __name__ == "__main__":
    main()
