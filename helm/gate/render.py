"""Renders the chart with helm: once per question, or dozens of value sets in one call."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.helm.gate import manifest, tools
from tocsin.helm.gate.manifest import Manifest

CHART = Path(__file__).resolve().parents[1] / "tocsin"
KUBE_VERSION = "1.33.0"
# What a cluster with both operators offers beyond the built-in kinds.
API_VERSIONS = (
    "ray.io/v1/RayService",
    "ray.io/v1/RayCluster",
    "ray.io/v1/RayJob",
    "ray.io/v1/RayCronJob",
    "monitoring.coreos.com/v1/PodMonitor",
    "monitoring.coreos.com/v1/PrometheusRule",
    "monitoring.coreos.com/v1alpha1/AlertmanagerConfig",
)
TIMEOUT_S = 300

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One render: the values over the chart's own, and the release they make."""

    values: Values = field(default_factory=dict)
    release: str = "demo"
    namespace: str = "tocsin-demo"
    is_upgrade: bool = False


@dataclass(frozen=True, slots=True)
class Render:
    """What one case renders to."""

    objects: tuple[Manifest, ...]
    """In the order of the template files."""
    notes: str = ""
    """What a user is told after an install; as rendered from NOTES.txt."""


def render(
    values: Values,
    *,
    release: str = "demo",
    namespace: str = "tocsin-demo",
    kube_version: str = KUBE_VERSION,
    api_versions: Sequence[str] = API_VERSIONS,
    is_upgrade: bool = False,
    chart: Path = CHART,
) -> list[Manifest]:
    """What `helm template` makes of these values, hooks included; asked once a process.

    Args:
        values: what a user's values file would say.
        release: name of the release.
        namespace: where it would be installed.
        kube_version: version of Kubernetes to render for.
        api_versions: kinds that the cluster is said to offer beyond the built-in ones.
        is_upgrade: whether a revision of the release is there already.
        chart: folder of the chart.

    Raises:
        SpecError: helm refuses; the message is helm's, in one line.
    """
    asked = json.dumps(values, sort_keys=True)
    words = ["--namespace", namespace, *_cluster(kube_version, api_versions)]
    words += ["--is-upgrade"] if is_upgrade else []
    return list(_render(asked, release, tuple(words), chart))


def render_many(
    cases: Sequence[Case],
    *,
    kube_version: str = KUBE_VERSION,
    api_versions: Sequence[str] = API_VERSIONS,
    chart: Path = CHART,
) -> list[Render]:
    """Many renders in one call of helm, about 20 times quicker than one by one.

    The chart is copied with one template more, which renders all others once for each case. The
    documents are byte-equal to those of `render`, in another order. The values' schema is *not*
    asked, as the cases travel in a key of their own.

    Raises:
        SpecError: helm refuses; the message says which case, when one of them is refused alone too.
    """
    texts = texts_many(cases, kube_version=kube_version, api_versions=api_versions, chart=chart)
    return [_answer(files) for files in texts]


def texts_many(
    cases: Sequence[Case],
    *,
    kube_version: str = KUBE_VERSION,
    api_versions: Sequence[str] = API_VERSIONS,
    chart: Path = CHART,
) -> list[dict[str, str]]:
    """Template file → its text, for each case, unread: for comparing bytes.

    Raises:
        SpecError: helm refuses one of the cases.
    """
    if not cases:  # helm knows no template that prints nothing
        return []
    with tempfile.TemporaryDirectory(prefix="tocsin-render-") as scratch:
        copy = Path(scratch) / "chart"
        shutil.copytree(chart, copy)
        (copy / "values.schema.json").unlink(missing_ok=True)
        files = sorted(
            str(path.relative_to(copy))
            for path in (copy / "templates").rglob("*")
            if path.suffix in (".yaml", ".txt")
        )
        (copy / "templates" / "tocsin-many.yaml").write_text(_MANY)
        own = _own_values((copy / "values.yaml").read_text())
        batch = {
            "files": files,
            "cases": [
                {
                    "release": case.release,
                    "namespace": case.namespace,
                    "isUpgrade": case.is_upgrade,
                    "values": merged(own, case.values) | {"global": {}},
                }
                for case in cases
            ],
        }
        words = ["--show-only", "templates/tocsin-many.yaml"]
        words += _cluster(kube_version, api_versions)
        printed = _helm(
            ["template", "many", str(copy), "--values", "-", *words],
            json.dumps({"tocsinMany": batch}),
        )
    lines = [line for line in printed.splitlines() if line.startswith("case: ")]
    return [json.loads(line.removeprefix("case: ")) for line in lines]


def lint(values: Values, *, namespace: str = "tocsin-demo", chart: Path = CHART) -> tuple[str, ...]:
    """What `helm lint --strict` has against these values; empty when it has nothing."""
    done = _run(
        ["lint", "--strict", str(chart), "--namespace", namespace, "--values", "-"],
        json.dumps(values),
    )
    if done.returncode == 0:
        return ()
    complaints = re.findall(r"(?m)^\[(?:ERROR|WARNING)\] (.+)$", done.stdout)
    return tuple(complaints) or (_one_line(done.stderr or done.stdout),)


def merged(base: Values, over: Values) -> dict[str, Any]:
    """Two value sets as helm merges them: mappings key by key, null removes, the rest replaces."""
    result = dict(base)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


@lru_cache(maxsize=4096)
def _render(asked: str, release: str, words: tuple[str, ...], chart: Path) -> tuple[Manifest, ...]:
    printed = _helm(["template", release, str(chart), "--values", "-", *words], asked)
    found = (manifest.read(source, text) for source, text in manifest.documents(printed))
    return tuple(one for one in found if one is not None)


@lru_cache(maxsize=16)
def _own_values(text: str) -> dict[str, Any]:
    return yaml.safe_load(text) or {}


def _answer(files: dict[str, str]) -> Render:
    notes = files.pop("templates/NOTES.txt", "")
    found = (
        manifest.read(file, part)
        for file, text in files.items()
        for _, part in manifest.documents(text)
    )
    return Render(tuple(one for one in found if one is not None), notes)


def _cluster(kube_version: str, api_versions: Sequence[str]) -> list[str]:
    words = ["--kube-version", kube_version]
    for version in api_versions:
        words += ["--api-versions", version]
    return words


def _helm(words: list[str], given: str) -> str:
    done = _run(words, given)
    if done.returncode:
        raise SpecError(_one_line(done.stderr.removeprefix("Error: ")))
    return done.stdout


def _run(words: list[str], given: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [tools.helm(), *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise EnvironmentFault(
            f"helm {words[0]}: no answer in {TIMEOUT_S} s, expected one; is the machine overloaded?"
        ) from problem


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


# Each file of a chart is a named template of its own name, so it can be included with any context.
_MANY = """\
{{- $root := . }}
{{- range $case := .Values.tocsinMany.cases }}
{{- $rendered := dict }}
{{- range $file := $root.Values.tocsinMany.files }}
{{- $name := printf "%s/%s" $root.Chart.Name $file }}
{{- $context := dict
      "Values" $case.values
      "Release" (dict "Name" $case.release "Namespace" $case.namespace "Service" "Helm"
                      "IsInstall" (not $case.isUpgrade) "IsUpgrade" $case.isUpgrade
                      "Revision" 1)
      "Chart" $root.Chart "Capabilities" $root.Capabilities "Files" $root.Files
      "Subcharts" dict
      "Template" (dict "Name" $name "BasePath" (printf "%s/templates" $root.Chart.Name)) }}
{{- $_ := set $rendered $file (include $name $context) }}
{{- end }}
---
case: {{ $rendered | toJson }}
{{- end }}
"""
