"""Writes the pages of docs/ that come from declarations; `make docs` calls it."""

import ast
import sys
from pathlib import Path

from tocsin.chaos.faults_page import faults_page
from tocsin.checker.contracts_page import contracts_page
from tocsin.dashboards.dashboards_page import dashboards_page
from tocsin.dashboards.grafana.backend import generated
from tocsin.dashboards.runbook_index import runbook_index
from tocsin.helm.generate import generated as chart_files
from tocsin.ray_jobs.metrics_page import metrics_page

ROOT = Path(__file__).parents[1]
PACKAGES = ("tocsin", "checker", "chaos", "dashboards", "ray_jobs", "bench", "helm")
# One unit a file: these are described in the generated pages, a line here would only repeat it.
LISTED_ELSEWHERE = {
    "checker/checks": "the checks, one a file: [contracts.md](contracts.md)",
    "chaos/faults": "the faults, one a file: [faults.md](faults.md#faults)",
    "dashboards/alerts": "the alerts, one a file: [runbooks](runbooks/README.md)",
    "chaos/properties": "the properties, one a file: [faults.md](faults.md#properties)",
    "dashboards/panels": "the dashboards, one a file: [dashboards.md](dashboards.md)",
}
GRAFANA = Path("dashboards", "generated", "grafana")
BEGIN, END = "<!-- files: begin -->", "<!-- files: end -->"


def file_list(root: Path = ROOT) -> str:
    """One line a module: its path and the first sentence of its docstring."""
    lines: list[str] = []
    for package in PACKAGES:
        lines += ["", f"**{package}/**: {_first_sentence(root / package / '__init__.py')}", ""]
        rows = [f"| `{folder}/` | {text} |" for folder, text in _folders(package)]
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            listed = path.name != "__init__.py" and not _described_elsewhere(name)
            if listed and not _behind_a_link(path, root):
                rows.append(f"| `{name}` | {_first_sentence(path)} |")
        if rows:
            lines += ["| file | holds |", "|---|---|", *rows]
    return "\n".join([*lines, ""]).lstrip("\n")


def architecture_page(text: str, root: Path = ROOT) -> str:
    """The architecture page with its file list renewed; the rest is written by hand."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{file_list(root)}\n{END}{after}"


def pages(root: Path = ROOT) -> dict[Path, str]:
    """Path → text that it must hold."""
    architecture, boards = root / "docs" / "architecture.md", root / "docs" / "dashboards.md"
    return {
        architecture: architecture_page(architecture.read_text(encoding="utf-8"), root),
        root / "docs" / "contracts.md": contracts_page(),
        root / "docs" / "faults.md": faults_page(),
        root / "docs" / "metrics.md": metrics_page(),
        root / "docs" / "runbooks" / "README.md": runbook_index(),
        boards: dashboards_page(boards.read_text(encoding="utf-8")),
        **{root / GRAFANA / path.name: text for path, text in generated().items()},
        **chart_files(root),
    }


def _folders(package: str) -> list[tuple[str, str]]:
    return [item for item in LISTED_ELSEWHERE.items() if item[0].startswith(f"{package}/")]


def _described_elsewhere(name: str) -> bool:
    return any(name.startswith(f"{folder}/") for folder in LISTED_ELSEWHERE)


def _behind_a_link(path: Path, root: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents if root in parent.parents)


def _first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].replace("|", "\\|")


if __name__ == "__main__":
    for page, content in pages().items():
        if page.read_text(encoding="utf-8") != content if page.exists() else True:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(content, encoding="utf-8")
            sys.stdout.write(f"written: {page.relative_to(ROOT)}\n")
