"""A dry run tells plan, targets and what would forbid it, whatever else is said; it asks only."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.ray_jobs.fake_service import FakeService, fake_service
from tests.ray_jobs.kube.fake_api import NAMESPACE, RELEASE, FakeApi, fake_api, pod
from tocsin.chaos.policy import POLICY_ENV
from tocsin.ray_jobs.cli import app


@pytest.fixture
def service() -> Iterator[FakeService]:
    with fake_service() as one:
        yield one


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """This process is a pod."""
    with fake_api(tmp_path / "account") as api:
        api.add(pod("worker-a"), pod("worker-b"))
        monkeypatch.setenv("TOCSIN_KUBE_API", api.url)
        monkeypatch.setenv("TOCSIN_KUBE_ACCOUNT", str(tmp_path / "account"))
        yield api


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the environment names; `_write` fills it."""
    path = tmp_path / "policy.yaml"
    monkeypatch.setenv(POLICY_ENV, str(path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return path


def _write(path: Path, **changes: Any) -> None:
    path.write_text(yaml.safe_dump({"namespace": NAMESPACE, "release": RELEASE, **changes}))


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, ["chaos", "run", "smoke", *words])


def test_a_dry_policy_wins_over_everything(
    service: FakeService, server: FakeApi, policy: Path
) -> None:
    """Disabled, another URL, no label: all of it is told, nothing done, exit 0."""
    server.labels.clear()
    _write(policy, serve_url="http://other:1", allowed_faults=["actor.kill"])
    result = _run("--on", service.url)
    assert result.exit_code == 0, result.output
    text = result.output
    assert "dry run: nothing is injected" in text
    assert "poisoned-page@0" in text
    assert "pod worker-a, node node-of-worker-a" in text
    assert (
        "blast radius: 2 of 2 replicas, 2 pods, 2 nodes; at one time at most 1 faults on 1" in text
    )
    refusals = [line for line in text.splitlines() if "would be refused" in line]
    wanted = (
        "dry_run is true",
        "enabled is false",
        "http://other:1",
        "actor.kill",
        "kubectl label",
    )
    assert all(any(word in line for line in refusals) for word in wanted), text
    assert {method for method, _ in server.asked} == {"GET"}


def test_a_policy_that_would_allow_it_tells_no_refusal(
    service: FakeService, server: FakeApi, policy: Path
) -> None:
    """The nearest miss; `--dry-run` is enough to inject nothing."""
    _write(policy, enabled=True, dry_run=False, serve_url=service.url)
    result = _run("--dry-run")
    assert result.exit_code == 0, result.output
    assert "would be refused" not in result.output
    assert "poisoned-page@0" in result.output


def test_without_an_account_it_names_hosts_and_says_why(
    service: FakeService, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod of `helm test` has no token: it needs none."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("TOCSIN_KUBE_API", raising=False)
    _write(policy)
    result = _run("--on", service.url)
    assert result.exit_code == 0, result.output
    assert "pods are not shown: kubernetes: " in result.output
    assert "host worker-a" in result.output


def test_on_a_bare_cluster_it_needs_no_policy(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the application is asked."""
    monkeypatch.delenv(POLICY_ENV, raising=False)
    result = _run("--dry-run", "--on", service.url)
    assert result.exit_code == 0, result.output
    assert "blast radius: 2 of 2 replicas; at one time at most 2 faults on 2 replicas" in (
        result.output
    )


def test_an_application_that_is_not_there_is_no_dry_run(policy: Path) -> None:
    """Targets that nobody has seen are not shown as if they were: one line, exit 3."""
    _write(policy)
    result = _run("--on", "http://127.0.0.1:9")
    assert result.exit_code == 3
    assert "service: GET http://127.0.0.1:9" in result.output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"enabled": False}, "policy: enabled is false"),
        ({"enabled": True, "max_duration_s": 60}, "safety.max_duration is 240 s"),
        ({"enabled": True, "allowed_faults": ["actor.kill"]}, "allowed are actor.kill"),
        ({"enabled": True, "serve_url": "http://other:1"}, "expected http://other:1"),
        (
            {
                "enabled": True,
                "protected_namespaces": [
                    "kube-system",
                    "kube-public",
                    "kube-node-lease",
                    NAMESPACE,
                ],
            },
            "is one of protected_namespaces",
        ),
    ],
)
def test_a_live_run_that_the_policy_forbids_is_one_line_and_exit_4(
    service: FakeService, policy: Path, changes: dict[str, Any], words: str
) -> None:
    """Nothing is asked of anybody before."""
    _write(policy, dry_run=False, **changes)
    result = _run("--on", service.url)
    assert result.exit_code == 4, result.output
    [line] = [line for line in result.output.splitlines() if line.startswith("tocsin: ")]
    assert words in line


def test_a_live_run_without_the_namespaces_label_is_one_line_and_exit_4(
    service: FakeService, server: FakeApi, policy: Path, tmp_path: Path
) -> None:
    """Before Ray is joined, before a lease is taken."""
    server.labels["tocsin.dev/chaos"] = "no"
    _write(policy, enabled=True, dry_run=False, lease_name="bell-tocsin-chaos")
    result = _run("--on", service.url, "--store", str(tmp_path / "store"))
    assert result.exit_code == 4, result.output
    assert "label tocsin.dev/chaos is 'no', expected 'allowed'" in result.output
    assert {method for method, _ in server.asked} == {"GET"}


def test_a_place_with_a_policy_serves_nothing_of_its_own(policy: Path) -> None:
    """`chaos run` without an application would put its own in the place of the one served."""
    _write(policy, enabled=True, dry_run=False)
    result = _run()
    assert result.exit_code == 64
    assert "expected --on URL or serve_url" in result.output
    demo = CliRunner().invoke(app, ["chaos", "demo"])
    assert demo.exit_code == 64
    assert "here is a chaos policy" in demo.output


def test_a_wrong_policy_lets_nothing_run(policy: Path, service: FakeService) -> None:
    """Not even the plan: what it would allow is not known."""
    policy.write_text("namespace: demo\nrelease: bell\nenable: true\n")
    result = _run("--on", service.url, "--dry-run")
    assert result.exit_code == 64
    assert "did you mean 'enabled'?" in result.output


def test_a_fault_on_pods_outside_kubernetes_says_why_it_cannot_be(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 64 before anything is joined."""
    monkeypatch.delenv(POLICY_ENV, raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = tmp_path / "gone.yaml"
    path.write_text(
        "{apiVersion: chaos/v1, kind: Experiment, name: gone, seed: 1, faults: [{id: gone, "
        "kind: pod.delete, when: {clock: request, at: [2]}}], safety: {scope: cluster_destructive}}"
    )
    words = ["chaos", "run", str(path), "--on", service.url, "--store", str(tmp_path / "store")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 64, result.output
    assert "there is no pod to strike" in result.output
