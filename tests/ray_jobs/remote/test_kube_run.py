"""A run as a Job: every way in which a cluster can fail it ends in one clear line."""

import signal
from pathlib import Path

import pytest

from tests.ray_jobs.remote.kube import RUNNING, FakeCluster, archive_lines, ended, waiting
from tocsin.core.clock import ManualClock
from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.remote import kube_run
from tocsin.ray_jobs.remote.interrupts import Interrupts, LeftError
from tocsin.ray_jobs.remote.kube_pod import PodState
from tocsin.ray_jobs.remote.kube_run import _Run
from tocsin.ray_jobs.remote.kubectl import Kubectl
from tocsin.ray_jobs.remote.order import make_order

NOISE = ["starting", "injecting faults"]


def one_line(cluster: FakeCluster) -> str:
    assert "\n" not in cluster.said[-1]
    return cluster.said[-1]


def test_a_run_comes_home_with_its_exit_code_and_without_its_frame_on_the_screen(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Progress is shown, the archive is unpacked, and 1 (violated) is what the caller returns."""
    cluster.script(pods=[RUNNING, ended(1)])
    cluster.log(*NOISE, *archive_lines(tmp_path, exit_code=1), "bye")
    assert cluster.run() == 1
    assert cluster.shown == [*NOISE, "bye"]
    run_dir = cluster.folder / "store" / "smoke" / "20261129T100000Z-0123456789ab"
    assert (run_dir / "report.html").read_text().startswith("<h1>")
    assert (cluster.folder / "store" / "latest").resolve() == run_dir
    assert "of release demo in prod of demo" in (run_dir / "origin.json").read_text()
    assert one_line(cluster) == f"tocsin: report: {run_dir}/report.html"


@pytest.mark.parametrize("cuts", [[0], [1, 0, 0], [2, 1], [3, 3, 3, 3]])
def test_a_stream_that_is_cut_loses_no_line_and_says_none_twice(
    cluster: FakeCluster, tmp_path: Path, cuts: list[int]
) -> None:
    """The server repeats whole seconds; lines that look the same are still two lines."""
    lines = [*NOISE, "tick", "tick", *(f"line {n}" for n in range(40)), "tick"]
    cluster.script(pods=[RUNNING] * (len(cuts) + 2) + [ended(0)], cuts=cuts)
    cluster.log(*lines, *archive_lines(tmp_path))
    assert cluster.run() == 0
    assert cluster.shown == lines


def test_what_a_pod_waits_for_is_said_once_and_then_it_runs(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Unschedulable, then an image, then a start."""
    unscheduled = {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available: 3 too full.",
            }
        ],
    }
    pulling = waiting("ImagePullBackOff", "Back-off pulling image tocsin:nosuch")
    cluster.script(pods=[None, unscheduled, unscheduled, pulling, RUNNING, ended(0)])
    cluster.log(*NOISE, *archive_lines(tmp_path))
    assert cluster.run() == 0
    told = [line for line in cluster.said if "waiting" in line]
    assert told == [
        "tocsin: waiting for pod of the job: the cluster to make it",
        "tocsin: waiting for pod pod-1: Unschedulable: 0/3 nodes are available: 3 too full.",
        "tocsin: waiting for pod pod-1: ImagePullBackOff: Back-off pulling image tocsin:nosuch",
    ]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (waiting("ImagePullBackOff", "no such image"), "did not start in 6 s .*ImagePullBackOff"),
        (waiting("InvalidImageName", "bad"), "never starts .*InvalidImageName"),
        (waiting("CreateContainerConfigError", "no secret x"), "never starts .*no secret x"),
    ],
)
def test_a_pod_that_does_not_start_ends_in_a_line_and_its_job_is_deleted(
    cluster: FakeCluster, status: dict[str, object], words: str
) -> None:
    """It must not begin to attack an hour later, when nobody looks."""
    cluster.script(pods=[status])
    with pytest.raises(EnvironmentFault, match=words) as caught:
        cluster.run()
    assert "nothing was injected" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert cluster.deleted


def test_a_quota_that_forbids_the_pod_is_told_from_the_jobs_events(cluster: FakeCluster) -> None:
    """There is no pod to ask."""
    message = 'pods "x" is forbidden: exceeded quota: small, requested: cpu=1, limited: cpu=0'
    cluster.script(pods=[None], events=[{"reason": "FailedCreate", "message": message}])
    with pytest.raises(EnvironmentFault, match=r"FailedCreate: .*exceeded quota: small"):
        cluster.run()
    assert any("exceeded quota" in line for line in cluster.said)


def test_a_driver_killed_for_memory_is_unknown_and_its_limit_is_named(cluster: FakeCluster) -> None:
    """Exit code 2, the last lines, and where to look."""
    cluster.script(pods=[RUNNING, ended(137, "OOMKilled")])
    cluster.log(*NOISE)
    assert cluster.run() == 2
    assert "OOMKilled, limit 2Gi" in one_line(cluster)
    assert "its last lines: starting | injecting faults" in one_line(cluster)
    assert "kubectl --context demo --namespace prod logs job/demo-tocsin-chaos-" in one_line(
        cluster
    )


def test_an_evicted_driver_is_unknown_and_says_why(cluster: FakeCluster) -> None:
    """The container's own end says less than the pod's."""
    evicted = ended(137, reason="Evicted", message="The node was low on resource: memory.")
    cluster.script(pods=[RUNNING, {**evicted, "reason": "Evicted"}])
    cluster.log(*NOISE)
    assert cluster.run() == 2
    assert "Evicted: The node was low on resource: memory." in one_line(cluster)


def test_a_job_that_someone_deleted_is_said_to_be(cluster: FakeCluster) -> None:
    """Its pod and its log went with it."""
    cluster.script(pods=[RUNNING, "gone"])
    cluster.log(*NOISE)
    assert cluster.run() == 2
    assert "was deleted by someone" in one_line(cluster)


def test_an_end_that_only_the_whole_log_holds_is_still_brought_home(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """A deleted pod's stream may end early; the log may still be there."""
    lines = archive_lines(tmp_path)
    cluster.script(pods=[RUNNING, "gone"], cuts=[3])
    cluster.log(*NOISE, *lines)
    assert cluster.run() == 0


def test_a_rotated_log_gives_the_verdict_and_the_other_way_to_the_report(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """A pass whose report did not arrive is no pass; a violation stays one."""
    cluster.script(pods=[RUNNING, ended(0)])
    begin, *data, end = archive_lines(tmp_path)
    cluster.log(begin, *data[1:], end)
    assert cluster.run() == 3
    assert "lines are missing from the log, the first is line 1" in one_line(cluster)
    assert "--publish URL" in one_line(cluster)
    assert not (cluster.folder / "store").exists()


@pytest.mark.parametrize("code", [3, 4, 64])
def test_a_driver_that_refused_is_not_taken_for_one_that_died(
    cluster: FakeCluster, code: int
) -> None:
    """It said that there is no archive, and why, on the lines before."""
    cluster.script(pods=[RUNNING, ended(code)])
    none = f'tocsin-archive - NONE {{"format": 1, "exit_code": {code}, "dry_run": false}}'
    cluster.log("tocsin: refused", none)
    assert cluster.run() == code
    assert cluster.shown == ["tocsin: refused"]


def test_a_dry_run_over_there_is_no_pass_unless_it_was_asked_for(cluster: FakeCluster) -> None:
    """The policy may say dry run where the CronJob does not."""
    none = 'tocsin-archive - NONE {"format": 1, "exit_code": 0, "dry_run": true}'
    cluster.script(pods=[RUNNING, ended(0, "Completed")])
    cluster.log("the plan", none)
    assert cluster.run() == 4
    assert "nothing was injected" in one_line(cluster)
    (cluster.folder / "reading").unlink()
    assert cluster.run(make_order("smoke", seed=None, profile=None, dry_run=True)) == 0


def test_a_person_without_rights_learns_which(cluster: FakeCluster) -> None:
    """To create Jobs, here."""
    cluster.script(forbidden=["create"])
    with pytest.raises(EnvironmentFault, match=r"may not do this: .*Forbidden.*rights"):
        cluster.run()


def test_a_person_who_may_not_read_logs_learns_it_while_the_run_goes_on(
    cluster: FakeCluster,
) -> None:
    """The Job is made by then: it is waited for, and its end is told."""
    refusal = 'Error from server (Forbidden): pods "pod-1" is forbidden: cannot get pods/log'
    cluster.script(pods=[RUNNING, RUNNING, ended(0, "Completed")], logs_fail=refusal)
    assert cluster.run() == 2
    told = next(line for line in cluster.said if "may not be read" in line)
    assert told.count("pods/log") == 2
    assert "its driver ended with exit code 0 (Completed) and left no report" in one_line(cluster)


def test_a_cluster_that_is_silent_for_a_while_is_waited_for(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """An API server that restarts does not end a run."""
    cluster.script(pods=[RUNNING, "down", "down", RUNNING, ended(0)])
    cluster.log(*NOISE, *archive_lines(tmp_path))
    assert cluster.run() == 0
    assert cluster.shown == NOISE


def test_a_cluster_that_stays_silent_is_given_up_with_a_word_that_the_run_goes_on(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Job is there still, and how to look at it is said."""
    monkeypatch.setattr(kube_run, "_LOST_S", 2.0)
    cluster.script(pods=[RUNNING, "down"])
    cluster.log(*NOISE)
    with pytest.raises(EnvironmentFault, match=r"nobody answered .*goes on there.*logs job/"):
        cluster.run()


def test_a_cluster_that_nobody_reaches_is_said_at_once(cluster: FakeCluster) -> None:
    """Before anything was made."""
    cluster.script(down=True)
    with pytest.raises(EnvironmentFault, match="was refused"):
        cluster.run()


def test_without_kubectl_one_line_says_so(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is tried."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EnvironmentFault, match=r"not found on the PATH.*unset KUBE_CONTEXT"):
        cluster.run()


def test_a_context_that_is_not_there_is_named(cluster: FakeCluster) -> None:
    """With the command that lists them."""
    with pytest.raises(EnvironmentFault, match=r"no context 'other'.*get-contexts"):
        cluster.run(context="other")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ({"forbidden": ["get pods"]}, r"may not do this: .*get pods"),
        ({"forbidden": ["get pods", "delete job"]}, r"could not be deleted .*may start yet"),
    ],
)
def test_a_job_that_may_not_be_watched_does_not_start_unseen(
    cluster: FakeCluster, script: dict[str, object], words: str
) -> None:
    """It was made; what cannot be seen is deleted, and where that is refused the line says so."""
    cluster.script(pods=[None], **script)
    with pytest.raises(EnvironmentFault, match=words) as caught:
        cluster.run()
    allowed = "delete job" not in str(script)
    assert bool(cluster.deleted) is allowed
    assert ("was deleted again, nothing was injected" in str(caught.value)) is allowed
    assert ("delete it: kubectl --context demo" in str(caught.value)) is not allowed
    assert "\n" not in str(caught.value)


def test_a_run_that_can_no_longer_be_watched_says_how_it_is_ended(cluster: FakeCluster) -> None:
    """It attacks already: it is left to its owner, not to chance."""
    kubectl = Kubectl("kubectl", "demo", "prod")
    run = _Run(kubectl, "j", "chaos", ManualClock(), cluster.said.append, Interrupts())
    run.pod = PodState("pod-1", started=True)
    assert "goes on there: kubectl --context demo --namespace prod logs job/j" in run.fate()
    assert "end it: kubectl --context demo --namespace prod delete job j" in run.fate()


@pytest.mark.parametrize(
    ("stderr", "kind", "words"),
    [
        ("Error in configuration: context was not found for specified context: x", "", "KUBE_CON"),
        ('error: context "x" does not exist', "", "correct KUBE_CONTEXT"),
        ("error: getting credentials: exec: executable aws not found", "", "no credentials"),
        ("error: You must be logged in to the server (Unauthorized)", "", "log in again"),
        ('Error from server (NotFound): jobs "x" not found', "MissingError", "not found"),
        ("Error from server (Forbidden): pods is forbidden", "ForbiddenError", "may not do this"),
        ("EOF", "UnreachableError", "answered 'EOF', expected an answer to kubectl"),
    ],
)
def test_kubectls_words_are_taken_for_what_they_mean(stderr: str, kind: str, words: str) -> None:
    """A context or a plugin that is not found is not an object that is not there."""
    error = Kubectl("kubectl", "demo").refusal(stderr, ["get", "pods"])
    assert type(error).__name__ == (kind or "EnvironmentFault")
    assert words in str(error)


def test_a_second_ctrl_c_waits_for_the_delete_and_then_leaves() -> None:
    """A request that is cut in two may not have arrived."""
    done = []

    def interrupted_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
            done.append("deleted")

    with Interrupts() as interrupts, pytest.raises(LeftError):
        interrupted_twice()
    assert done == ["deleted"]
