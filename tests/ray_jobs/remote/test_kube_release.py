"""What is made of a release's CronJob, and every reason why a release takes no run."""

import base64
from pathlib import Path

import pytest

from tests.ray_jobs.remote.kube import LABELS, RUNNING, FakeCluster, archive_lines, cron_job, ended
from tocsin.chaos.spec_file import load_experiment
from tocsin.core.errors import ChaosForbidden, EnvironmentFault, SpecError
from tocsin.core.terms import Profile
from tocsin.ray_jobs.remote.kube_job import job_manifest
from tocsin.ray_jobs.remote.order import SPEC_BYTES_MAX, Order, make_order


def order(**options: object) -> Order:
    return make_order("smoke", **{"seed": None, "profile": None, **options})  # type: ignore[arg-type]


def words_of(job: dict[str, object], name: str = "chaos") -> list[str]:
    pod = job["spec"]["template"]["spec"]  # type: ignore[index]
    (found,) = [one for one in pod["containers"] if one["name"] == name]
    return [*found.get("command", []), *found["args"]]


def test_only_the_experiment_its_seed_and_profile_are_the_callers() -> None:
    """Target, store and everything else stay what the release says."""
    job = job_manifest(cron_job(), order(seed=9, profile=Profile.FULL))
    assert words_of(job) == [
        *("tocsin", "chaos", "run", "env:TOCSIN_SPEC", "--seed", "9", "--profile", "full"),
        *("--print-archive", "--on", "http://demo-tocsin-head-svc:8000"),
        *("--store", "/var/lib/tocsin/store"),
    ]
    assert words_of(job, "mesh") == ["proxy"]
    plain = words_of(job_manifest(cron_job(), order()))
    assert "--seed" not in plain
    assert "--profile" not in plain


def test_the_guards_stay_and_a_run_is_never_tried_again() -> None:
    """Account and policy are the release's; a failed run is a result, not a reason for another."""
    job = job_manifest(cron_job(), order())
    spec = job["spec"]
    pod = spec["template"]["spec"]
    assert pod["serviceAccountName"] == "demo-tocsin-chaos"
    assert pod["terminationGracePeriodSeconds"] == 120
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert spec["ttlSecondsAfterFinished"] == 3600
    variables = {one["name"]: one["value"] for one in pod["containers"][1]["env"]}
    assert variables["TOCSIN_CHAOS_POLICY"] == "/etc/tocsin/chaos/policy.yaml"
    assert "kv.poisoned_page" in variables["TOCSIN_SPEC"]
    assert len(pod["containers"][1]["env"]) == 4


def test_a_job_is_made_as_kubectl_makes_one_of_a_cron_job() -> None:
    """Owned, annotated, and of a name that is free and short enough."""
    template = cron_job()
    template["metadata"]["name"] = "a" * 52
    jobs = [job_manifest(template, order()) for _ in range(2)]
    assert jobs[0]["metadata"]["name"] != jobs[1]["metadata"]["name"]
    for job in jobs:
        metadata = job["metadata"]
        assert len(metadata["name"]) <= 63
        assert metadata["labels"] == LABELS
        assert metadata["annotations"] == {"cronjob.kubernetes.io/instantiate": "manual"}
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("CronJob", "0000-1111", True)
        assert "status" not in job


def test_a_template_that_runs_something_else_is_refused() -> None:
    """The place of the experiment is not guessed."""
    template = cron_job()
    pod = template["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    pod["containers"][1]["args"] = ["sh", "-c", "tocsin chaos run first-light"]
    with pytest.raises(EnvironmentFault, match="does not run `tocsin chaos run"):
        job_manifest(template, order())


@pytest.mark.parametrize("text", ["plain", "with $HOME and $(TOCSIN_SPEC)"])
def test_an_experiment_arrives_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Also where something on its way would read a variable in it; errors name its own file."""
    path = tmp_path / "mine.yaml"
    smoke = (Path(__file__).parents[3] / "chaos" / "experiments" / "smoke.yaml").read_text()
    path.write_text(smoke.replace("hypothesis: >-\n", f"hypothesis: >-\n  {text}\n"))
    made = make_order(str(path), seed=None, profile=None)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
        assert "$" not in value
    assert load_experiment("env:TOCSIN_SPEC") == load_experiment(path)
    assert text in load_experiment("env:TOCSIN_SPEC").hypothesis
    monkeypatch.setenv("TOCSIN_SPEC", "kind: Nothing")
    with pytest.raises(SpecError, match=rf"^{path}: "):
        load_experiment("env:TOCSIN_SPEC")


def test_an_experiment_in_the_environment_that_is_not_there_or_not_whole_is_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the name of the variable."""
    monkeypatch.delenv("TOCSIN_SPEC", raising=False)
    with pytest.raises(SpecError, match="the environment has no TOCSIN_SPEC"):
        load_experiment("env:TOCSIN_SPEC")
    monkeypatch.setenv("TOCSIN_SPEC", "base64:?")
    with pytest.raises(SpecError, match="is not base64"):
        load_experiment("env:TOCSIN_SPEC")


def test_an_experiment_that_is_wrong_or_too_long_never_leaves_this_machine(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    """A process takes 128 KiB in one variable."""
    path = tmp_path / "long.yaml"
    smoke = (Path(__file__).parents[3] / "chaos" / "experiments" / "smoke.yaml").read_text()
    for size, fits in ((SPEC_BYTES_MAX, True), (SPEC_BYTES_MAX + 1, False)):
        path.write_text(smoke + "#" * (size - len(smoke.encode())))
        if fits:
            value = make_order(str(path), seed=None, profile=None).environment()["TOCSIN_SPEC"]
            assert len(base64.b64encode(value.encode())) + 32 < 128 << 10
            continue
        with pytest.raises(SpecError, match=f"holds {size} bytes"):
            make_order(str(path), seed=None, profile=None)


def test_a_release_that_only_plans_says_how_to_arm_it(cluster: FakeCluster) -> None:
    """Nothing was made; a plan is allowed."""
    cluster.put("cronjobs.batch", cron_job(**{"tocsin.dev/dry-run": "true"}))
    with pytest.raises(ChaosForbidden, match=r"only plans") as caught:
        cluster.run()
    command = (
        "helm upgrade demo helm/tocsin --kube-context demo -n prod --reset-then-reuse-values "
        "--set chaos.dryRun=false"
    )
    assert command in str(caught.value)
    assert not (cluster.folder / "created.json").exists()
    cluster.script(pods=[RUNNING, ended(0, "Completed")])
    cluster.log("the plan", 'tocsin-archive - NONE {"format": 1, "exit_code": 0, "dry_run": true}')
    assert cluster.run(order(dry_run=True)) == 0
    assert "--dry-run" in words_of(cluster.created)
    assert cluster.shown == ["the plan"]


@pytest.mark.parametrize("labels", [{}, {"tocsin.dev/chaos": "no"}])
def test_a_namespace_that_is_not_open_to_chaos_says_how_to_open_it(
    cluster: FakeCluster, labels: dict[str, str]
) -> None:
    """The very command."""
    cluster.put("namespace", {"metadata": {"name": "prod", "labels": labels}})
    command = r"kubectl --context demo label namespace prod tocsin\.dev/chaos=allowed"
    with pytest.raises(ChaosForbidden, match=command):
        cluster.run()


def test_a_release_may_have_chosen_another_label(cluster: FakeCluster) -> None:
    """What its CronJob says counts."""
    cluster.put("cronjobs.batch", cron_job(**{"tocsin.dev/namespace-label": "team/chaos=yes"}))
    with pytest.raises(ChaosForbidden, match="label namespace prod team/chaos=yes"):
        cluster.run()


def test_who_may_not_look_at_the_namespace_may_still_run(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """The driver looks itself."""
    cluster.script(forbidden=["get namespace"], pods=[RUNNING, ended(0)])
    cluster.log(*archive_lines(tmp_path))
    assert cluster.run() == 0


def test_a_release_without_chaos_says_how_to_enable_it(cluster: FakeCluster) -> None:
    """It is there, and takes no runs."""
    cluster.take_out("cronjobs.batch")
    cluster.put("configmaps", {"metadata": {"name": "x", "labels": LABELS}})
    with pytest.raises(ChaosForbidden, match=r"helm upgrade demo .* chaos\.enabled=true"):
        cluster.run()


def test_a_release_that_is_not_there_is_told_from_one_without_chaos(cluster: FakeCluster) -> None:
    """With the command that lists them."""
    with pytest.raises(EnvironmentFault, match=r"no release other in prod of demo.*helm list"):
        cluster.run(release="other")


def test_the_only_release_need_not_be_named_and_of_two_one_must(cluster: FakeCluster) -> None:
    """Which of them is not guessed."""
    other = cron_job()
    other["metadata"] |= {
        "name": "other",
        "labels": {**LABELS, "app.kubernetes.io/instance": "other"},
    }
    cluster.put("cronjobs.batch", other)
    with pytest.raises(EnvironmentFault, match=r"releases demo, other .*RELEASE="):
        cluster.run(release="")
    cluster.script(forbidden=["create"])
    for path in (cluster.folder / "cronjobs.batch").glob("other.json"):
        path.unlink()
    with pytest.raises(EnvironmentFault, match="may not do this"):
        cluster.run(release="")
