"""What the tests put into the fake cluster, and read out of it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin.core.clock import ManualClock
from tocsin.ray_jobs.remote.archive import pack
from tocsin.ray_jobs.remote.frame import framed
from tocsin.ray_jobs.remote.kube_run import run_on_kubernetes
from tocsin.ray_jobs.remote.order import Order, make_order

LABELS = {
    "app.kubernetes.io/name": "tocsin",
    "app.kubernetes.io/instance": "demo",
    "app.kubernetes.io/component": "chaos",
}
RUNNING = {
    "phase": "Running",
    "containerStatuses": [
        {"name": "chaos", "state": {"running": {"startedAt": "2026-11-29T10:00:00Z"}}}
    ],
}


def ended(code: int, reason: str = "Error", **more: Any) -> dict[str, Any]:
    """A pod's status after its driver ended."""
    state = {"terminated": {"exitCode": code, "reason": reason}}
    phase = "Failed" if code else "Succeeded"
    return {"phase": phase, "containerStatuses": [{"name": "chaos", "state": state}], **more}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """A pod's status while its driver waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "chaos", "state": state}]}


def cron_job(**annotations: str) -> dict[str, Any]:
    """What the chart renders, as the API server would hand it out."""
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {
            "name": "demo-tocsin-chaos",
            "namespace": "prod",
            "uid": "0000-1111",
            "labels": LABELS,
            "annotations": {"tocsin.dev/dry-run": "false", **annotations},
        },
        "spec": {
            "schedule": "0 0 30 2 *",
            "suspend": True,
            "jobTemplate": {
                "metadata": {"labels": LABELS},
                "spec": {
                    "backoffLimit": 3,
                    "ttlSecondsAfterFinished": 3600,
                    "template": {
                        "metadata": {"labels": LABELS},
                        "spec": {
                            "serviceAccountName": "demo-tocsin-chaos",
                            "restartPolicy": "OnFailure",
                            "terminationGracePeriodSeconds": 120,
                            "containers": [
                                {"name": "mesh", "image": "proxy", "args": ["proxy"]},
                                {
                                    "name": "chaos",
                                    "image": "tocsin",
                                    "command": ["tocsin"],
                                    "args": [
                                        "chaos",
                                        "run",
                                        "first-light",
                                        "--seed=3",
                                        "--profile",
                                        "guard",
                                        "--on",
                                        "http://demo-tocsin-head-svc:8000",
                                        "--store",
                                        "/var/lib/tocsin/store",
                                    ],
                                    "env": [
                                        {"name": "TOCSIN_SPEC", "value": "old"},
                                        {
                                            "name": "TOCSIN_CHAOS_POLICY",
                                            "value": "/etc/tocsin/chaos/policy.yaml",
                                        },
                                    ],
                                },
                            ],
                        },
                    },
                },
            },
        },
    }


@dataclass
class FakeCluster:
    """The folder behind the fake kubectl."""

    folder: Path
    said: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.put("cronjobs.batch", cron_job())
        self.put(
            "namespace", {"metadata": {"name": "prod", "labels": {"tocsin.dev/chaos": "allowed"}}}
        )
        self.script()

    def script(self, **behaviour: Any) -> None:
        """How the cluster behaves from now on."""
        (self.folder / "script.json").write_text(json.dumps(behaviour))

    def put(self, kind: str, document: dict[str, Any]) -> None:
        (self.folder / kind).mkdir(exist_ok=True)
        path = self.folder / kind / f"{document['metadata']['name']}.json"
        path.write_text(json.dumps(document))

    def take_out(self, kind: str) -> None:
        for path in (self.folder / kind).glob("*.json"):
            path.unlink()

    def log(self, *lines: str) -> None:
        """What the driver has logged: one line a tenth of a second."""
        text = "".join(
            f"2026-11-29T10:00:{number // 10:02d}.{number % 10}00000007Z {line}\n"
            for number, line in enumerate(lines)
        )
        (self.folder / "pod-1.log").write_text(text)

    def run(self, order: Order | None = None, **options: Any) -> int:
        """A caller's run with a hand-turned clock."""
        chosen = {
            "context": "demo",
            "namespace": "prod",
            "release": "demo",
            "start_timeout_s": 6.0,
            "clock": ManualClock(),
            **options,
        }
        return run_on_kubernetes(
            order or make_order("smoke", seed=None, profile=None),
            self.folder / "store",
            say=self.said.append,
            show=self.shown.append,
            **chosen,
        )

    @property
    def created(self) -> dict[str, Any]:
        """The manifest that was handed in."""
        found: dict[str, Any] = json.loads((self.folder / "created.json").read_text())
        return found

    @property
    def deleted(self) -> bool:
        return (self.folder / "deleted").exists()

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls.jsonl").open()]


def run_folder(parent: Path, name: str = "smoke/20261129T100000Z-0123456789ab") -> Path:
    """A run's folder as small as one can be."""
    folder = parent / name
    (folder / "logs").mkdir(parents=True)
    for file, text in (
        ("verdict.json", '{"verdict": "pass"}'),
        ("manifest.json", "{}"),
        ("report.html", "<h1>report</h1>" * 50),
        ("logs/run.log", "ok\n"),
    ):
        (folder / file).write_text(text)
    return folder


def archive_lines(parent: Path, exit_code: int = 0) -> list[str]:
    """The framed archive of such a folder."""
    packed = pack(run_folder(parent), exit_code, 1 << 20)
    return list(framed(packed.data, packed.header))
