"""The files of a run: written whole or not at all, and read back for judging again."""

import dataclasses
import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tocsin.chaos import plan as planning
from tocsin.chaos.case import Case, OccurrenceRecord, Prompt
from tocsin.chaos.history_table import history_table, read_record, read_request
from tocsin.chaos.plan import Plan
from tocsin.chaos.scale.golden import read_golden
from tocsin.chaos.spec import LATEST, Experiment
from tocsin.core.clock import Clock
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.history import Event, EventKind

MANIFEST, HISTORY, EVENTS, VERDICT = (
    "manifest.json",
    "history.parquet",
    "events.parquet",
    "verdict.json",
)


def new_run_dir(store_dir: Path, spec: Experiment, plan: Plan, clock: Clock) -> Path:
    """Make `store/<experiment>/<utc>-<plan digest>/` with its folders."""
    utc = datetime.datetime.fromtimestamp(clock.wall_s(), tz=datetime.UTC)
    name = f"{utc:%Y%m%dT%H%M%SZ}-{plan.digest[:12]}"
    parent = store_dir / spec.name
    parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1000):
        path = parent / (f"{name}.{attempt}" if attempt else name)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        for folder in ("logs", "repro"):
            (path / folder).mkdir()
        return path
    raise SpecError(f"{parent}: holds a thousand runs of this second; name another store")


def point_latest(store_dir: Path, run_dir: Path) -> None:
    """Let `store/latest` lead to the run, replacing what it led to in one move."""
    link = store_dir / f".latest-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(run_dir, store_dir), target_is_directory=True)
    try:
        os.replace(link, store_dir / LATEST)
    finally:
        link.unlink(missing_ok=True)  # still there where something else has that name


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file whole: a reader, or a crash, sees the old one or the new one."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, document: Any) -> None:
    """Write JSON, whole; what JSON does not know is written as text."""
    text = json.dumps(document, indent=1, ensure_ascii=False, default=_plain)
    write_atomic(path, text.encode() + b"\n")


def write_case(run_dir: Path, case: Case, extra: Mapping[str, Any]) -> None:
    """Write everything that a verdict is made of.

    Args:
        extra: further entries of the manifest: versions, host, arguments.
    """
    write_frame(run_dir, case, extra)
    _write_table(run_dir / HISTORY, _history(case))


def write_frame(run_dir: Path, case: Case, extra: Mapping[str, Any]) -> None:
    """Write all but the requests: those of a large run are written as they end (chaos/scale)."""
    write_json(run_dir / MANIFEST, {**extra, **manifest(case)})
    _write_table(run_dir / EVENTS, _events(case.events))


def load_case(run_dir: Path) -> Case:
    """Read a run back.

    Raises:
        SpecError: the folder holds no whole run.
    """
    try:
        document = json.loads((run_dir / MANIFEST).read_text(encoding="utf-8"))
        history = pq.read_table(run_dir / HISTORY).to_pylist()
        events = pq.read_table(run_dir / EVENTS).to_pylist()
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        raise SpecError(
            f"{run_dir}: holds no whole run ({error}); name a folder store/<experiment>/<run>"
        ) from None
    occurrences = tuple(_read_occurrence(one) for one in document["occurrences"])
    plan = document["plan"]
    return Case(
        spec=Experiment.model_validate(document["spec"]),
        plan=Plan(
            plan["experiment"],
            plan["seed"],
            plan["digest"],
            tuple(planning.from_json(one) for one in plan["occurrences"]),
        ),
        facts=document["facts"],
        records=tuple(read_record(row) for row in history if row["phase"] == "load"),
        requests={
            row["request_id"]: read_request(row) for row in history if row["request"] != "null"
        },
        events=tuple(_read_event(row) for row in events),
        golden={key: read_golden(value) for key, value in document["golden"].items()},
        certificate=document["certificate"],
        occurrences=occurrences,
        prompts={key: Prompt(**value) for key, value in document["prompts"].items()},
        warmup=tuple(read_record(row) for row in history if row["phase"] == "warmup"),
        t_start_ns=document["t_start_ns"],
        t_faults_ns=document["t_faults_ns"],
        t_healed_ns=document["t_healed_ns"],
        t_end_ns=document["t_end_ns"],
        aborted=document["aborted"],
        t_aborted_ns=document["t_aborted_ns"],
        notes=tuple(document["notes"]),
    )


def read_verdict(run_dir: Path) -> dict[str, Any]:
    """The verdict of a run as it was written."""
    document: dict[str, Any] = json.loads((run_dir / VERDICT).read_text(encoding="utf-8"))
    return document


def manifest(case: Case) -> dict[str, Any]:
    """Everything of a case that is not a table."""
    return {
        "name": case.spec.name,
        "seed": case.plan.seed,
        "plan_digest": case.plan.digest,
        "spec": spec_document(case.spec),
        "plan": {
            "experiment": case.plan.experiment,
            "seed": case.plan.seed,
            "digest": case.plan.digest,
            "occurrences": [planning.as_json(one) for one in case.plan.occurrences],
        },
        "facts": dict(case.facts),
        "certificate": dict(case.certificate),
        "golden": {key: dataclasses.asdict(value) for key, value in case.golden.items()},
        "prompts": {key: dataclasses.asdict(value) for key, value in case.prompts.items()},
        "occurrences": [occurrence_document(one) for one in case.occurrences],
        "t_start_ns": case.t_start_ns,
        "t_faults_ns": case.t_faults_ns,
        "t_healed_ns": case.t_healed_ns,
        "t_end_ns": case.t_end_ns,
        "aborted": case.aborted,
        "t_aborted_ns": case.t_aborted_ns,
        "notes": list(case.notes),
    }


def spec_document(spec: Experiment, *, whole: bool = True) -> dict[str, Any]:
    """The experiment as a document that `Experiment.model_validate` reads again.

    Args:
        whole: with all values; else without those that are the default.
    """
    dumped = spec.model_dump(mode="json", by_alias=True, exclude_defaults=not whole)
    document: dict[str, Any] = _durations(dumped)
    return document


def occurrence_document(one: OccurrenceRecord) -> dict[str, Any]:
    """An occurrence and what became of it, JSON-safe."""
    document = {f.name: getattr(one, f.name) for f in dataclasses.fields(one)}
    document["planned"] = planning.as_json(one.planned)
    document["evidence"] = dataclasses.asdict(one.evidence) if one.evidence else None
    return document


_DURATION_KEYS = frozenset(
    {"deadline", "within", "recover_within", "max_duration", "ttl", "window"}
)


def _durations(value: Any, key: str = "") -> Any:
    """Durations with their unit again: the file format takes no bare numbers for them."""
    if isinstance(value, dict):
        return {name: _durations(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_durations(inner) for inner in value]
    if key in _DURATION_KEYS and isinstance(value, int | float):
        return f"{value * 1e3:f}ms"
    return value


def _write_table(path: Path, table: pa.Table) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        pq.write_table(table, part, compression="zstd")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _history(case: Case) -> pa.Table:
    """One row a request: those of the warm-up, then those of the load."""
    phased = [("warmup", r) for r in case.warmup] + [("load", r) for r in case.records]
    return history_table(phased, case.requests)


def _events(events: Sequence[Event]) -> pa.Table:
    return pa.table(
        {
            "kind": pa.array([str(event.kind) for event in events], pa.string()),
            "t_ns": pa.array([event.t_ns for event in events], pa.int64()),
            "replica": pa.array([event.replica for event in events], pa.string()),
            "step": pa.array([event.step for event in events], pa.int64()),
            "request_id": pa.array([event.request_id for event in events], pa.string()),
            "data": pa.array(
                [json.dumps(event.data, default=_plain) for event in events], pa.string()
            ),
        }
    )


def _read_event(row: Mapping[str, Any]) -> Event:
    return Event(
        EventKind(row["kind"]),
        row["t_ns"],
        row["replica"],
        row["step"],
        row["request_id"],
        json.loads(row["data"]),
    )


def _read_occurrence(document: Mapping[str, Any]) -> OccurrenceRecord:
    evidence = document["evidence"]
    if evidence is not None:
        evidence = Evidence(**{**evidence, "requests": tuple(evidence["requests"])})
    planned = planning.from_json(document["planned"])
    return OccurrenceRecord(**{**document, "planned": planned, "evidence": evidence})


def _plain(value: Any) -> Any:
    """What JSON does not know: sets and tuples as lists, the rest as text."""
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
