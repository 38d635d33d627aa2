"""Which pods a run sees, and that only a pod that may be struck is ever deleted."""

import pytest

from tests.ray_jobs.kube.fake_api import RELEASE, FakeApi
from tocsin.core.errors import ChaosForbidden, EnvironmentFault
from tocsin.ray_jobs.kube.api import KubeConflict, KubeUnreachable
from tocsin.ray_jobs.kube.pods import KubePods, not_a_target

TARGET = "tocsin.dev/chaos-target=true"


def test_only_workers_of_the_release_are_seen(pods: KubePods) -> None:
    """Another release of the namespace and the head are none of them."""
    found = pods.all()
    assert [pod.name for pod in found] == ["worker-a", "worker-b"]
    assert found[0].uid == "uid-worker-a"
    assert found[0].node == "node-of-worker-a"
    assert found[0].ready
    assert not found[0].terminating
    assert found[0].words == "uid uid-worker-a running"


def test_a_pod_is_deleted_by_uid_and_version(pods: KubePods, server: FakeApi) -> None:
    """A later pod of the name, and one whose labels changed meanwhile, are not hit."""
    [first, _] = pods.all()
    pods.delete(first, 0)
    [body] = server.deleted
    assert body["preconditions"] == {"uid": "uid-worker-a", "resourceVersion": "1"}
    assert body["gracePeriodSeconds"] == 0
    after = pods.get("worker-a")
    assert after is not None
    assert after.terminating


def test_without_a_time_the_pods_own_holds(pods: KubePods, server: FakeApi) -> None:
    """None leaves it to the pod's specification."""
    pods.delete(pods.all()[0], None)
    assert "gracePeriodSeconds" not in server.deleted[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tocsin.dev/chaos-target", "false"),
        ("app.kubernetes.io/instance", "other"),
        ("app.kubernetes.io/component", "head"),
    ],
)
def test_a_pod_that_lost_a_label_is_not_deleted(
    pods: KubePods, server: FakeApi, key: str, value: str
) -> None:
    """It carried the label when it was aimed at: what counts is the moment of the deletion."""
    [first, _] = pods.all()
    server.pods["worker-a"]["metadata"]["labels"][key] = value
    with pytest.raises(ChaosForbidden, match=f"pod worker-a: label {key} is '{value}', expected"):
        pods.delete(first, None)
    assert not server.deleted


def test_a_pod_that_was_replaced_is_not_deleted(pods: KubePods, server: FakeApi) -> None:
    """The new one of the same name has done nothing."""
    [first, _] = pods.all()
    server.pods["worker-a"]["metadata"]["uid"] = "another"
    with pytest.raises(EnvironmentFault, match="expected uid uid-worker-a"):
        pods.delete(first, None)
    del server.pods["worker-a"]
    with pytest.raises(EnvironmentFault, match="found none"):
        pods.delete(first, None)


def test_a_status_that_was_written_meanwhile_is_looked_at_again(
    pods: KubePods, server: FakeApi
) -> None:
    """Twice a new version, then it goes; three times is told."""
    busy = (409, {"message": "modified"})
    server.fail("DELETE", "/api/v1", busy, busy)
    pods.delete(pods.all()[0], None)
    assert len(server.deleted) == 1
    server.fail("DELETE", "/api/v1", busy, busy, busy)
    with pytest.raises(KubeConflict):
        pods.delete(pods.all()[1], None)


@pytest.mark.parametrize("body", [{}, {"items": "none"}, {"items": [{"metadata": {}}]}])
def test_an_answer_that_is_no_list_of_pods_is_no_empty_list(
    pods: KubePods, server: FakeApi, body: object
) -> None:
    """No data is never fine."""
    server.fail("GET", "/api/v1/namespaces/demo/pods", (200, body))
    with pytest.raises(KubeUnreachable, match="proxy"):
        pods.all()


def test_every_label_of_a_target_counts(pods: KubePods) -> None:
    """Those of the release, and the one by which its owner allows chaos."""
    [first, _] = pods.all()
    assert not not_a_target(first, RELEASE, TARGET)
    assert "instance" in not_a_target(first, "other", TARGET)
    assert "worker.chaosTarget" in not_a_target(first, RELEASE, "tocsin.dev/chaos-target=yes")
