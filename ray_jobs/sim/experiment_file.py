"""Experiments that a program makes: parts of others, written as files that people can read."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from tocsin.chaos.plan import Occurrence
from tocsin.chaos.spec import Experiment
from tocsin.chaos.store import spec_document, write_atomic

_WHOLE_MS = re.compile(r"^(\d+)\.0+ms$")


def with_occurrences(experiment: Experiment, kept: Iterable[Occurrence]) -> Experiment:
    """The experiment with these of its occurrences alone; each stays as it was drawn."""
    numbers: dict[str, list[int]] = {}
    for one in kept:
        numbers.setdefault(one.fault, []).append(one.n)
    faults = tuple(
        fault.model_copy(
            update={
                "when": fault.when.model_copy(update={"only": tuple(sorted(numbers[fault.id]))})
            }
        )
        for fault in experiment.faults
        if fault.id in numbers
    )
    return experiment.model_copy(update={"faults": faults})


def with_workload(experiment: Experiment, **changes: int) -> Experiment:
    """The experiment with another workload."""
    workload = experiment.workload.model_copy(update=changes)
    return experiment.model_copy(update={"workload": workload})


def write_experiment(path: Path, experiment: Experiment, comment: Sequence[str]) -> Path:
    """Write an experiment file that `tocsin chaos run` reads, without what is the default."""
    document = _tidied(spec_document(experiment, whole=False))
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    head = "".join(f"# {line}\n" for line in comment)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (head + text).encode())
    return path


def _tidied(value: object) -> object:
    """Durations without zeros behind the point."""
    if isinstance(value, dict):
        return {key: _tidied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_tidied(inner) for inner in value]
    return _WHOLE_MS.sub(r"\1ms", value) if isinstance(value, str) else value
