"""The real kubectl takes our words: its requests are those that an API server would see."""

from pathlib import Path
from typing import Any

import pytest

from tests.ray_jobs.remote.fake_api import FakeApi
from tests.ray_jobs.remote.kube import RUNNING, archive_lines, cron_job, ended, waiting
from tocsin.core.clock import ManualClock
from tocsin.core.errors import EnvironmentFault
from tocsin.helm.gate.tools import kubectl
from tocsin.ray_jobs.remote.kube_run import run_on_kubernetes
from tocsin.ray_jobs.remote.order import make_order

NAMESPACE = {"metadata": {"name": "prod", "labels": {"tocsin.dev/chaos": "allowed"}}}
SHOWN = ["starting", *(f"line {n}" for n in range(30)), "tick", "tick"]


class Caller:
    """A person with this kubectl and this kubeconfig."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "kubectl").symlink_to(kubectl())
        monkeypatch.setenv("PATH", f"{folder}/bin")
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
        self.folder = folder
        self.said: list[str] = []
        self.shown: list[str] = []

    def run(self, api: FakeApi, **options: Any) -> int:
        (self.folder / "config").write_text(api.kubeconfig)
        chosen = {
            "context": "demo",
            "namespace": "prod",
            "release": "demo",
            "start_timeout_s": 3.0,
            **options,
        }
        return run_on_kubernetes(
            make_order("smoke", seed=None, profile=None),
            self.folder / "store",
            say=self.said.append,
            show=self.shown.append,
            clock=ManualClock(),
            **chosen,
        )


@pytest.fixture
def caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caller:
    return Caller(tmp_path, monkeypatch)


def release(**more: Any) -> dict[str, list[dict[str, Any]]]:
    return {"cronjobs": [cron_job()], "namespaces": [NAMESPACE], **more}


def stamped(lines: list[str]) -> list[str]:
    return [
        f"2026-11-29T10:00:{number // 10:02d}.{number % 10}00000007Z {line}"
        for number, line in enumerate(lines)
    ]


def test_a_run_through_the_real_kubectl_comes_home_through_cut_streams(
    caller: Caller, tmp_path: Path
) -> None:
    """It is kubectl that reads the half chunk, the rest of a second, and the end."""
    log = stamped([*SHOWN, *archive_lines(tmp_path)])
    api = FakeApi(release(), [RUNNING] * 6 + [ended(0)], log, cuts=[4, 0, 9])
    with api:
        assert caller.run(api) == 0
    assert caller.shown == SHOWN
    assert (tmp_path / "store" / "latest" / "report.html").is_file()
    (job,) = api.created
    assert job["kind"] == "Job"
    assert job["metadata"]["ownerReferences"][0]["name"] == "demo-tocsin-chaos"
    asked = "\n".join(api.asked)
    labels = "app.kubernetes.io%2Finstance%3Ddemo"
    assert "cronjobs?labelSelector=app.kubernetes.io%2Fname%3Dtocsin%2C" in asked
    assert labels in asked
    assert f"pods?labelSelector=job-name%3D{job['metadata']['name']}" in asked
    assert "sinceTime=2026-11-29T09%3A59%3A57Z" in asked


def test_a_job_that_does_not_start_is_deleted_with_its_pod(caller: Caller) -> None:
    """In the background: the pod has its grace, and nobody waits for it."""
    api = FakeApi(release(events=[]), [waiting("ErrImagePull", "no such image")])
    with api, pytest.raises(EnvironmentFault, match="ErrImagePull: no such image"):
        caller.run(api)
    ((name, options),) = api.deleted
    assert name == api.created[0]["metadata"]["name"]
    assert options["propagationPolicy"] == "Background"
    assert "gracePeriodSeconds" not in options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": "other"}, r"there is no context 'other'.*get-contexts"),
        ({"release": "other"}, r"no release other|takes no chaos runs"),
    ],
)
def test_what_the_real_kubectl_refuses_is_understood(
    caller: Caller, options: dict[str, str], words: str
) -> None:
    """Its own words, not those that the fake one says."""
    objects = release() if "context" in options else {"namespaces": [NAMESPACE], "configmaps": []}
    with FakeApi(objects) as api, pytest.raises(EnvironmentFault, match=words):
        caller.run(api, **options)


def test_an_api_server_that_is_not_there_is_one_line(caller: Caller) -> None:
    """At once."""
    api = FakeApi(release())
    with api:
        pass
    with pytest.raises(EnvironmentFault, match="refused") as caught:
        caller.run(api)
    assert "\n" not in str(caught.value)
