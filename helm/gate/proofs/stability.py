"""What must not change does not: Ray pods under a new chart, bytes under the same values."""

import copy
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tocsin.core.errors import EnvironmentFault
from tocsin.helm.gate import tools
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.proofs.leaves import leaves
from tocsin.helm.gate.proofs.many import outcomes
from tocsin.helm.gate.proofs.pods import clusters, pods
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.render import Case, Render, merged
from tocsin.helm.gate.rule import Finding, sub

RULE = "stable"
EPOCH_S = 1_700_000_000
_TIMEOUT_S = 60
# Sections whose change must reach the running pods without replacing one.
GENTLE = ("checker", "monitoring", "chaos", "networkPolicy", "disruptionBudget", "test")
# Kinds whose whole spec stays: a changed one makes a cluster or a run anew, or is refused.
FIXED = ("RayService", "RayCluster", "RayJob", "Job")
# Every form in which a run starts, with what it asks for; two of them run in the head's own pod.
_RUNS: Mapping[str, Mapping[str, Any]] = {
    "job": {"runOnce": "a"},
    "cronjob": {"schedule": "@daily"},
    "rayjob": {"runOnce": "a"},
    "raycronjob": {"schedule": "@daily", "rayCronJobGate": True},
}


def stability(chart: Path, cases: Mapping[str, Case], generated: Mapping[Path, str]) -> Proof:
    """Bump, arm, tune, render again, package twice.

    Args:
        cases: name → what a bump is tried on.
        generated: path → text that the declarations make of it.
    """
    rolled, bumped = bump(chart, cases)
    moved, tried = tuned(chart, cases)
    findings = [*rolled, *moved, *_again(chart, cases), *_packages(chart), *_stale(generated)]
    return Proof(
        "stability",
        f"{len({one.where for one in rolled})} pods rolled by a chart bump",
        {
            "bumped": bumped,
            "pods_rolled": len(rolled),
            "changes_in_place": tried,
            "changes_that_roll": len(moved),
            "generated_files": len(generated),
        },
        tuple(findings),
    )


def bump(chart: Path, cases: Mapping[str, Case]) -> tuple[list[Finding], int]:
    """Findings for each pod template that a new chart version changes, and how many there are."""
    asked = list(cases.values())
    before = outcomes(asked, chart=chart)
    with tempfile.TemporaryDirectory(prefix="tocsin-bump-") as place:
        newer = Path(place) / "chart"
        shutil.copytree(chart, newer)
        meta = newer / "Chart.yaml"
        meta.write_text(_bumped(meta.read_text(encoding="utf-8")), encoding="utf-8")
        after = outcomes(asked, chart=newer)
    findings: dict[Finding, None] = {}
    seen = 0
    for old, new in zip(before, after, strict=True):
        if isinstance(old, Render) and isinstance(new, Render):
            seen += sum(1 for _ in pods(old.objects))
            findings.update(dict.fromkeys(_changed(old.objects, new.objects)))
        elif type(old) is not type(new):
            findings[Finding(f"{RULE}.bump", "helm template", f"{new}", "the same outcome")] = None
    return list(findings), seen


def tuned(chart: Path, cases: Mapping[str, Case]) -> tuple[list[Finding], int]:
    """Findings for each gentle value that makes KubeRay replace pods, and how many were tried."""
    base = next(iter(cases.values()))
    findings, counted = _restarted(chart, base)
    tried: list[tuple[str, Case]] = []
    for leaf in leaves(chart):
        if leaf.is_section or leaf.path[0] not in GENTLE:
            continue
        value = leaf.alternative()
        switched = _on(str(leaf.path[0]))
        if value is not None:
            values = merged(merged(base.values, switched), leaf.values(value))
            tried.append((leaf.name, Case(values, base.release, base.namespace)))
    tried.append(("chaos.enabled", Case(merged(base.values, {"chaos": {"enabled": True}}))))
    found = outcomes([base, *(case for _, case in tried)], chart=chart)
    first = found[0]
    if not isinstance(first, Render):
        return [Finding(f"{RULE}.tune", "helm template", f"{first}", "a render")], 0
    before = hashes(first.objects)
    for (name, _), outcome in zip(tried, found[1:], strict=True):
        if isinstance(outcome, Render):
            counted += 1
            if hashes(outcome.objects) != before:
                findings.append(_anew(name))
    return findings, counted


def _restarted(chart: Path, base: Case) -> tuple[list[Finding], int]:
    """Chaos switched on in each form, in the topology that has them all; none moves a pod."""
    there = merged(base.values, {"topology": "cluster"})
    sets = [there]
    for kind, needs in _RUNS.items():
        sets.append(merged(there, {"chaos": {"enabled": True, "kind": kind, **needs}}))
    first, *others = outcomes([Case(v, base.release, base.namespace) for v in sets], chart=chart)
    if not isinstance(first, Render):
        return [], 0  # a chart without this topology: nothing to compare
    before = hashes(first.objects)
    findings = [
        _anew(f"chaos.kind {kind}")
        for kind, one in zip(_RUNS, others, strict=True)
        if isinstance(one, Render) and hashes(one.objects) != before
    ]
    return findings, sum(isinstance(one, Render) for one in others)


def _anew(name: str) -> Finding:
    expected = "a change in place: KubeRay compares this with the running cluster"
    return Finding(f"{RULE}.tune", f"values {name}", "a new cluster", expected)


def hashes(objects: Sequence[Manifest]) -> dict[str, str]:
    """What KubeRay compares to decide whether a cluster must be made anew, by object."""
    return {one.where: _hash(spec) for one, spec in clusters(objects)}


def _hash(spec: Mapping[str, Any]) -> str:
    """Of the spec without what the operator ignores (its GenerateHashWithoutReplicas…)."""
    muted = copy.deepcopy(dict(spec))
    muted.pop("upgradeStrategy", None)
    for group in [muted.get("headGroupSpec"), *(muted.get("workerGroupSpecs") or ())]:
        if not isinstance(group, dict):
            continue
        for key in ("replicas", "minReplicas", "maxReplicas"):
            group.pop(key, None)
        (group.get("scaleStrategy") or {}).pop("workersToDelete", None)
        inner = (group.get("template") or {}).get("spec") or {}
        for key in ("tolerations", "schedulingGates"):
            inner.pop(key, None)
    return hashlib.sha256(json.dumps(muted, sort_keys=True).encode()).hexdigest()


def _changed(old: Sequence[Manifest], new: Sequence[Manifest]) -> Iterator[Finding]:
    rule, expected = f"{RULE}.bump", "the same bytes under every version of the chart"
    after = {one.where: one for one in new}
    for one in old:
        other = after.get(one.where)
        if other is None:
            yield Finding(rule, one.where, "another name", expected)
        elif one.kind in FIXED and sub(one.body, "spec") != sub(other.body, "spec"):
            yield Finding(rule, f"{one.where} spec", "changed", expected)
    templates = {pod.where: pod.template for pod in pods(new)}
    for pod in pods(old):
        if templates.get(pod.where) != pod.template and pod.owner.kind != "Pod":
            yield Finding(rule, pod.where, "changed", expected)


def _bumped(text: str) -> str:
    lines = []
    for line in text.splitlines():
        key = line.partition(":")[0]
        lines.append(f'{key}: "99.9.9"' if key in ("version", "appVersion") else line)
    return "\n".join(lines) + "\n"


def _on(section: str) -> dict[str, Any]:
    return {"chaos": {"chaos": {"enabled": True}}}.get(section, {})


def _again(chart: Path, cases: Mapping[str, Case]) -> Iterator[Finding]:
    """Two processes of helm, one outcome."""
    asked = list(cases.values())
    for case, one, two in zip(
        asked, outcomes(asked, chart=chart), outcomes(asked, chart=chart), strict=True
    ):
        texts = [
            [item.text for item in found.objects] if isinstance(found, Render) else [str(found)]
            for found in (one, two)
        ]
        if texts[0] != texts[1]:
            where = f"values {dict(case.values)}"
            yield Finding(f"{RULE}.render", where, "other bytes the second time", "the same")


def _packages(chart: Path) -> Iterator[Finding]:
    """The package is the same file for whoever builds it at whatever time."""
    digests = {package_digest(chart) for _ in range(2)}
    if len(digests) != 1:
        yield Finding(f"{RULE}.package", "helm package", f"{len(digests)} digests", "one")


def package_digest(chart: Path, epoch_s: int = EPOCH_S) -> str:
    """SHA-256 of the package that helm makes with this SOURCE_DATE_EPOCH.

    Raises:
        EnvironmentFault: helm does not package it.
    """
    with tempfile.TemporaryDirectory(prefix="tocsin-package-") as place:
        done = subprocess.run(
            [tools.helm(), "package", str(chart), "--destination", place],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)},
        )
        made = sorted(Path(place).glob("*.tgz"))
        if done.returncode or not made:
            raise EnvironmentFault(f"helm package: {done.stderr.strip()[:300]}, expected a package")
        return hashlib.sha256(made[0].read_bytes()).hexdigest()


def _stale(generated: Mapping[Path, str]) -> Iterator[Finding]:
    for path, text in generated.items():
        found = path.read_text(encoding="utf-8") if path.is_file() else ""
        if found != text:
            expected = "what the declarations make; run python -m tocsin.helm.generate"
            yield Finding(f"{RULE}.generated", path.name, "another text", expected)
