"""A chaos run as a Ray job: submitted to a dashboard, followed, stopped on Ctrl-C, brought home."""

import asyncio
import logging
import re
import secrets
import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.remote.homecoming import Follower, Place, brought_home
from tocsin.ray_jobs.remote.interrupts import Interrupts, LeftError, Say
from tocsin.ray_jobs.remote.order import SPEC, Order
from tocsin.ray_jobs.remote.ray_cluster import (
    TIMEOUT_S,
    Application,
    Dashboard,
    find_application,
    find_dashboard,
)
from tocsin.ray_jobs.remote.ray_logs import LineCutter, follow

EXIT_LEFT = 130
NOT_INSTALLED = 127

_KIND, _DEPLOYS = "tocsin", "tocsin_deploys"
_CHAOS_RUN = "chaos-run"
_STOP_WAIT_S = 180
"""From SIGTERM to SIGKILL: faults are healed, the run is judged and its archive printed. Ray's own
3 s would leave faults to their leases."""
_LOST_S = 120.0
_POLL_S = 2.0
_STORE = "${TOCSIN_STORE:-${TMPDIR:-/tmp}/tocsin-$(id -u)/store}"
_RAY_SAYS = re.compile(r"^Running entrypoint for job |job_manager\.py:\d+ -- Runtime env is sett")


class _Client(JobSubmissionClient):
    """Ray's client waits for ever for an answer; this one does not."""

    def _do_request(self, *args: Any, **kwargs: Any) -> Any:
        return super()._do_request(*args, **{"timeout": 3 * TIMEOUT_S, **kwargs})


@dataclass(slots=True)
class _Job:
    """A submitted job, as it was last seen.

    Attributes:
        seen_s: monotonic time of the last answer.
    """

    client: JobSubmissionClient
    job_id: str
    say: Say
    status: str = "PENDING"
    exit_code: int | None = None
    message: str = ""
    seen_s: float = 0.0
    stopping: bool = False

    def look(self) -> bool:
        """Whether it is over.

        Raises:
            EnvironmentFault: nobody answered for two minutes.
        """
        try:
            info = self.client.get_job_info(self.job_id)
        except (OSError, RuntimeError, ValueError) as error:
            if "does not exist" in str(error):
                self.status, self.message = "GONE", "the cluster does not know it any more"
                return True
            if time.monotonic() - self.seen_s > _LOST_S:
                raise EnvironmentFault(
                    f"ray: nobody answered for {_LOST_S:.0f} s ({_short(error)}) while job "
                    f"{self.job_id} ran, expected the dashboard; the run may go on there: look "
                    "when it is back"
                ) from error
            return False
        self.seen_s = time.monotonic()
        self.status = str(info.status.value)
        self.exit_code = getattr(info, "driver_exit_code", None)
        self.message = info.message or ""
        return bool(info.status.is_terminal())

    def stop(self) -> None:
        """Ask it to heal and end."""
        self.stopping = True
        self.say("tocsin: asking the run to heal and end (Ctrl-C again: leave at once)")
        try:
            self.client.stop_job(self.job_id)
        except (OSError, RuntimeError) as error:
            self.say(f"tocsin: the job could not be asked to stop: {_short(error)}")


def run_on_ray(order: Order, address: str, store: Path, *, say: Say, show: Say) -> int:
    """Run an experiment on the cluster behind a dashboard.

    Args:
        say: shows a line of this program; show: one of the run.

    Returns:
        The exit code of the run; 130 when the person left it to itself.

    Raises:
        EnvironmentFault: no cluster, no tocsin there, another run under way, or it got lost.
    """
    dashboard = find_dashboard(address)
    logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.ERROR)
    client = _connect(dashboard)
    target = _target(dashboard, client)
    with Interrupts() as interrupts:
        job = _Job(client, _submit(client, order, target), say, seen_s=time.monotonic())
        look = f"look: ray job logs {job.job_id} --address {dashboard.address}"
        attacks = f"attacks what serves at {target.url}" if target else "deploys an application"
        how = "attacks what --on names" if "--on" in order.extra else attacks
        say(f"tocsin: Ray job {job.job_id} at {dashboard.address} (Ray {dashboard.ray}) {how}")
        follower = Follower(lambda line: None if _RAY_SAYS.search(line) else show(line))
        try:
            asyncio.run(_attend(job, LineCutter(follower), interrupts))
        except LeftError:
            say(f"tocsin: left; the run goes on ending by itself; {look}")
            return EXIT_LEFT
        except ConnectionError as error:
            raise EnvironmentFault(
                f"ray: the log of job {job.job_id} cannot be read any more ({error}), expected it "
                f"from the dashboard; the run goes on there; {look}"
            ) from error
    if job.exit_code == NOT_INSTALLED and follower.reader.none is None:
        raise EnvironmentFault(
            f"ray: the cluster at {dashboard.address} has no `tocsin` on the PATH of its jobs, "
            "expected it where `ray` is; use the chart's image or install tocsin[serve] on every "
            "node (it is not uploaded: a run must judge the program that serves there)"
        )
    place = Place(
        f"Ray job {job.job_id} at {dashboard.address}",
        look,
        "the whole run is in $TOCSIN_STORE of the node that ran the job (default "
        "/tmp/tocsin-<uid>/store); or run again with --publish URL",
    )
    return brought_home(
        follower,
        place,
        store,
        say=say,
        died=_end_words(job),
        again=lambda: _whole_log(client, job.job_id),
        may_be_dry=order.dry_run,
    )


async def _attend(job: _Job, cutter: LineCutter, interrupts: Interrupts) -> None:
    """Follow the log; meanwhile hear Ctrl-C, and say what a job that does not begin waits for."""
    following = asyncio.ensure_future(follow(job.client, job.job_id, cutter, job.look))
    began_s, told = time.monotonic(), ""
    while not following.done():
        await asyncio.wait((following,), timeout=_POLL_S / 4)
        if interrupts.asked and not job.stopping:
            await asyncio.to_thread(job.stop)
        waiting = f"{job.status.lower()}: {_short(job.message)}" if job.message else "pending"
        if not cutter.taken and time.monotonic() - began_s > _POLL_S and waiting != told:
            job.say(f"tocsin: waiting for the job to begin ({waiting})")
            told = waiting
    following.result()


def _connect(dashboard: Dashboard) -> JobSubmissionClient:
    try:
        return _Client(dashboard.address, headers=dict(dashboard.headers))
    except (OSError, RuntimeError, ValueError) as error:
        raise EnvironmentFault(
            f"ray: {dashboard.address} takes no jobs ({_short(error)}), expected a dashboard with "
            "the jobs API; start Ray with ray[default] there, or correct RAY_ADDRESS"
        ) from error


def _target(dashboard: Dashboard, client: JobSubmissionClient) -> Application | None:
    """The application to attack; None: the run deploys its own.

    What a killed run left behind is no service: the next run puts its own in its place.

    Raises:
        EnvironmentFault: a chaos run is under way there.
    """
    served = find_application(dashboard)
    try:
        jobs: Iterable[JobDetails] = client.list_jobs()
    except (OSError, RuntimeError, ValueError) as error:
        raise EnvironmentFault(
            f"ray: {dashboard.address} does not list its jobs ({_short(error)}); try again"
        ) from error
    for job in jobs:
        metadata = job.metadata or {}
        if metadata.get(_KIND) != _CHAOS_RUN:
            continue
        if not JobStatus(job.status).is_terminal():
            raise EnvironmentFault(
                f"ray: chaos run {job.submission_id} is under way at {dashboard.address}, expected "
                "one at a time; wait for it, or end it: ray job stop "
                f"{job.submission_id} --address {dashboard.address}"
            )
        if served is not None and metadata.get(_DEPLOYS) == "yes":
            began_s, ended_s = (float(t or 0) / 1000 for t in (job.start_time, job.end_time))
            if began_s <= served.deployed_s <= ended_s:
                served = None
    return served


def _submit(client: JobSubmissionClient, order: Order, target: Application | None) -> str:
    words = ["tocsin", "chaos", "run", f"env:{SPEC}", *order.options(), "--print-archive"]
    if target is not None and "--on" not in order.extra:
        words += ["--on", target.url]
    missing = f"command -v tocsin >/dev/null 2>&1 || exit {NOT_INSTALLED}"
    entrypoint = f'{missing}; exec {shlex.join(words)} --store "{_STORE}"'
    stop_wait = {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_WAIT_S)}
    metadata = {
        _KIND: _CHAOS_RUN,
        _DEPLOYS: "no" if "--on" in words else "yes",
        "experiment": order.name,
        "spec": order.source,
        "seed": "" if order.seed is None else str(order.seed),
        "profile": str(order.profile or ""),
    }
    try:
        return client.submit_job(
            entrypoint=entrypoint,
            submission_id=f"tocsin-{order.name}-{secrets.token_hex(4)}",
            runtime_env={"env_vars": {**order.environment(), **stop_wait}},
            metadata=metadata,
            entrypoint_num_cpus=0,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise EnvironmentFault(
            f"ray: the cluster did not take the job ({_short(error)}); look at its dashboard"
        ) from error


def _whole_log(client: JobSubmissionClient, job_id: str) -> list[str]:
    try:
        return client.get_job_logs(job_id).split("\n")
    except (OSError, RuntimeError, ValueError):
        return []


def _end_words(job: _Job) -> str:
    code = "" if job.exit_code is None else f" with exit code {job.exit_code}"
    if job.status == "STOPPED" and not job.stopping:
        return f"Ray job {job.job_id} was stopped by someone"
    if job.status == "FAILED" and job.exit_code is None and job.message:
        return f"Ray job {job.job_id} failed ({_short(job.message)})"
    return f"Ray job {job.job_id} ended {job.status}{code}"


def _short(words: object) -> str:
    text = " ".join(str(words).split())
    return text if len(text) <= 200 else f"{text[:197]}..."
