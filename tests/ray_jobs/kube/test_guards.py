"""What must hold on Kubernetes before a run begins and while it lasts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.chaos.experiments import small
from tests.ray_jobs.kube.fake_api import LEASE, NAMESPACE, RELEASE, FakeApi
from tocsin.chaos.policy import POLICY_ENV, ChaosPolicy
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import parse_experiment
from tocsin.core.errors import ChaosForbidden, EnvironmentFault
from tocsin.ray_jobs.kube.guards import LabelsStand, PolicyStands, held_ground
from tocsin.ray_jobs.kube.pods import KubePods

URL = "http://bell:8000"
POLICY = ChaosPolicy(
    namespace=NAMESPACE, release=RELEASE, enabled=True, dry_run=False, lease_name=LEASE
)
UNWELL = (500, {"message": "etcd is gone"})


@pytest.fixture
def spec() -> Experiment:
    return parse_experiment(small())


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The policy as it is mounted."""
    path = tmp_path / "policy.yaml"
    _write(path, POLICY)
    monkeypatch.setenv(POLICY_ENV, str(path))
    return path


@pytest.fixture
def in_pod(
    server: FakeApi, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeApi]:
    """This process is a pod of the release, as far as its environment says."""
    monkeypatch.setenv("TOCSIN_KUBE_API", server.url)
    monkeypatch.setenv("TOCSIN_KUBE_ACCOUNT", str(folder))
    monkeypatch.setenv("POD_NAME", "bell-chaos-1")
    server.lease()
    return server


def _write(path: Path, policy: ChaosPolicy) -> None:
    path.write_text(yaml.safe_dump(policy.model_dump(mode="json")))


def test_a_run_holds_its_ground_and_gives_the_lease_back(in_pod: FakeApi, spec: Experiment) -> None:
    """All guards agree, the lease carries the pod's name, and at the end nobody's."""
    with held_ground(POLICY, spec, URL, print) as ground:
        assert [guard.why_not() for guard in ground.guards] == ["", "", ""]
        assert in_pod.leases[LEASE]["spec"]["holderIdentity"].startswith("bell-chaos-1/")
        assert [pod.name for pod in ground.pods.all()] == ["worker-a", "worker-b"]
    assert "holderIdentity" not in in_pod.leases[LEASE]["spec"]


def test_nothing_else_is_asked_than_what_the_role_allows(in_pod: FakeApi, spec: Experiment) -> None:
    """The namespace by name, its pods, one lease by name: no list, no watch, no secret."""
    with held_ground(POLICY, spec, URL, print):
        pass
    assert set(in_pod.asked) == {
        ("GET", "/api/v1/namespaces/demo"),
        ("GET", "/api/v1/namespaces/demo/pods"),
        ("GET", f"/apis/coordination.k8s.io/v1/namespaces/demo/leases/{LEASE}"),
        ("PUT", f"/apis/coordination.k8s.io/v1/namespaces/demo/leases/{LEASE}"),
    }


def test_a_missing_label_refuses_before_the_lease_is_touched(
    in_pod: FakeApi, spec: Experiment
) -> None:
    """And says the command that would allow it."""
    in_pod.labels.clear()
    words = "kubectl label namespace demo tocsin.dev/chaos=allowed"
    with pytest.raises(ChaosForbidden, match=words), held_ground(POLICY, spec, URL, print):
        pass
    assert not [method for method, _ in in_pod.asked if method != "GET"]


def test_outside_kubernetes_a_policy_lets_nothing_be_injected(
    file: Path, spec: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its labels cannot be read there: that is no permission."""
    for name in ("TOCSIN_KUBE_API", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with (
        pytest.raises(EnvironmentFault, match="expected a pod of the release"),
        held_ground(POLICY, spec, URL, print),
    ):
        pass


def test_a_label_that_goes_is_seen(pods: KubePods, server: FakeApi) -> None:
    """Of the namespace, and of a worker pod; each with where, found and expected."""
    guard = LabelsStand(pods, POLICY)
    assert not guard.why_not()
    labels = server.pods["worker-b"]["metadata"]["labels"]
    del labels["tocsin.dev/chaos-target"]
    assert "pod worker-b: label tocsin.dev/chaos-target is None" in guard.why_not()
    labels["tocsin.dev/chaos-target"] = "true"
    assert not guard.why_not()
    server.labels["tocsin.dev/chaos"] = "no"
    assert "namespace demo: label tocsin.dev/chaos is 'no', expected 'allowed'" in guard.why_not()


def test_no_answer_twice_in_a_row_is_a_reason(pods: KubePods, server: FakeApi) -> None:
    """One miss is a restart of the API server; an answer in between begins anew."""
    guard = LabelsStand(pods, POLICY)
    assert not guard.why_not()
    server.fail("GET", "/api/v1/namespaces/demo", UNWELL)
    assert not guard.why_not()
    assert not guard.why_not()
    server.fail("GET", "/api/v1/namespaces/demo", UNWELL, UNWELL)
    assert not guard.why_not()
    assert "etcd is gone" in guard.why_not()


def test_the_first_look_must_not_fail(pods: KubePods, server: FakeApi) -> None:
    """Nothing is armed on what nobody has seen."""
    server.fail("GET", "/api/v1/namespaces/demo", UNWELL)
    assert "etcd is gone" in LabelsStand(pods, POLICY).why_not()


def test_a_right_that_was_taken_away_counts_at_once(pods: KubePods, server: FakeApi) -> None:
    """Somebody has unbound the role: no second look is needed."""
    guard = LabelsStand(pods, POLICY)
    assert not guard.why_not()
    server.fail("GET", "/api/v1/namespaces/demo", (403, {"message": "forbidden"}))
    assert "403" in guard.why_not()


def test_the_only_pod_may_be_away_during_a_run_and_not_before(
    pods: KubePods, server: FakeApi
) -> None:
    """The run may have deleted it itself; before it, no pod means a wrong release."""
    away = {name: server.pods.pop(name) for name in ("worker-a", "worker-b")}
    guard = LabelsStand(pods, POLICY)
    assert "no worker pod of release bell" in guard.why_not()
    guard = LabelsStand(pods, POLICY)
    server.pods.update(away)
    assert not guard.why_not()
    server.pods.clear()
    assert not guard.why_not()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"enabled": False}, "enabled is false"),
        ({"dry_run": True}, "dry_run is true by now"),
        ({"allowed_faults": ("actor.kill",)}, "allowed are actor.kill"),
    ],
)
def test_a_policy_that_is_edited_ends_the_run(
    file: Path, spec: Experiment, changes: dict[str, object], words: str
) -> None:
    """A mounted ConfigMap follows: `helm upgrade --set chaos.enabled=false` stops what runs."""
    guard = PolicyStands(file, spec, URL)
    assert not guard.why_not()
    _write(file, POLICY.model_copy(update=changes))
    assert words in guard.why_not()
    file.unlink()
    assert "cannot be read" in guard.why_not()
