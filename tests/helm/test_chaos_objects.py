"""What the chaos templates render is what the program reads, calls and may do."""

import hashlib
import re
import shlex
from typing import Any

import pytest
import typer
import yaml

from tests.helm.chaos_values import (
    ARMED,
    CLUSTER,
    EMPTY_EXPERIMENT,
    ON,
    component,
    experiment,
    named,
    one,
    over,
    with_chaos,
)
from tocsin.chaos.contract import faults
from tocsin.chaos.policy import ChaosPolicy, objections
from tocsin.chaos.spec_file import load_experiment, parse_experiment
from tocsin.core.clock import ManualClock
from tocsin.helm.gate.render import render
from tocsin.helm.values.page import defaults
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.kube.lease import KubeLease
from tocsin.ray_jobs.kube.pods import KubePods

pytestmark = pytest.mark.slow

F = "demo-tocsin"
ONCE = with_chaos(kind="job", runOnce="monday")
RAY_JOB = over(CLUSTER, with_chaos(kind="rayjob", runOnce="monday"))
RAY_CRON_JOB = over(
    CLUSTER, with_chaos(kind="raycronjob", schedule="0 3 * * 1", rayCronJobGate=True)
)
DELETES = over(ARMED, experiment(EMPTY_EXPERIMENT), {"chaos": {"allowedFaults": ["pod.delete"]}})


def policy(values: dict[str, Any]) -> ChaosPolicy:
    """The policy of a release, read as the program reads it."""
    text = one(values, "ConfigMap", f"{F}-chaos")["data"]["policy.yaml"]
    return ChaosPolicy.model_validate(yaml.safe_load(text))


def driver(values: dict[str, Any]) -> dict[str, Any]:
    """Spec of the driver's pod."""
    spec: dict[str, Any] = one(values, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return spec


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command that `tocsin …` would run, and its parameters, without running it."""
    command: Any = typer.main.get_command(app)
    assert words[0] == "tocsin"
    rest, path = words[1:], []
    while hasattr(command, "commands"):
        path.append(rest[0])
        command, rest = command.commands[rest[0]], rest[1:]
    context = command.make_context(" ".join(path), list(rest))
    return " ".join(path), context.params


# --- the policy ---


def test_without_a_word_about_chaos_only_a_policy_that_forbids_is_there() -> None:
    """The program finds it in every pod and refuses; nothing else of chaos is made."""
    found = [item for item in render({}) if component(item.body) == "chaos"]
    assert [(item.kind, item.body["metadata"]["name"]) for item in found] == [
        ("ConfigMap", f"{F}-chaos")
    ]
    read = policy({})
    assert not read.enabled
    assert read.dry_run
    spec = load_experiment("smoke")
    (why,) = objections(read, spec, read.serve_url)
    assert "enabled is false" in why


def test_every_limit_of_the_values_reaches_the_program() -> None:
    """Each of them changed from its default and read back with the program's own model."""
    values = over(
        ARMED,
        experiment(EMPTY_EXPERIMENT),
        {"alertmanager": {"url": "https://alerts.example"}},
        with_chaos(
            allowedFaults=["kv.bitflip", "rope.table"],
            maxConcurrentFaults=5,
            maxTargets=7,
            maxDurationSeconds=86400,
            protectedNamespaces=["kube-system", "kube-public", "kube-node-lease", "prod"],
            namespaceLabel="team/drills=yes",
            stopOnAlert={"enabled": True, "matchers": ['severity="P0"']},
        ),
    )
    assert policy(values) == ChaosPolicy(
        enabled=True,
        dry_run=False,
        namespace="tocsin-demo",
        release="demo",
        protected_namespaces=("kube-system", "kube-public", "kube-node-lease", "prod"),
        namespace_label="team/drills=yes",
        allowed_faults=("kv.bitflip", "rope.table"),
        max_concurrent_faults=5,
        max_targets=7,
        max_duration_s=86400,
        serve_url=f"http://{F}-head-svc:8000",
        lease_name=f"{F}-chaos",
        stop_on_alert="https://alerts.example",
        stop_matchers=('namespace="tocsin-demo"', 'severity="P0"'),
    )


def test_the_default_experiment_passes_the_default_policy() -> None:
    """Switched on and armed with nothing else said, a run has no objection to meet."""
    read = policy(ARMED)
    assert objections(read, load_experiment("smoke"), read.serve_url) == ()


def test_what_takes_processes_pods_or_memory_must_be_named() -> None:
    """Nothing destructive is allowed by default, and everything else that is declared is."""
    allowed = set(defaults()["chaos"]["allowedFaults"])
    assert set(faults()) - allowed == {
        "actor.freeze",
        "actor.gil_lock",
        "actor.init_fail",
        "actor.kill",
        "actor.oom",
        "actor.slow",
        "alert.sink_down",
        "disk.full",
        "gcs.outage",
        "host.mem_pressure",
        "kv.eviction_storm",
        "load.thundering_herd",
        "net.bandwidth",
        "net.delay",
        "net.partition",
        "net.reset",
        "node.kill",
        "obs.metrics_outage",
        "obs.otel_backpressure",
        "pod.delete",
    }


def test_an_experiment_of_ones_own_arrives_letter_by_letter() -> None:
    """Comments, quotes and angle brackets included; the program parses it as it was given."""
    text = (
        "# mine\napiVersion: chaos/v1\nkind: Experiment\nname: own\nseed: 4\n"
        'hypothesis: "a <b> & \\"c\\": é"\n'
        "safety: {abort: [{when: 'ok_ratio < 0.5 for 10s'}]}\n"
    )
    values = over(ON, experiment(text))
    data = one(values, "ConfigMap", f"{F}-chaos")["data"]
    assert data["experiment.yaml"] == text
    assert parse_experiment(yaml.safe_load(data["experiment.yaml"])).seed == 4


# --- the command lines ---


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"spec": "smoke", "seed": None}),
        ({"experiment": {"name": "poison"}}, {"spec": "poison"}),
        ({"experiment": {"seed": 0}}, {"seed": 0}),
        ({"experiment": {"seed": 2**53 - 1}}, {"seed": 2**53 - 1}),
        (
            {"experiment": {"text": EMPTY_EXPERIMENT}},
            {"spec": "/etc/tocsin/chaos/experiment.yaml"},
        ),
        ({"publish": {"url": "s3://a/b?c=d&e=f"}}, {"publish": "s3://a/b?c=d&e=f"}),
    ],
)
def test_the_drivers_command_line_says_what_the_values_say(
    changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Read by the real command: as the CronJob, the Job and the RayJob give it."""
    container = driver(with_chaos(**changes))["containers"][0]
    job = one(over(ONCE, {"chaos": changes}), "Job")["spec"]["template"]["spec"]["containers"][0]
    entrypoint = one(over(RAY_JOB, {"chaos": changes}), "RayJob")["spec"]["entrypoint"]
    cron = one(over(RAY_CRON_JOB, {"chaos": changes}), "RayCronJob")["spec"]["jobTemplate"]
    lines = [
        [*container["command"], *container["args"]],
        [*job["command"], *job["args"]],
        shlex.split(entrypoint),
        shlex.split(cron["entrypoint"]),
    ]
    for words in lines:
        command, params = parsed(words)
        assert command == "chaos run"
        assert params["on"] == f"http://{F}-head-svc:8000"
        assert str(params["store"]) == "/var/lib/tocsin/store"
        assert params["print_archive"] is True
        assert params["wait_s"] == 900.0
        assert {key: params[key] for key in expected} == expected


@pytest.mark.parametrize("profile", ["off", "guard", "full"])
@pytest.mark.parametrize("completion", [True, False])
def test_helm_test_probes_what_the_values_declare(profile: str, completion: bool) -> None:
    """At the Service over which everybody else reaches the model too."""
    values = {
        "checker": {"profile": profile},
        "test": {"completion": completion, "withinSeconds": 3600},
    }
    container = one(values, "Pod", f"{F}-test-probe")["spec"]["containers"][0]
    command, params = parsed([*container["command"], *container["args"]])
    assert command == "probe"
    assert params == {
        "url": f"http://{F}-serve-svc:8000",
        "profile": params["profile"],
        "completion": completion,
        "within_s": 3600.0,
    }
    assert str(params["profile"]) == profile


@pytest.mark.parametrize(
    ("values", "spec", "seed"),
    [
        ({}, "smoke", None),
        (experiment(EMPTY_EXPERIMENT), "smoke", None),  # off: the file is not there
        (over(ON, experiment(EMPTY_EXPERIMENT)), "/etc/tocsin/chaos/experiment.yaml", None),
        (with_chaos(experiment={"name": "poison", "seed": 3}), "poison", 3),
    ],
)
def test_helm_test_plans_the_releases_experiment(
    values: dict[str, Any], spec: str, seed: int | None
) -> None:
    """With the real command, which reads a file that is mounted there."""
    pod = one(values, "Pod", f"{F}-test-plan")
    container = pod["spec"]["containers"][0]
    command, params = parsed([*container["command"], *container["args"]])
    assert (command, params) == ("chaos plan", {"spec": spec, "seed": seed})
    if spec.startswith("/"):
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert spec == f"{mounts['chaos-policy']}/experiment.yaml"
        assert volumes["chaos-policy"]["configMap"]["name"] == f"{F}-chaos"


def test_a_ray_job_waits_for_the_policy_and_the_experiment_that_came_with_it() -> None:
    """Its pod mounts both since before the upgrade; one digest stands for the two files."""
    digests = set()
    for values in (RAY_JOB, over(RAY_JOB, experiment(EMPTY_EXPERIMENT))):
        text = one(values, "ConfigMap", f"{F}-chaos")["data"]["policy.yaml"]
        words = shlex.split(one(values, "RayJob")["spec"]["entrypoint"])
        _, params = parsed(words)
        digests.add(params["policy_sha256"])
        assert params["policy_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert len(digests) == 2
    words = shlex.split(one(RAY_CRON_JOB, "RayCronJob")["spec"]["jobTemplate"]["entrypoint"])
    assert parsed(words)[1]["policy_sha256"] == ""
    assert "--policy-sha256" not in driver(ON)["containers"][0]["args"]


def test_a_caller_from_outside_is_told_what_the_policy_says() -> None:
    """The CronJob is what `--kube-context` reads; it may not see the ConfigMap."""
    values = over(ARMED, {"chaos": {"namespaceLabel": "team/drills=yes"}})
    assert one(values, "CronJob")["metadata"]["annotations"] == {
        "tocsin.dev/dry-run": "false",
        "tocsin.dev/namespace-label": "team/drills=yes",
    }
    assert one(ON, "CronJob")["metadata"]["annotations"]["tocsin.dev/dry-run"] == "true"


# --- who may do what ---


class Requests:
    """Stands in for the API server's client and notes which right each call needs."""

    def __init__(self) -> None:
        self.rights: set[tuple[str, str, str]] = set()
        self.lease: dict[str, Any] = {"metadata": {"name": f"{F}-chaos"}}  # as the chart makes it

    def note(self, method: str, path: str) -> None:
        found = re.fullmatch(
            r"/(?:api|apis/(?P<group>[^/]+))/v1/namespaces/(?P<namespace>[^/]+)"
            r"(?:/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?)?",
            path,
        )
        assert found is not None, path
        resource, name = found["resource"] or "namespaces", found["name"]
        single = name is not None or resource == "namespaces"
        verbs = {"GET": "get" if single else "list", "PUT": "update", "POST": "create"}
        self.rights.add((found["group"] or "", resource, verbs.get(method, method.lower())))

    def get(self, path: str, params: object = None) -> dict[str, Any]:
        self.note("GET", path)
        return self.lease if "/leases/" in path else {"metadata": POD_METADATA, "items": []}

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.note("PUT", path)
        self.lease = body
        return body

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.note("POST", path)
        return body

    def delete(self, path: str, body: object) -> bool:
        self.note("DELETE", path)
        return True


POD_METADATA = {
    "name": "w",
    "uid": "u",
    "labels": {
        "app.kubernetes.io/instance": "demo",
        "app.kubernetes.io/component": "worker",
        "tocsin.dev/chaos-target": "true",
    },
}


def rights(values: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Group, resource and verb of each right in the driver's Role."""
    return {
        (group, resource, verb)
        for rule in one(values, "Role", f"{F}-chaos")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked(*, deletes: bool) -> set[tuple[str, str, str]]:
    """Every request that the program can make, for its guards, its targets and its lease."""
    requests: Any = Requests()
    pods = KubePods(requests, "tocsin-demo", "demo", "tocsin.dev/chaos-target=true")
    pods.namespace_labels()
    pods.all()
    found = pods.get("w")
    if deletes:
        assert found is not None
        pods.delete(found, None)
    lease = KubeLease(requests, "tocsin-demo", f"{F}-chaos", "driver", ManualClock())
    lease.acquire()
    lease.renew()
    lease.release()
    assert lease.why_not() == ""
    rights: set[tuple[str, str, str]] = requests.rights
    return rights


@pytest.mark.parametrize(
    ("values", "deletes"),
    [
        (ON, False),
        (ARMED, False),
        (over(DELETES, {"chaos": {"dryRun": True}}), False),
        (DELETES, True),
    ],
    ids=["dry run", "armed", "dry run of pod.delete", "pod.delete"],
)
def test_the_driver_has_exactly_the_rights_that_the_program_uses(
    values: dict[str, Any], deletes: bool
) -> None:
    """No pod can be deleted unless that fault is allowed and the run is in earnest."""
    assert rights(values) == asked(deletes=deletes)
    for rule in one(values, "Role", f"{F}-chaos")["rules"]:
        named_only = rule["resources"] != ["pods"]
        assert ("resourceNames" in rule) == named_only
    assert one(values, "Lease")["metadata"]["name"] == f"{F}-chaos"


def test_the_rights_are_the_drivers_alone_unless_it_runs_in_the_head() -> None:
    """A RayJob's driver is a process of the head's pod, under the head's account."""

    def subjects(values: dict[str, Any]) -> list[str]:
        binding = one(values, "RoleBinding", f"{F}-chaos")
        assert binding["roleRef"]["name"] == f"{F}-chaos"
        return [subject["name"] for subject in binding["subjects"]]

    assert subjects(ON) == [f"{F}-chaos"]
    assert subjects(RAY_JOB) == subjects(RAY_CRON_JOB) == [f"{F}-chaos", f"{F}-head"]
    assert driver(ON)["serviceAccountName"] == f"{F}-chaos"
    assert driver(ON)["automountServiceAccountToken"] is True


# --- forms of a run ---


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        (ON, {"CronJob"}),
        (with_chaos(kind="job"), {"CronJob"}),
        (ONCE, {"CronJob", "Job"}),
        (RAY_JOB, {"CronJob", "RayJob"}),
        (over(RAY_JOB, {"chaos": {"runOnce": ""}}), {"CronJob"}),
        (RAY_CRON_JOB, {"CronJob", "RayCronJob"}),
    ],
)
def test_nothing_runs_that_was_not_asked_for(values: dict[str, Any], kinds: set[str]) -> None:
    """The CronJob is always there as the template of runs by hand, and suspended."""
    objects = [item for item in render(values) if component(item.body) == "chaos"]
    runs = {item.kind for item in objects} & {"CronJob", "Job", "RayJob", "RayCronJob"}
    assert runs == kinds
    assert one(values, "CronJob")["spec"]["suspend"] is True
    assert one(with_chaos(schedule="@daily"), "CronJob")["spec"]["suspend"] is False
    assert not [item for item in objects if "helm.sh/hook" in str(item.body["metadata"])]


def test_a_run_has_a_name_of_its_own_and_only_a_change_of_what_it_does_makes_another() -> None:
    """A Job cannot be changed; a second `helm upgrade` with the same values must find it."""

    def name(values: dict[str, Any]) -> str:
        return str(one(values, "Job")["metadata"]["name"])

    first = name(ONCE)
    assert re.fullmatch(rf"{F}-chaos-[0-9a-f]{{8}}", first)
    assert name(ONCE) == first
    assert name(over(ONCE, {"worker": {"replicas": 2, "maxReplicas": 2}})) == first
    changes: list[dict[str, Any]] = [
        {"chaos": {"runOnce": "tuesday"}},
        {"chaos": {"experiment": {"seed": 1}}},
        {"chaos": {"maxTargets": 2}},
        {"image": {"tag": "0.2.0"}},
        experiment(EMPTY_EXPERIMENT),
        experiment(f"# a comment\n{EMPTY_EXPERIMENT}"),
    ]
    names = {name(over(ONCE, change)) for change in changes}
    assert len(names | {first}) == len(changes) + 1


def test_the_releases_own_run_is_not_removed_by_time() -> None:
    """An upgrade that does not find it would make it, and that is run it, again."""
    assert "ttlSecondsAfterFinished" not in one(ONCE, "Job")["spec"]
    assert one(ON, "CronJob")["spec"]["jobTemplate"]["spec"]["ttlSecondsAfterFinished"] == 86400


def test_a_run_is_never_repeated_by_itself_and_always_ends() -> None:
    """One pod, no retry, a deadline beyond the longest experiment, time to take faults back."""
    spec = one(with_chaos(maxDurationSeconds=86400), "CronJob")["spec"]
    job = spec["jobTemplate"]["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert job["backoffLimit"] == 0
    assert job["activeDeadlineSeconds"] == 86400 + 1800 + 900
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] >= 120


def test_ray_jobs_run_on_the_releases_own_cluster() -> None:
    """Without retries and deletion rules, which KubeRay refuses or ignores with a selector."""
    variables = driver(ON)["containers"][0]["env"]
    (announced,) = [one for one in variables if one["name"] == "TOCSIN_CHAOS_ANNOUNCE_S"]
    for spec in (
        one(RAY_JOB, "RayJob")["spec"],
        one(RAY_CRON_JOB, "RayCronJob")["spec"]["jobTemplate"],
    ):
        assert spec["clusterSelector"] == {"ray.io/cluster": F}
        assert spec["submissionMode"] == "HTTPMode"
        assert not {"backoffLimit", "deletionStrategy", "rayClusterSpec", "suspend"} & set(spec)
        assert spec["shutdownAfterJobFinishes"] is False
        # The head's hub serves the metrics port: the driver opens none, and is waited for as a pod.
        assert yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"] == {
            "TOCSIN_METRICS_HOST": "",
            "TOCSIN_CHAOS_ANNOUNCE_S": announced["value"],
        }


@pytest.mark.parametrize("release", ["a", "demo", "r" * 33, "r" * 40])
def test_names_stay_within_what_kubernetes_and_kuberay_take(release: str) -> None:
    """The longest release name that the chart takes is not too long for any of its runs."""
    full = {"fullnameOverride": release if len(release) == 40 else ""}
    for values, kind, longest in (
        (ON, "CronJob", 52),
        (ONCE, "Job", 63),
        (RAY_JOB, "RayJob", 47),
        (RAY_CRON_JOB, "RayCronJob", 36),
    ):
        name = one(over(values, full), kind, release=release[:33])["metadata"]["name"]
        assert len(name) <= longest
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_the_driver_reaches_the_head_the_api_and_names_and_nothing_else() -> None:
    """What else is needed is opened by the value that needs it, on its own port."""

    def ports(values: dict[str, Any]) -> set[int]:
        spec = one(values, "NetworkPolicy", f"{F}-chaos")["spec"]
        assert [port["port"] for rule in spec["ingress"] for port in rule["ports"]] == [9464]
        return {port["port"] for rule in spec["egress"] for port in rule["ports"]}

    base = {53, 443, 6443, 8000, 8265, 10001}
    assert ports(ON) == base
    manager = {"alertmanager": {"url": "http://alerts.monitoring:9093/prefix"}}
    watching = with_chaos(stopOnAlert={"enabled": True})
    assert ports(over(watching, manager)) == base | {9093}
    plain = {"alertmanager": {"url": "http://alerts.monitoring"}}
    assert ports(over(watching, plain)) == base | {80}
    stored = with_chaos(publish={"url": "s3://a", "port": 9000})
    assert ports(stored) == base | {9000}
    narrow = with_chaos(apiServer={"cidrs": ["10.0.0.1/32"], "ports": [6443]})
    rules = one(narrow, "NetworkPolicy", f"{F}-chaos")["spec"]["egress"]
    assert [rule["to"] for rule in rules if rule["ports"][0]["port"] == 6443] == [
        [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    ]
    without = over(ON, {"networkPolicy": {"enabled": False}})
    assert not named(render(without), "NetworkPolicy", f"{F}-chaos")


def test_reports_go_to_a_volume_and_credentials_come_from_a_secret() -> None:
    """Where they are named; without them nothing outlives the pod and no Secret is read."""

    def reports(values: dict[str, Any]) -> dict[str, Any]:
        (found,) = [volume for volume in driver(values)["volumes"] if volume["name"] == "reports"]
        return dict(found)

    assert reports(ON)["emptyDir"] == {"sizeLimit": "2Gi"}
    claim = with_chaos(report={"claimName": "runs"})
    assert reports(claim)["persistentVolumeClaim"] == {"claimName": "runs"}
    store = with_chaos(publish={"url": "s3://a/b", "secretName": "keys"})
    assert driver(store)["containers"][0]["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert "envFrom" not in driver(ON)["containers"][0]


def test_the_test_pods_have_no_rights_and_go_when_they_have_passed() -> None:
    """No token, no model volume to wait for, removed by helm itself; off when not wanted."""
    pods = named(render({"model": {"source": "pvc", "claimName": "weights"}}), "Pod")
    assert {pod["metadata"]["name"] for pod in pods} == {f"{F}-test-probe", f"{F}-test-plan"}
    for pod in pods:
        annotations = pod["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["serviceAccountName"] == f"{F}-test"
        assert not [volume for volume in pod["spec"]["volumes"] if volume["name"] == "model"]
    off = render({"test": {"enabled": False}})
    assert not named(off, "Pod")
    assert not named(off, "ServiceAccount", f"{F}-test")
