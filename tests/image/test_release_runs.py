"""A release runs: what the chart renders, started as rendered, from the image that was built."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.image.sandbox import Sandbox
from tests.image.toy_cluster import Pod, ToyCluster, ray_command
from tests.ray_jobs.kube.fake_api import NAMESPACE, RELEASE
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.render import render

pytestmark = [
    pytest.mark.release,
    pytest.mark.ray,
    pytest.mark.model,
    pytest.mark.timeout(900),
]
FULL_NAME = f"{RELEASE}-tocsin"
HOST = "10.97.0.1"
_READY_S = 150
HEAD, WORKER, OTHER, SINGLE = 10, 11, 12, 20


def _rendered(**values: Any) -> list[Manifest]:
    return render(values, release=RELEASE, namespace=NAMESPACE)


def _service(objects: list[Manifest]) -> dict[str, Any]:
    (found,) = [one.body for one in objects if one.kind == "RayService"]
    return dict(found["spec"])


@pytest.fixture(scope="module")
def cluster(image: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyCluster]:
    """Head and two workers of a release at default values, ready by their own probes."""
    objects = _rendered()
    configs = {one.name: one.body["data"] for one in objects if one.kind == "ConfigMap"}
    folder = tmp_path_factory.mktemp("pods")
    with ToyCluster(image, folder, NAMESPACE, configs) as toy:
        toy.services = {
            f"{FULL_NAME}-head-svc": toy.address(HEAD),
            f"{FULL_NAME}-serve-svc": toy.address(WORKER),
        }
        rays = _service(objects)["rayClusterConfig"]
        (workers,) = rays["workerGroupSpecs"]
        _ready(toy, _ray(toy, "head", HEAD, rays["headGroupSpec"]), rays["headGroupSpec"])
        pods = [_ray(toy, f"worker-{last}", last, workers) for last in (WORKER, OTHER)]
        for pod in pods:
            _alive(toy, pod, workers)
        _deploy(toy, objects)
        for pod in pods:
            _ready(toy, pod, workers)
        yield toy


def _ray(toy: ToyCluster, name: str, last: int, group: dict[str, Any]) -> Pod:
    head = last == HEAD
    command = ray_command(group, f"{FULL_NAME}-head-svc", head=head)
    where = "127.0.0.1" if head else f"{FULL_NAME}-head-svc"
    # There is no DNS server that gRPC's own resolver could ask.
    toy.environment = {
        "RAY_ADDRESS": f"{where}:6379",
        "RAY_CLUSTER_NAME": RELEASE,
        "GRPC_DNS_RESOLVER": "native",
    }
    return toy.start(name, last, group["template"]["spec"], command)


def _probe(toy: ToyCluster, pod: Pod, group: dict[str, Any], kind: str) -> None:
    """A rendered probe, asked as the kubelet would."""
    container = group["template"]["spec"]["containers"][0]
    probe = container[kind]["httpGet"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    port = ports.get(probe["port"], probe["port"])
    toy.until(f"http://{pod.address}:{port}{probe['path']}", _READY_S, pod)


def _alive(toy: ToyCluster, pod: Pod, group: dict[str, Any]) -> None:
    for kind in ("startupProbe", "livenessProbe"):
        _probe(toy, pod, group, kind)


def _ready(toy: ToyCluster, pod: Pod, group: dict[str, Any]) -> None:
    _alive(toy, pod, group)
    _probe(toy, pod, group, "readinessProbe")


def _deploy(toy: ToyCluster, objects: list[Manifest]) -> None:
    """As the operator does: the serve config to the head's dashboard, then wait until it runs."""
    config = yaml.safe_load(_service(objects)["serveConfigV2"])
    url = f"http://{toy.address(HEAD)}:8265/api/serve/applications/"
    toy.get(url, config, method="PUT")
    head = toy.pods[0]
    for _ in range(600):
        application = toy.get(url)["applications"].get("tocsin", {})
        if application.get("status") == "RUNNING":
            break
        assert application.get("status") != "DEPLOY_FAILED", application["message"]
        toy.until(url, 60, head)
    toy.until(f"http://{toy.address(HEAD)}:8000/health", 120, head)


def _status(toy: ToyCluster) -> dict[str, Any]:
    found = toy.get(f"http://{toy.address(HEAD)}:8000/health/checker_status")
    assert isinstance(found, dict)
    return found


def test_pods_become_ready_by_their_own_probes_and_the_model_answers(cluster: ToyCluster) -> None:
    """Through a worker's proxy, as clients of the serve Service come; replicas lie on workers."""
    body = {"model": "SmolLM2-135M-Instruct", "prompt": "One, two,", "max_tokens": 4}
    url = f"http://{cluster.address(WORKER)}:8000/v1/completions"
    answer = cluster.get(url, body, method="POST")
    assert answer["usage"]["completion_tokens"] == 4
    assert len(_status(cluster)["replicas"]) == 2


def test_each_pod_with_a_hub_is_scraped_where_the_chart_says(cluster: ToyCluster) -> None:
    """Port 9464 of the head and of every pod with a replica, on the pod's own address."""
    replicas = {one["ip"] for one in _status(cluster)["replicas"].values()}
    assert replicas <= {cluster.address(WORKER), cluster.address(OTHER)}
    for address in (cluster.address(HEAD), *replicas):
        cluster.until(f"http://{address}:9464/healthz", _READY_S, cluster.pods[0])
        assert "tocsin_" in cluster.get(f"http://{address}:9464/metrics"), address


def test_the_pods_of_helm_test_succeed(cluster: ToyCluster) -> None:
    """The probe of the service and the plan of a dry run, each to its exit code."""
    hooks = [
        one.body
        for one in _rendered()
        if "helm.sh/hook" in one.body["metadata"].get("annotations", {})
    ]
    hooks.sort(key=lambda one: int(one["metadata"]["annotations"]["helm.sh/hook-weight"]))
    assert len(hooks) == 2
    cluster.environment = {"GRPC_DNS_RESOLVER": "native"}
    for number, hook in enumerate(hooks):
        pod = cluster.start(hook["metadata"]["name"], SINGLE + number, hook["spec"])
        assert pod.wait(240) == 0, pod.text()


def test_checks_change_in_place(cluster: ToyCluster) -> None:
    """A changed value reaches the replicas through the serve config; their processes stay."""
    before = {name: one["pid"] for name, one in _status(cluster)["replicas"].items()}
    _deploy(cluster, _rendered(checker={"profile": "guard"}))
    for _ in range(100):
        status = _status(cluster)
        profiles = {one["settings"]["profile"] for one in status["replicas"].values()}
        if profiles == {"guard"}:
            break
    assert profiles == {"guard"}
    assert {name: one["pid"] for name, one in status["replicas"].items()} == before
    _deploy(cluster, _rendered())


def test_a_dry_chaos_run_names_its_targets_and_touches_nothing(cluster: ToyCluster) -> None:
    """The CronJob's pod as rendered when chaos is switched on and nothing else."""
    spec = _driver(cluster, _rendered(chaos={"enabled": True}))
    pod = cluster.start("chaos-dry", SINGLE + 5, spec)
    assert pod.wait(240) == 0, pod.text()
    assert "kv.poisoned_page" in pod.text()
    assert _status(cluster)["replicas"]


def test_an_armed_run_injects_heals_and_prints_its_report(cluster: ToyCluster) -> None:
    """The CronJob's pod of an armed release, with an API server that allows it: it joins the
    running application through the client port, and leaves it as it was.
    """
    values = {"chaos": {"enabled": True, "dryRun": False}, "worker": {"chaosTarget": True}}
    spec = _driver(cluster, _rendered(**values))
    account = cluster.image.path("/etc/tocsin/account")
    targets = [f"{cluster.address(last)}" for last in (WORKER, OTHER)]
    server = cluster.background([sys.executable, "-c", _API, str(account), HOST, *targets])
    assert server.stdout is not None
    cluster.environment = {
        **cluster.environment,
        "TOCSIN_KUBE_API": server.stdout.readline().decode().strip(),
        "TOCSIN_KUBE_ACCOUNT": "/etc/tocsin/account",
        "TOCSIN_CHAOS_ANNOUNCE_S": "0",
    }
    spec["containers"][0]["env"] = [
        one for one in spec["containers"][0]["env"] if one["name"] != "TOCSIN_CHAOS_ANNOUNCE_S"
    ]
    pod = cluster.start("chaos-armed", SINGLE + 6, spec)
    code = pod.wait(600)
    found = list((cluster.folder / "chaos-armed/reports").glob("*/2*/verdict.json"))
    assert len(found) == 1, pod.text()[-3000:]
    verdict = json.loads(found[0].read_text(encoding="utf-8"))
    # A busy machine may be late with an alarm, and the run says so; what must hold holds anyway.
    assert code == verdict["exit_code"] in (0, 1), pod.text()[-3000:]
    assert verdict["silent_corruptions"] == verdict["lost"] == verdict["duplicated"] == 0
    assert all(one["fired"] == one["planned"] == one["healed"] for one in verdict["faults"])
    assert "tocsin-archive" in pod.text()
    assert len(_status(cluster)["replicas"]) == 2


_API = """
import sys, time
from pathlib import Path
from tests.ray_jobs.kube.fake_api import fake_api, pod
folder, host, *addresses = sys.argv[1:]
with fake_api(Path(folder), host) as api:
    for number, address in enumerate(addresses):
        one = pod(f"worker-{number}")
        one["status"]["podIP"] = address
        api.add(one)
    api.lease()
    print(api.url, flush=True)
    time.sleep(3600)
"""


def _driver(cluster: ToyCluster, objects: list[Manifest]) -> dict[str, Any]:
    """Pod spec of the release's CronJob; its ConfigMaps are those of the same render."""
    cluster.configs = {one.name: one.body["data"] for one in objects if one.kind == "ConfigMap"}
    cluster.environment = {"GRPC_DNS_RESOLVER": "native"}
    (job,) = [one.body for one in objects if one.kind == "CronJob"]
    return dict(json.loads(json.dumps(job["spec"]["jobTemplate"]["spec"]["template"]["spec"])))
