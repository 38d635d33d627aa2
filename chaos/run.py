"""One experiment from a spec to an exit code; whatever happens, what is known is written."""

import asyncio
import contextlib
import errno
import os
import platform
import shlex
import signal
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tocsin.chaos import wal
from tocsin.chaos.case import Case
from tocsin.chaos.conduct import Conductor
from tocsin.chaos.contract import Fault
from tocsin.chaos.journal import journal_document
from tocsin.chaos.judge import judge
from tocsin.chaos.judge_apart import examine_as_fits
from tocsin.chaos.junit import write_junit
from tocsin.chaos.load import load_prompts
from tocsin.chaos.plan import Plan, make_plan
from tocsin.chaos.progress import Progress, ProgressState, Quiet
from tocsin.chaos.report import write_report
from tocsin.chaos.spec import Experiment
from tocsin.chaos.store import (
    VERDICT,
    load_case,
    new_run_dir,
    point_latest,
    spec_document,
    write_atomic,
    write_case,
    write_json,
)
from tocsin.chaos.verdict import EXIT_INVALID, EXIT_SPEC, RunVerdict
from tocsin.core.chaos_meter import ChaosMeter, Unmetered
from tocsin.core.clock import Clock, SystemClock
from tocsin.core.errors import SpecError, TocsinError
from tocsin.core.guard import Guard
from tocsin.core.system import System

Drive = Callable[[Coroutine[Any, Any, None]], object]

_PACKAGES = ("tocsin", "torch", "transformers", "ray", "numpy", "pydantic", "pyarrow")


def run(
    spec: Experiment,
    system: System,
    store_dir: Path,
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
    catalogue: Mapping[str, Fault] | None = None,
    arguments: str = "",
    keep: Callable[[Path], None] = lambda run_dir: None,
    meter: ChaosMeter | None = None,
    bring: Callable[[], None] = lambda: None,
    guards: Sequence[Guard] = (),
    announce_s: float = 0.0,
    drive: Drive = asyncio.run,
    calendar: Clock | None = None,
    plan: Plan | None = None,
    learn: Callable[[Case], Mapping[str, Any]] | None = None,
) -> int:
    """Run an experiment, judge it and write its files.

    Args:
        spec: as `spec_file.load_experiment` returns it.
        system: the system under test; it is left running.
        store_dir: where runs are kept.
        progress: hears of everything; None: nobody does.
        catalogue: known faults by id; None: the declared ones.
        arguments: how to run the same again, for the report and JUnit.
        keep: called with the run's folder between the end of the run and its judgement: it puts
            there what the servers left on disk.
        meter: counts faults as they come and go; None: nobody does.
        bring: called before `keep`, for what must come from other hosts; not after SIGTERM, whose
            sender does not wait for it.
        guards: any of them may keep the run from beginning and end it.
        announce_s: least time between the meter's first word and the first fault.
        drive: runs the course of the run to its end; a simulation drives it in virtual time.
        calendar: names the run's folder; None: the clock of the run.
        plan: of a recorded run; None: made from the spec.
        learn: finds further facts about what was recorded, before it is judged.

    Returns:
        Exit code: 0 pass, 1 violated, 2 unknown or vacuous, 3 invalid, 4 aborted, 5 not healed,
        64 spec error.
    """
    view, time = progress or Quiet(), clock or SystemClock()
    replay = arguments or f"tocsin chaos run {spec.name} --seed {spec.seed}"
    try:
        plan = plan or make_plan(spec, catalogue)
        load_prompts(spec.workload.prompts, canaries=spec.workload.canaries)
        run_dir = new_run_dir(store_dir, spec, plan, calendar or time)
    except SpecError as error:
        view.note(str(error))
        return EXIT_SPEC
    except OSError as error:
        view.note(_disk_words(store_dir, error))
        return EXIT_INVALID
    extra = _environment(replay)
    try:
        log = _begin(run_dir, spec, plan, time, extra)
    except OSError as error:
        view.note(_disk_words(run_dir, error))
        return EXIT_INVALID
    heard = meter or Unmetered()
    conductor = Conductor(spec, plan, system, time, log, view, heard, guards, announce_s)
    failure = _conduct(conductor, run_dir, drive)
    with _undisturbed():
        log_error = _closing(log)
        if isinstance(failure, SpecError):
            view.note(str(failure))
            return EXIT_SPEC
        if not conductor.hurried:
            _attempt(view, run_dir, "what other hosts have", bring)
        _attempt(view, run_dir, "what the servers left", lambda: keep(run_dir))
        if learn is not None:
            found = conductor.case()
            _attempt(view, run_dir, "the facts", lambda: conductor.facts.update(learn(found)))
        return _finish(run_dir, store_dir, conductor.case(), extra, view, replay, log_error)


def _begin(
    run_dir: Path, spec: Experiment, plan: Plan, clock: Clock, extra: Mapping[str, Any]
) -> wal.WriteAheadLog:
    """The heal log, begun, and a manifest: of a run that is killed one still learns what it was.

    Raises:
        OSError: the folder cannot be written.
    """
    log = wal.WriteAheadLog(run_dir / wal.NAME)
    log.write(_run_record(spec, plan, clock))
    write_json(
        run_dir / "manifest.json",
        {**extra, "spec": spec_document(spec), "plan_digest": plan.digest, "state": "running"},
    )
    return log


def check(run_dir: Path, progress: Progress | None = None) -> int:
    """Judge a recorded run again, from its files alone.

    Returns:
        The exit code of the new verdict, which replaces the old one.
    """
    view = progress or Quiet()
    try:
        case = load_case(run_dir)
    except SpecError as error:
        view.note(str(error))
        return EXIT_SPEC
    verdict = judge(case, examiner=examine_as_fits)
    replay = f"tocsin chaos run {case.spec.name} --seed {case.spec.seed}"
    failed = _write_verdict(run_dir, case, verdict, view, replay)
    view.end(verdict, run_dir, _last_lines(run_dir, verdict, replay))
    return verdict.exit_code or (EXIT_INVALID if failed else 0)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """SIGTERM does not end the writing of a verdict: it takes seconds, and SIGKILL is later."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _conduct(conductor: Conductor, run_dir: Path, drive: Drive) -> BaseException | None:
    """Run the experiment; whatever breaks it is recorded and makes it an aborted run."""
    if os.environ.get("CHAOS_DISABLE") == "1":
        conductor.abort("CHAOS_DISABLE is 1; unset it to allow chaos")
        return None
    try:
        drive(conductor.conduct())
    except SpecError as error:
        return error
    except TocsinError as error:
        conductor.abort(str(error))
    except OSError as error:
        conductor.abort(_disk_words(run_dir, error))
    except KeyboardInterrupt:
        conductor.abort("SIGINT was received")
    except Exception as error:  # noqa: BLE001 - a run that breaks still writes what it knows
        conductor.abort(f"the run broke: {type(error).__name__}: {error}")
        with contextlib.suppress(OSError):
            (run_dir / "logs" / "run-error.log").write_text(traceback.format_exc())
    return None


def _finish(
    run_dir: Path,
    store_dir: Path,
    case: Case,
    extra: Mapping[str, Any],
    view: Progress,
    replay: str,
    log_error: str,
) -> int:
    """Write the history, judge it, write the verdict; nothing that fails hides the rest."""
    view.update(ProgressState("judge", requests_done=len(case.records)))
    failed = bool(log_error)
    if log_error:
        view.note(log_error)
    failed |= not _attempt(
        view, run_dir, "the history", lambda: write_case(run_dir, case, {**extra, "state": "done"})
    )
    verdict = judge(case, examiner=examine_as_fits)
    view.update(ProgressState("report", requests_done=len(case.records)))
    failed |= _write_verdict(run_dir, case, verdict, view, replay)
    failed |= not _attempt(
        view, run_dir, "the link latest", lambda: point_latest(store_dir, run_dir)
    )
    view.end(verdict, run_dir, _last_lines(run_dir, verdict, replay))
    return verdict.exit_code or (EXIT_INVALID if failed else 0)


def _write_verdict(
    run_dir: Path, case: Case, verdict: RunVerdict, view: Progress, replay: str
) -> bool:
    """Write verdict, JUnit, journal, notes and report; whether one of the first three failed."""
    document = verdict.to_json()
    notes = "\n".join([*case.notes, *verdict.reasons, verdict.sentence, ""])
    failed = False
    for what, write in (
        ("the verdict", lambda: write_json(run_dir / VERDICT, document)),
        ("junit.xml", lambda: write_junit(run_dir / "junit.xml", case, verdict, replay)),
        (
            "journal.json",
            lambda: write_json(run_dir / "journal.json", journal_document(case, verdict)),
        ),
        ("the notes", lambda: write_atomic(run_dir / "logs" / "run.log", notes.encode())),
    ):
        failed |= not _attempt(view, run_dir, what, write)
    _attempt(view, run_dir, "the report", lambda: write_report(run_dir, case, verdict))
    return failed


def _attempt(view: Progress, run_dir: Path, what: str, write: Callable[[], object]) -> bool:
    """Whether a file could be written; why not is told in one line."""
    try:
        write()
    except OSError as error:
        view.note(f"{what}: {_disk_words(run_dir, error)}")
        return False
    except Exception as error:  # noqa: BLE001 - a broken report must not hide the verdict
        view.note(f"{what}: could not be written: {type(error).__name__}: {error}")
        with contextlib.suppress(OSError):
            path = run_dir / "logs" / "write-error.log"
            path.write_text(traceback.format_exc())
        return False
    return True


def _closing(log: wal.WriteAheadLog) -> str:
    """Close the heal log; why that failed, empty when it did not."""
    try:
        log.close()
    except OSError as error:
        return _disk_words(log.path, error)
    return ""


def _last_lines(run_dir: Path, verdict: RunVerdict, replay: str) -> tuple[str, ...]:
    """What a person needs to know at the end."""
    return (
        verdict.sentence,
        *verdict.reasons[:5],
        f"report: {run_dir / 'report.html'}",
        f"again:  {replay}",
    )


def _disk_words(path: Path, error: OSError) -> str:
    where = error.filename or path
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}: the disk is full, the run could not be recorded; free some space"
    return f"{where}: {error.strerror or error}; name a store that can be written"


def _run_record(spec: Experiment, plan: Plan, clock: Clock) -> dict[str, Any]:
    return {
        "type": "run",
        "experiment": spec.name,
        "plan_digest": plan.digest,
        "pid": os.getpid(),
        "ttl_s": spec.safety.ttl_s,
        "wall_s": clock.wall_s(),
    }


def _environment(replay: str) -> dict[str, Any]:
    """Versions and host, for the manifest."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "versions": {"python": platform.python_version(), **versions},
        "host": {
            "system": platform.platform(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "ray_address": os.environ.get("RAY_ADDRESS", ""),
        },
        "replay": shlex.join(shlex.split(replay)),
    }
