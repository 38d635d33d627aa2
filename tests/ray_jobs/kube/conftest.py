"""A fake API server for each test, and the clients that speak to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray_jobs.kube.fake_api import NAMESPACE, RELEASE, FakeApi, fake_api, pod
from tocsin.ray_jobs.kube.api import Account, KubeApi
from tocsin.ray_jobs.kube.pods import KubePods


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "serviceaccount"


@pytest.fixture
def server(folder: Path) -> Iterator[FakeApi]:
    """It holds two workers of the release, one of another release and the head."""
    with fake_api(folder) as api:
        api.add(
            pod("worker-a"),
            pod("worker-b"),
            pod("other-c", labels={"app.kubernetes.io/instance": "other"}),
            pod("head-d", labels={"app.kubernetes.io/component": "head"}),
        )
        yield api


@pytest.fixture
def client(server: FakeApi, folder: Path) -> Iterator[KubeApi]:
    one = KubeApi(Account(server.url, folder), timeout_s=0.5)
    yield one
    one.close()


@pytest.fixture
def pods(client: KubeApi) -> KubePods:
    return KubePods(client, NAMESPACE, RELEASE, "tocsin.dev/chaos-target=true")
