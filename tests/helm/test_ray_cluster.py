"""The Ray cluster: what rolls it, what its pods may do, and what they are told."""

import hashlib
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helm.ray_values import (
    AUTOSCALING,
    CLUSTER,
    GPU,
    REDIS,
    container,
    environment,
    groups,
    head,
    nested,
    of,
    ray_cluster,
    serve_config,
    worker,
)
from tocsin.checker.settings import CheckerSettings
from tocsin.helm.gate.render import CHART, merged, render

Values = Mapping[str, Any]
BOTH = pytest.mark.parametrize("values", [{}, CLUSTER], ids=["service", "cluster"])
DIGEST = "sha256:" + "a" * 64
ODD = ["yes", "on", "1e3", "007", "null", "~", "a: b", "{x}", "#", "- a", 'say "so"', "é\\n"]


@pytest.mark.parametrize(
    "changed",
    [
        {"checker": {"profile": "guard", "thresholds": {"numerical.rms_range": {"limit_ulp": 16}}}},
        {"serve": {"replicas": 1}},
        {"serve": {"args": {"slots": 4}}},
        {"chaos": {"enabled": True}},
        {"chaos": {"maxConcurrentFaults": 3}},
        {"monitoring": {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}},
        {"networkPolicy": {"enabled": False}},
        {"disruptionBudget": {"enabled": False}},
        {"serviceAccounts": {"annotations": {"a": "b"}}},
    ],
    ids=lambda values: "+".join(values),
)
@BOTH
def test_what_can_change_in_place_leaves_the_ray_cluster_alone(
    values: Values, changed: Values
) -> None:
    """KubeRay starts a second cluster, with its own GPUs, for any other change."""
    assert ray_cluster(merged(values, changed)) == ray_cluster(values)


@pytest.mark.parametrize("kind", ["cronjob", "job"])
def test_arming_chaos_changes_no_pod(kind: str) -> None:
    """Arming must not be an upgrade: what is struck is what ran before."""
    marked = {"worker": {"chaosTarget": True}, "chaos": {"kind": kind}}
    armed = merged(marked, {"chaos": {"enabled": True, "dryRun": False}})
    assert ray_cluster(armed) == ray_cluster(marked)


@BOTH
def test_a_new_chart_version_rolls_no_pod(values: Values, tmp_path: Path) -> None:
    """A label with the version in a pod template would make every release a new cluster."""
    chart = tmp_path / "tocsin"
    shutil.copytree(CHART, chart)
    text = (chart / "Chart.yaml").read_text(encoding="utf-8")
    bumped = text.replace("0.1.0", "9.9.9")
    assert bumped.count("9.9.9") == 2
    (chart / "Chart.yaml").write_text(bumped, encoding="utf-8")
    kind = "RayCluster" if values else "RayService"
    (before,) = (item for item in render(values) if item.kind == kind)
    (after,) = (item for item in render(values, chart=chart) if item.kind == kind)
    spec = "\nspec:\n"
    assert after.text.partition(spec)[2] == before.text.partition(spec)[2] != ""
    assert after.metadata["labels"]["app.kubernetes.io/version"] == "9.9.9"


def test_service_and_cluster_differ_in_what_waits_for_whom_alone() -> None:
    """One template: only readiness, and the mounted serve config, depend on the topology."""
    service, cluster = container(worker({})), container(worker(CLUSTER))
    assert service.pop("readinessProbe")["httpGet"] == {"path": "/-/healthz", "port": "serve"}
    assert cluster.pop("readinessProbe")["httpGet"] == {"path": "/api/healthz", "port": 52365}
    assert service == cluster


def test_a_digest_wins_over_the_tag() -> None:
    """A tag can be moved; whoever names a digest wants that image."""
    image = {
        "image": {"repository": "registry.example:5000/a/tocsin", "tag": "1", "digest": DIGEST}
    }
    for template in (head(image), worker(image)):
        assert container(template)["image"] == f"registry.example:5000/a/tocsin@{DIGEST}"
    assert container(head({}))["image"] == "tocsin:0.1.0"


def _nulls(value: object, path: str = "") -> Iterator[str]:
    if value is None or value in ({}, []):
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _nulls(inner, f"{path}.{key}")
    if isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _nulls(inner, f"{path}[{at}]")


@pytest.mark.parametrize(
    "values",
    [{}, CLUSTER, GPU, AUTOSCALING, REDIS, nested("networkPolicy.egress.restrict", True)],
    ids=["default", "cluster", "gpu", "autoscaling", "redis", "egress"],
)
def test_what_is_not_set_is_not_rendered(values: Values) -> None:
    """`env: null` and the like are refused by the operator, or mean something else than absent."""
    ray = [item for item in render(values) if item.source.startswith("templates/ray/")]
    found = [f"{item.where}{path}" for item in ray for path in _nulls(item.body)]
    # An empty selector means every namespace, and is meant so.
    assert [path for path in found if not path.endswith(".namespaceSelector")] == []


@pytest.mark.parametrize("text", ODD)
def test_a_string_stays_the_string_it_is(text: str) -> None:
    """YAML reads yes, 007 and 1e3 as something else unless they are quoted."""
    values = {
        "extraEnv": [{"name": "ODD", "value": text}],
        "head": {"podAnnotations": {"odd": text}},
    }
    assert environment(head(values))["ODD"] == text
    assert head(values)["metadata"]["annotations"] == {"odd": text}


@BOTH
def test_all_probes_are_said_and_none_needs_a_tool(values: Values) -> None:
    """KubeRay fills missing probes with wget, which the image does not have."""
    for template in (head(values), worker(values)):
        ray = container(template)
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert "httpGet" in ray[name]
            assert "exec" not in ray[name]


def test_the_head_runs_no_model_and_takes_no_traffic_for_it() -> None:
    """Losing a replica must never be losing the cluster's state."""
    assert ray_cluster({})["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert of({}, "RayService").body["spec"]["excludeHeadPodFromServeSvc"] is True


def test_a_group_with_gpus_asks_for_them_bears_their_taint_and_tells_ray() -> None:
    """A limit alone leaves the pod unplaced, or Ray without a GPU to give."""
    name = "nvidia.com/mig-1g.10gb"
    values = merged(GPU, {"worker": {"gpu": {"count": 2, "resourceName": name}}})
    template = worker(values)
    resources = container(template)["resources"]
    assert resources["limits"][name] == resources["requests"][name] == "2"
    assert template["spec"]["tolerations"] == [
        {"key": name, "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert groups(values)["checked"]["rayStartParams"]["num-gpus"] == "2"
    assert "tolerations" not in worker({})["spec"]
    assert "num-gpus" not in groups({})["checked"]["rayStartParams"]


def test_a_group_has_from_worker_what_it_does_not_say() -> None:
    """Two groups differ in what their entries say; an empty word counts as said."""
    values = {
        "worker": {"chaosTarget": True, "nodeSelector": {"pool": "a"}, "priorityClassName": "high"},
        "workerGroups": {
            "zoned": {"chaosTarget": False, "priorityClassName": "", "replicas": 1},
            "checked": {"nodeSelector": {"disk": "ssd"}},
        },
    }
    label = "tocsin.dev/chaos-target"
    assert worker(values)["metadata"]["labels"][label] == "true"
    assert worker(values)["spec"]["nodeSelector"] == {"pool": "a", "disk": "ssd"}
    assert worker(values)["spec"]["priorityClassName"] == "high"
    assert label not in worker(values, "zoned")["metadata"]["labels"]
    assert "priorityClassName" not in worker(values, "zoned")["spec"]
    assert [groups(values)[name]["replicas"] for name in ("checked", "zoned")] == [2, 1]


def test_null_takes_a_worker_group_away() -> None:
    """The default group need not stay beside one's own."""
    assert list(groups({"workerGroups": {"checked": None, "mine": {}}})) == ["mine"]


def test_no_pod_is_a_target_of_chaos_unless_it_is_said() -> None:
    """The label is the pods' own consent."""
    assert "tocsin.dev/chaos-target" not in worker({})["metadata"]["labels"]


def test_pods_spread_over_machines_and_zones_within_their_group() -> None:
    """The selector names the group: another group's pods would count as one's own."""
    spread = worker({})["spec"]["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spread] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    for one in spread:
        assert one["labelSelector"]["matchLabels"]["ray.io/group"] == "checked"
    off = nested("worker.topologySpread", {"hostname": {"maxSkew": 0}, "zone": {"maxSkew": 0}})
    assert "topologySpreadConstraints" not in worker(off)["spec"]


def test_a_model_on_a_volume_is_read_and_never_written() -> None:
    """The weights are an input: a fault in a pod must not reach those of the others."""
    model = {"model": {"source": "pvc", "claimName": "weights", "subPath": "a/b", "name": "mine"}}
    for template in (head(model), worker(model)):
        (volume,) = (one for one in template["spec"]["volumes"] if one["name"] == "model")
        assert volume["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
        mounts = container(template)["volumeMounts"]
        assert {
            "name": "model",
            "mountPath": "/models",
            "readOnly": True,
            "subPath": "a/b",
        } in mounts
    args = serve_config(model)["applications"][0]["args"]
    assert (args["model"], args["name"]) == ("/models", "mine")


def test_pods_are_told_of_token_alerts_and_traces() -> None:
    """Secrets come by reference; what is off is said as off."""
    told = {
        "token": {"name": "switch", "key": "bearer"},
        "alertmanager": {"url": "http://alertmanager:9093"},
        "telemetry": {"endpoint": "http://otel:4318", "ratio": 0.5},
    }
    for template in (head(told), worker(told)):
        found = environment(template)
        assert found["TOCSIN_TOKEN"] == {"secretKeyRef": {"name": "switch", "key": "bearer"}}
        assert found["TOCSIN_ALERTMANAGER_URL"] == "http://alertmanager:9093"
        assert found["TOCSIN_GATEWAY_URL"] == "http://demo-tocsin-serve-svc.tocsin-demo:8000"
        assert found["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://otel:4318"
        assert found["OTEL_TRACES_SAMPLER_ARG"] == "0.5"
    plain = environment(head({}))
    assert not {"TOCSIN_TOKEN", "TOCSIN_ALERTMANAGER_URL", "OTEL_SDK_DISABLED"} & set(plain)
    off = environment(head({"telemetry": {"enabled": False}}))
    assert off["OTEL_SDK_DISABLED"] == "true"


@BOTH
def test_every_ray_pod_is_bound_by_the_chaos_policy(values: Values) -> None:
    """Whoever opens a shell in a pod and starts a run is bound like the driver."""
    for template in (head(values), worker(values)):
        assert environment(template)["TOCSIN_CHAOS_POLICY"] == "/etc/tocsin/chaos/policy.yaml"
        mounts = {one["mountPath"]: one for one in container(template)["volumeMounts"]}
        assert mounts["/etc/tocsin/chaos"]["readOnly"] is True


@BOTH
def test_whatever_is_written_lies_on_a_volume(values: Values) -> None:
    """The root filesystem is read-only: home, state, cache and /tmp must be mounted."""
    for template in (head(values), worker(values)):
        written = [one["mountPath"] for one in container(template)["volumeMounts"]]
        found = environment(template)
        for folder in (found["HOME"], found["TOCSIN_STATE"], found["TOCSIN_CACHE"], "/tmp"):
            assert any(folder == mount or folder.startswith(f"{mount}/") for mount in written)
        # It must be there when the first process starts: nobody makes it.
        assert found["HOME"] in written


def test_the_autoscaler_is_as_restricted_as_the_rest() -> None:
    """The operator adds this container; only its options say how it runs."""
    cluster = ray_cluster(AUTOSCALING)
    options = cluster["autoscalerOptions"]
    assert cluster["enableInTreeAutoscaling"] is True
    assert options["version"] == "v2"
    assert options["securityContext"] == container(head(AUTOSCALING))["securityContext"]
    assert options["resources"]["limits"]["memory"] == options["resources"]["requests"]["memory"]
    assert {one["mountPath"] for one in options["volumeMounts"]} == {"/tmp", "/var/lib/tocsin"}
    assert "autoscalerOptions" not in ray_cluster({})


def test_state_outside_the_head_names_its_secret_and_holds_none() -> None:
    """A password in the values would lie in the release's Secret and in every diff."""
    options = ray_cluster(REDIS)["gcsFaultToleranceOptions"]
    assert options == {
        "redisAddress": "redis.storage:6379",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}},
    }


@pytest.mark.parametrize(
    "values",
    [
        {},
        CLUSTER,
        {"checker": {"thresholds": {"numerical.rms_range": {"limit_ulp": 0.000001}}}},
        {"serve": {"numCpus": 0.01, "args": {"dtype": "bf16", "slots": 1}}},
        {"model": {"source": "pvc", "claimName": "weights", "name": "1e5"}},
    ],
    ids=["service", "cluster", "small number", "small share", "name like a number"],
)
@pytest.mark.filterwarnings("ignore")  # of Ray Serve's own imports
def test_the_program_reads_its_own_serve_config(values: Values) -> None:
    """What is rendered is what the application's own parser takes, numbers included."""
    from tocsin.ray_jobs.serve_file import parse_serve_config

    text = of(values, "ConfigMap", "demo-tocsin-serve").body["data"]["serve.yaml"]
    read = parse_serve_config(text)
    expected = CheckerSettings.model_validate(values.get("checker", {}))
    assert read.settings == expected
    assert read.replicas == 2
    if "numCpus" in values.get("serve", {}):
        assert read.arguments.dtype == "bf16"


def test_the_operator_and_the_config_map_carry_the_same_serve_config() -> None:
    """Two texts that could differ would make the ConfigMap a lie."""
    text = of({}, "ConfigMap", "demo-tocsin-serve").body["data"]["serve.yaml"]
    assert of({}, "RayService").body["spec"]["serveConfigV2"] == text


def test_a_changed_serve_config_is_another_job_and_the_same_one_is_not() -> None:
    """A RayJob runs once: only another name deploys again; the same name deploys nothing twice."""
    job = of(CLUSTER, "RayJob")
    changed = of(merged(CLUSTER, {"checker": {"profile": "guard"}}), "RayJob")
    elsewhere = of(merged(CLUSTER, {"networkPolicy": {"enabled": False}}), "RayJob")
    assert job.metadata["name"] == elsewhere.metadata["name"] != changed.metadata["name"]
    assert job.body["spec"]["clusterSelector"] == {"ray.io/cluster": "demo-tocsin"}
    longest = merged(CLUSTER, {"fullnameOverride": "a" * 40})
    assert len(of(longest, "RayJob").metadata["name"]) <= 47


def test_the_job_waits_for_the_text_that_it_was_made_for() -> None:
    """The digest is that of the file as it will be mounted, to the byte."""
    words = shlex.split(of(CLUSTER, "RayJob").body["spec"]["entrypoint"])
    text = of(CLUSTER, "ConfigMap", "demo-tocsin-serve").body["data"]["serve.yaml"]
    digest = words[words.index("--config-sha256") + 1]
    assert digest == hashlib.sha256(text.encode()).hexdigest()
    (mount,) = (one for one in container(head(CLUSTER))["volumeMounts"] if one["name"] == "serve")
    assert words[words.index("--config") + 1] == f"{mount['mountPath']}/serve.yaml"


def test_a_suspended_cluster_has_nothing_submitted_to_it() -> None:
    """A RayJob would wait for pods that do not come, and fail."""
    asleep = {"ray": {"suspend": True}}
    assert of(asleep, "RayService").body["spec"]["suspend"] is True
    assert of(merged(CLUSTER, asleep), "RayCluster").body["spec"]["suspend"] is True
    assert [item for item in render(merged(CLUSTER, asleep)) if item.kind == "RayJob"] == []
