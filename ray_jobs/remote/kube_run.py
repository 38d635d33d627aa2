"""A chaos run as a Job of a release: made, awaited, followed, stopped on Ctrl-C, brought home."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin.core.clock import Clock, SystemClock
from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.remote.homecoming import Follower, Place, brought_home
from tocsin.ray_jobs.remote.interrupts import Interrupts, LeftError, Say
from tocsin.ray_jobs.remote.kube_job import driver_of, job_manifest
from tocsin.ray_jobs.remote.kube_logs import LogStream, StampedLines
from tocsin.ray_jobs.remote.kube_pod import (
    PodState,
    job_failure,
    job_refusal,
    newest,
    pod_state,
)
from tocsin.ray_jobs.remote.kube_release import find_release
from tocsin.ray_jobs.remote.kubectl import (
    Kubectl,
    MissingError,
    UnreachableError,
    find_kubectl,
)
from tocsin.ray_jobs.remote.order import Order

EXIT_LEFT = 130

_POLL_S = 1.0
_LOST_S = 180.0
_EVENTS_EVERY_S = 5.0


@dataclass(slots=True)
class _Run:
    """A Job on its way.

    Attributes:
        gone: the Job or its pod was deleted.
        deleted: by us.
        mute: why its log may not be read; empty: it may.
    """

    kubectl: Kubectl
    name: str
    container: str
    clock: Clock
    say: Say
    interrupts: Interrupts
    pod: PodState = field(default_factory=PodState)
    gone: bool = False
    deleted: bool = False
    failure: str = ""
    mute: str = ""
    _answered_s: float = 0.0
    _told: str = ""

    def look(self) -> None:
        """See how Job and pod are.

        Raises:
            EnvironmentFault: nobody answered for minutes, or the person may not look.
        """
        try:
            pods = self.kubectl.get("pods", "-l", f"job-name={self.name}").get("items", [])
            found = newest(pods)
            if found is not None:
                self.pod = pod_state(found)
            elif self.pod.name:
                self.gone = True
            if found is None or self.pod.ended:
                self._look_at_job(has_pod=found is not None)
            self._answered_s = self._now_s()
        except UnreachableError as error:
            if self._now_s() - self._answered_s > _LOST_S:
                raise EnvironmentFault(
                    f"{error}; nobody answered for {_LOST_S:.0f} s, expected the cluster; "
                    f"{self.fate()}"
                ) from error
        except EnvironmentFault as error:
            raise EnvironmentFault(f"{error}; {self.fate()}") from error

    def stop(self) -> None:
        """Delete the Job: its pod gets SIGTERM and its grace, heals, and prints its archive.

        Raises:
            EnvironmentFault: it could not be deleted; the run goes on.
        """
        self.say("tocsin: asking the run to heal and end (Ctrl-C again: leave at once)")
        try:
            self._delete()
        except EnvironmentFault as error:
            raise EnvironmentFault(f"{error}; {self.goes_on()}") from error

    def fate(self) -> str:
        """What becomes of a Job that can no longer be watched, in words: none starts unseen."""
        return self.goes_on() if self.pod.started else self.discard()

    def discard(self) -> str:
        """Delete the Job, whose driver has not started; returns what came of it, in words."""
        try:
            self._delete()
        except EnvironmentFault as error:
            return (
                f"the job could not be deleted ({error}) and may start yet; delete it: "
                f"{self.shown_delete()}"
            )
        return "the job was deleted again, nothing was injected"

    def goes_on(self) -> str:
        """How to look at a run that is left to itself, and how to end it."""
        return f"the run goes on there: {self.shown_log()}; end it: {self.shown_delete()}"

    def shown_delete(self) -> str:
        """The command that ends the run; it heals first."""
        return self.kubectl.shown("delete", "job", self.name)

    def tell(self, waiting: str) -> None:
        """Say what is waited for, when it is something new."""
        if waiting != self._told:
            self.say(f"tocsin: waiting for {waiting}")
            self._told = waiting

    def wait(self) -> None:
        """A moment."""
        self.clock.sleep(_POLL_S)

    def shown_log(self) -> str:
        """The command that shows the log."""
        return self.kubectl.shown("logs", f"job/{self.name}", "-c", self.container)

    def begin(self) -> None:
        """Now."""
        self._answered_s = self._now_s()

    def refusal(self) -> str:
        """Why there is no pod, where an event says so."""
        try:
            selector = f"involvedObject.kind=Job,involvedObject.name={self.name}"
            found = self.kubectl.get("events", "--field-selector", selector).get("items", [])
        except EnvironmentFault:
            return ""
        return job_refusal(found)

    def _delete(self) -> None:
        with self.interrupts.held():
            self.kubectl.delete("job", self.name)
            self.deleted = True

    def _look_at_job(self, *, has_pod: bool) -> None:
        try:
            job = self.kubectl.get("job", self.name)
        except MissingError:
            self.gone = not has_pod
            return
        self.failure = job_failure(job)

    def _now_s(self) -> float:
        return self.clock.now_ns() / 1e9


def run_on_kubernetes(
    order: Order,
    store: Path,
    *,
    context: str,
    namespace: str,
    release: str,
    say: Say,
    show: Say,
    start_timeout_s: float,
    clock: Clock | None = None,
) -> int:
    """Run an experiment in a release.

    Args:
        namespace: empty: the context's own; release: empty: the only one there.
        say: shows a line of this program; show: one of the run.
        start_timeout_s: a Job whose pod did not start by then is deleted again.

    Returns:
        The exit code of the run; 130 when the person left it to itself.

    Raises:
        ChaosForbidden: the release does not take this run.
        EnvironmentFault: no kubectl, no cluster, no release, no rights, or the pod never started.
    """
    kubectl = find_kubectl(context, namespace)
    found = find_release(kubectl, release, dry_run=order.dry_run)
    kubectl = Kubectl(kubectl.path, context, found.namespace)
    manifest = job_manifest(found.cron_job, order)
    name = str(manifest["metadata"]["name"])
    container = str(driver_of(manifest["spec"]["template"]["spec"]["containers"])["name"])
    where = f"job {name} of release {found.name} in {found.namespace} of {context}"
    follower = Follower(show)
    with Interrupts() as interrupts:
        run = _Run(kubectl, name, container, clock or SystemClock(), say, interrupts)
        try:
            _create(run, manifest)
            say(f"tocsin: {where}")
            run.begin()
            _await_start(run, start_timeout_s)
            _follow(run, StampedLines(follower))
        except LeftError:
            ends = "the run ends by itself; look: " + run.shown_log()
            say(f"tocsin: left; {ends if run.deleted else run.goes_on()}")
            return EXIT_LEFT
    return brought_home(
        follower,
        Place(
            f"Kubernetes {where}",
            f"look: {run.shown_log()}",
            "run again with --publish URL, or let chaos runs of the release keep their store on a "
            f"volume; what the log still holds: {run.shown_log()} | tocsin chaos unpack",
        ),
        store,
        say=say,
        died=_end_words(run),
        again=lambda: _whole_log(run),
        may_be_dry=order.dry_run,
    )


def _create(run: _Run, manifest: Mapping[str, Any]) -> None:
    """Make the Job; where no answer came, it may have been made all the same.

    Raises:
        EnvironmentFault: it was refused.
    """
    try:
        run.kubectl.create(manifest)
    except UnreachableError as error:
        raise EnvironmentFault(f"{error}; {run.discard()}") from error


def _await_start(run: _Run, timeout_s: float) -> None:
    """Wait until the driver runs, or ran.

    Raises:
        EnvironmentFault: it did not start in time, or never can; the Job is deleted.
    """
    until_ns = run.clock.now_ns() + int(timeout_s * 1e9)
    events_ns = run.clock.now_ns() + int(_EVENTS_EVERY_S * 1e9)
    refusal = ""
    while True:
        run.look()
        if run.pod.started or run.pod.ended or run.gone or run.failure:
            return
        if run.interrupts.asked:
            raise EnvironmentFault(
                f"kubectl: job {run.name} was given up before its pod started: {run.discard()}"
            )
        if not run.pod.name and run.clock.now_ns() >= events_ns:
            events_ns += int(_EVENTS_EVERY_S * 1e9)
            refusal = run.refusal()
        waits_for = run.pod.waits_for or refusal or "the cluster to make it"
        if run.pod.hopeless or run.clock.now_ns() >= until_ns:
            late = "never starts" if run.pod.hopeless else f"did not start in {timeout_s:.0f} s"
            raise EnvironmentFault(
                f"kubectl: the pod of job {run.name} {late} ({waits_for}), expected it to run; "
                f"{run.discard()}; correct what it waits for"
            )
        run.tell(f"pod {run.pod.name or 'of the job'}: {waits_for}")
        run.wait()


def _follow(run: _Run, lines: StampedLines) -> None:
    """Hand over the log until the driver's end, whatever happens to the stream."""
    while run.pod.name:
        stream = LogStream(run.kubectl, run.pod.name, run.container, lines, last=run.pod.ended)
        over = run.pod.ended or run.gone
        try:
            while not stream.ended(_POLL_S / 4):
                if run.interrupts.asked and not run.deleted:
                    run.stop()
        finally:
            stream.close()
        if "(forbidden)" in stream.problem.lower() and not run.mute:
            run.mute = stream.problem
            run.say(
                f"tocsin: the log of the run may not be read ({stream.problem}), expected the "
                "right to get pods/log; the run goes on, its exit code will be told"
            )
        if over:
            return
        run.look()
        if run.gone:
            return  # its log went with it; the stream had what there was
        if not run.pod.ended:
            run.wait()


def _whole_log(run: _Run) -> list[str]:
    try:
        return run.kubectl.run("logs", run.pod.name, "-c", run.container).split("\n")
    except EnvironmentFault:
        return []


def _end_words(run: _Run) -> str:
    if run.failure and "BackoffLimitExceeded" not in run.failure:
        return f"job {run.name} was given up ({run.failure})"
    if run.mute:
        return f"the log of job {run.name} may not be read; its driver {run.pod.end or 'ended'}"
    if run.pod.end:
        return f"the driver of job {run.name} {run.pod.end}"
    if run.gone and not run.deleted:
        return f"job {run.name} was deleted by someone"
    return f"job {run.name} ended"
