"""What is said after an install: where it listens, what to do next, what could be struck."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helm import test_chaos_guards as guards
from tests.helm.ray_values import CLUSTER, nested
from tocsin.helm.gate import tools
from tocsin.helm.gate.render import CHART, Case, render_many

Values = Mapping[str, Any]
CHAOS: Values = {"chaos": {"enabled": True}}
MONITORED: Values = {"monitoring": {"podMonitor": {"enabled": True}}}
# Helm prints notes only of a real install; as a complaint they come out of any render.
PROBE = '{{ fail (include "tocsin.notes" .) }}\n'


def notes(values: Values) -> str:
    """As `helm install` prints them, without a cluster."""
    (rendered,) = render_many([Case(values)])
    return rendered.notes


def test_they_name_every_endpoint_and_the_commands_that_come_next() -> None:
    """To be copied and pasted: with the release's own names."""
    said = notes({})
    for line in (
        "http://demo-tocsin-serve-svc.tocsin-demo:8000/v1/chat/completions",
        "http://demo-tocsin-serve-svc.tocsin-demo:8000/health/checker_status",
        "http://demo-tocsin-head-svc.tocsin-demo:8265",
        "helm test demo --namespace tocsin-demo --logs",
        "kubectl --namespace tocsin-demo port-forward service/demo-tocsin-serve-svc 8000:8000",
        "get rayservice,pods --selector app.kubernetes.io/instance=demo",
    ):
        assert line in said
    assert "get raycluster,rayjob,pods" in notes(CLUSTER)


def test_the_blast_radius_is_a_count() -> None:
    """How many pods could be struck, whatever is armed."""
    groups = {"workerGroups": {"checked": {"chaosTarget": True}, "zoned": {"replicas": 3}}}
    assert "0 of 2 worker pods carry tocsin.dev/chaos-target" in notes({})
    assert "2 of 5 worker pods carry tocsin.dev/chaos-target" in notes(groups)


@pytest.mark.parametrize(
    ("values", "remedy", "said"),
    [
        ({}, {"token": {"name": "t"}}, "POST /health/checker_status is closed"),
        (
            {},
            nested("image.repository", "registry.example/tocsin"),
            "image.repository is the default",
        ),
        ({}, nested("networkPolicy.serve.namespaces", ["apps"]), "Every namespace may call"),
        ({}, nested("networkPolicy.enabled", False), "KubeRay is let in from kuberay-operator:"),
        (nested("ray.suspend", True), {}, "no Ray pod runs"),
        (CLUSTER, {}, "A head that starts anew forgets"),
    ],
    ids=["token", "image", "callers", "operator", "suspended", "cluster"],
)
def test_what_is_left_to_do_is_said_until_it_is_done(
    values: Values, remedy: Values, said: str
) -> None:
    """A warning that never goes away is not read."""
    assert said in notes(values)
    assert said not in notes(remedy)


def _on_a_cluster(values: Values, folder: Path, labels: dict[str, str]) -> str:
    """What helm complains of when it renders this and asks an API server: the notes at least."""
    chart = folder / "tocsin"
    shutil.copytree(CHART, chart)
    # The last template that helm executes, so that every rule has been asked before.
    (chart / "templates" / "a.yaml").write_text(PROBE)
    given = folder / "values.json"
    given.write_text(json.dumps(values))
    with guards.cluster(labels, folder) as where:
        words = [tools.helm(), "template", "demo", chart, "--namespace", "tocsin-demo"]
        words += ["--values", given, "--dry-run=server", *where]
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, timeout=60, check=False
        )
    return done.stderr


@pytest.mark.parametrize(
    ("labels", "values", "said"),
    [
        ({}, CHAOS, True),
        ({"tocsin.dev/chaos": "allowed"}, CHAOS, False),
        ({}, {}, False),
    ],
    ids=["missing", "there", "off"],
)
def test_a_missing_namespace_label_is_said_on_a_cluster(
    labels: dict[str, str], values: Values, said: bool, tmp_path: Path
) -> None:
    """Otherwise the first run would be the first to say it."""
    found = _on_a_cluster(values, tmp_path, labels)
    assert "Endpoints inside the cluster" in found
    assert ("does not carry tocsin.dev/chaos=allowed" in found) is said


def test_kinds_that_the_cluster_does_not_know_are_named(tmp_path: Path) -> None:
    """As the install would fail on them; without a cluster nothing is claimed."""
    assert "The cluster does not know PodMonitor" in _on_a_cluster(MONITORED, tmp_path, {})
    assert "The cluster does not know" not in notes(MONITORED)


def test_a_cluster_without_kuberay_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helm's own message names a resource mapping, not the operator that is missing."""
    bare = {
        path: body for path, body in guards.answers({}).items() if not path.startswith("/apis/ray")
    }
    bare["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": []}
    monkeypatch.setattr(guards, "answers", lambda labels: bare)
    found = _on_a_cluster({}, tmp_path, {})
    assert "Endpoints inside the cluster" not in found
    assert "cluster: it does not know RayService (ray.io/v1), expected the operator" in found
