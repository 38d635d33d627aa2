"""What Grafana reads at its start: the committed dashboards, and YAML that says where they are.

Nothing here needs Grafana's SDK or any client: `tocsin dashboards render` works in a bare install.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tocsin.core.errors import EnvironmentFault
from tocsin.dashboards.panels import DASHBOARDS

GENERATED = Path(__file__).parents[1] / "generated" / "grafana"
TAG, TAG_CHAOS = "tocsin", "tocsin-chaos"
FOLDER_UID, FOLDER_TITLE = "tocsin", "Tocsin"
SOURCE_UID, SOURCE_NAME = "tocsin-prometheus", "Tocsin Prometheus"
DOCS_URL = "http://127.0.0.1:8000/docs"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the things are that the dashboards lead to.

    Attributes:
        prometheus: as Grafana's server reaches it.
        docs: of this project's docs folder, for the runbook links.
        live: of the gateway, as a browser reaches it; empty: no links from failure ids.
        traces: of a trace in some viewer, with `{id}` where its id belongs; empty: no links.
        dashboards: folder in which Grafana's server finds the JSON files.
        scrape_s: how often Prometheus scrapes; Grafana makes the rate interval from it, and a
            shorter one than it is leaves gaps.
    """

    prometheus: str = "http://127.0.0.1:9090"
    docs: str = DOCS_URL
    live: str = ""
    traces: str = ""
    dashboards: str = "/var/lib/grafana/dashboards/tocsin"
    scrape_s: int = 5


def committed(docs: str = DOCS_URL) -> tuple[dict[str, Any], ...]:
    """The six dashboards as generated, in order, with the address of the documents put in.

    Raises:
        EnvironmentFault: a file is missing from this installation.
    """
    return tuple(_with_docs(_read(board.id), docs) for board in DASHBOARDS)


def datasource(addresses: Addresses) -> dict[str, Any]:
    """The data source, as Grafana's API and its provisioning files both name it."""
    destinations: list[dict[str, str]] = []
    if addresses.traces:
        url = addresses.traces.replace("{id}", "${__value.raw}")
        destinations.append({"name": "trace_id", "url": url, "urlDisplayLabel": "Trace · 链路"})
    if addresses.live:
        url = f"{addresses.live.rstrip('/')}/live#failure=${{__value.raw}}"
        label = "Failure · 故障"
        destinations.append({"name": "failure_id", "url": url, "urlDisplayLabel": label})
    return {
        "name": SOURCE_NAME,
        "uid": SOURCE_UID,
        "type": "prometheus",
        "access": "proxy",
        "url": addresses.prometheus,
        "jsonData": {
            "httpMethod": "POST",
            "timeInterval": f"{addresses.scrape_s}s",
            "exemplarTraceIdDestinations": destinations,
        },
    }


def provisioned(addresses: Addresses) -> dict[str, str]:
    """Path → text of every file that Grafana needs: its provisioning folder and the dashboards."""
    provider = {
        "name": FOLDER_TITLE,
        "folder": FOLDER_TITLE,
        "folderUid": FOLDER_UID,
        "type": "file",
        "disableDeletion": False,
        "allowUiUpdates": False,
        "options": {"path": addresses.dashboards, "foldersFromFilesStructure": False},
    }
    source = {**datasource(addresses), "isDefault": False, "editable": False}
    files = {
        "provisioning/datasources/tocsin.yaml": _yaml({"datasources": [source]}),
        "provisioning/dashboards/tocsin.yaml": _yaml({"providers": [provider]}),
    }
    for board, model in zip(DASHBOARDS, committed(addresses.docs), strict=True):
        files[f"dashboards/{board.id}.json"] = as_text(model)
    return files


def write(folder: Path, addresses: Addresses) -> tuple[Path, ...]:
    """Write all of it below `folder`; the paths, in order."""
    written = []
    for name, text in provisioned(addresses).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return tuple(written)


def as_text(model: Mapping[str, Any]) -> str:
    """A dashboard's JSON, in the form in which it is committed."""
    return json.dumps(model, ensure_ascii=False, indent=1) + "\n"


def _read(name: str) -> dict[str, Any]:
    path = GENERATED / f"{name}.json"
    try:
        model: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EnvironmentFault(
            f"dashboards: {path} is missing, expected the generated dashboard; run `make docs` in "
            "a checkout, or install the package anew"
        ) from error
    return model


def _with_docs(model: dict[str, Any], docs: str) -> dict[str, Any]:
    for variable in model["templating"]["list"]:
        if variable["name"] == "docs":
            variable["query"] = docs.rstrip("/")
    return model


def _yaml(content: dict[str, Any]) -> str:
    """YAML in which `$` is doubled: Grafana puts environment variables into these files."""
    text = yaml.safe_dump({"apiVersion": 1, **content}, allow_unicode=True, sort_keys=False)
    return text.replace("$", "$$")
