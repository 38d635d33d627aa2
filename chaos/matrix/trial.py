"""The experiments of a matrix: one kind of fault alone, in parts of a few occurrences each."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tocsin.chaos.contract import Fault, faults, load_for
from tocsin.chaos.spec import ExpectSpec, Experiment, FaultSpec
from tocsin.chaos.spec_file import builtin_experiments, load_experiment, parse_experiment
from tocsin.core.draw import draw_u64
from tocsin.core.faulting import Scope

PART = 25
"""Occurrences of one run: so much is lost when it is stopped, and so long its history gets."""
_IN_TIME_TICK = 24
"""Decode step of both replicas at which one comes that only shows in time: each knows its pace."""
_APART = 15
"""Requests between two occurrences of a run on Ray."""
_UNUSED = ExpectSpec.model_validate({"within": "15s", "recover_within": "30s"})
"""Of a kind that no built-in experiment uses."""

Variants = Mapping[str, Mapping[str, tuple[Any, ...]]]
"""Values of parameters, by kind and parameter, of which every one must be seen."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Some occurrences of one kind.

    Attributes:
        number: of the part, from 0.
        seed: of the matrix.
    """

    kind: str
    number: int
    count: int
    seed: int

    @property
    def own_seed(self) -> int:
        """Seed of the run: it depends on seed, kind and number alone, so that parts can be kept."""
        return draw_u64(self.seed, "matrix", self.kind, self.number) >> 1


def parts_of(kind: str, occurrences: int, seed: int) -> tuple[Trial, ...]:
    """The runs that make so many occurrences of a kind; more of them keep the first ones."""
    size = _together(faults()[kind])
    starts = range(0, occurrences, size)
    return tuple(
        Trial(kind, number, min(size, occurrences - start), seed)
        for number, start in enumerate(starts)
    )


def _together(declared: Fault) -> int:
    """How many occurrences one run has: of what a check sees in its step `PART`.

    What serving notices about itself shows in time (a pace, a rate, a clock, an audit), and one
    occurrence is not told from the next; what needs a load of its own uses it up. Each of these
    has a run of its own.
    """
    in_time = all(one.startswith("service.") for one in declared.expect)
    return 1 if declared.scope is Scope.WORKER and (in_time or declared.load) else PART


def simulated_experiment(trial: Trial, variants: Variants) -> Experiment:
    """One kind alone against two replicas with room for pages to be freed and used again."""
    declared = faults()[trial.kind]
    # A replica that is taken costs seconds, in which the load goes on.
    requests = trial.count * (6 if declared.scope.takes_replica else 1) + 8
    first = 2 if _together(declared) > 1 else _IN_TIME_TICK
    ticks = [first + 2 * i for i in range(trial.count)]
    return _experiment(
        f"matrix-{_own_name(trial.kind)}",
        trial.own_seed,
        {"model": "tiny", "replicas": 2, "slots": 4, "pages": 96, "max_length": 320},
        load_for([declared], concurrency=6, requests=requests, max_new_tokens=8),
        _specs(trial, ticks, variants),
        together=2,
    )


def served_together(trials: Sequence[Trial]) -> tuple[tuple[Trial, ...], ...]:
    """Which of them share a run of a served model: those that need the same company, or none."""
    groups: dict[str, list[Trial]] = {}
    for one in trials:
        groups.setdefault(faults()[one.kind].company, []).append(one)
    return tuple(map(tuple, groups.values()))


def served_experiment(trials: Sequence[Trial], variants: Variants) -> Experiment:
    """Several kinds in one run of a served model, one after another, each alone or in company.

    Args:
        trials: as `served_together` groups them.
    """
    company = faults()[trials[0].kind].company
    specs, begin = [], 10
    for one in trials:
        ticks = [begin + _APART * i for i in range(one.count)]
        specs += _specs(one, ticks, variants)
        if company:
            specs.append(_company(one, company, ticks))
        begin += _APART * one.count
    takes_node = any(faults()[one.kind].scope is Scope.NODE for one in trials)
    system: dict[str, Any] = {"replicas": 2, "slots": 4, "pages": 192}
    return _experiment(
        "matrix-ray",
        trials[0].own_seed,
        {**system, "nodes": 2} if takes_node else system,
        {"concurrency": 6, "requests": begin + 20, "max_new_tokens": 16, "deadline": "100s"},
        specs,
        together=3 if company else 1,
    )


def _experiment(
    name: str,
    seed: int,
    system: Mapping[str, Any],
    load: Mapping[str, Any],
    specs: Sequence[Mapping[str, Any]],
    *,
    together: int,
) -> Experiment:
    document = {
        "apiVersion": "chaos/v1",
        "kind": "Experiment",
        "name": name,
        "hypothesis": "Alone, this fault fires, is seen by a detector that means it, and heals.",
        "seed": seed,
        "system": dict(system),
        "workload": {"prompts": "builtin/golden-24", "abort_ratio": 0.0, **load},
        "steady_state": {"warmup": 2, "window": "200ms", "good_windows": 1},
        "faults": list(specs),
        "safety": {
            "scope": "cluster_destructive",
            "max_concurrent_faults": together,
            "max_targets": 1.0,
            "keep_alive": 1,
            "max_duration": "24h",
            "ttl": "30s",
        },
    }
    return parse_experiment(document, name=name)


def _specs(trial: Trial, ticks: Sequence[int], variants: Variants) -> list[dict[str, Any]]:
    """The kind with each of its variants in turn, as far as there are occurrences."""
    declared = faults()[trial.kind]
    clock = "decode_step" if declared.scope is Scope.WORKER else "request"
    chosen, size = variants_of(declared, variants), _together(declared)
    specs = []
    for i, params in enumerate(chosen):
        mine = [
            tick for at, tick in enumerate(ticks) if (trial.number * size + at) % len(chosen) == i
        ]
        if mine:
            specs.append(
                {
                    "id": _own_name(trial.kind) + (f"-{i}" if len(chosen) > 1 else ""),
                    "kind": trial.kind,
                    "params": params,
                    "when": {"clock": clock, "at": mine},
                    "expect": _expect(declared),
                }
            )
    return specs


def _company(trial: Trial, kind: str, ticks: Sequence[int]) -> dict[str, Any]:
    """Another fault on each replica, a few times soon after each of the trial's own."""
    return {
        "id": f"{_own_name(trial.kind)}-company",
        "kind": kind,
        "target": {"replica": "each"},
        "when": {"clock": "request", "at": [tick + 3 * i for tick in ticks for i in (1, 2, 3)]},
        "expect": {"within": "20s"},
    }


def variants_of(declared: Fault, variants: Variants) -> tuple[dict[str, Any], ...]:
    """What a kind is tried with: each value of each drawn parameter, else as it is used."""
    drawn = {
        name: values
        for name, values in variants.get(declared.id, {}).items()
        if name in declared.params
    }
    if not drawn:
        used = _used().get(declared.id)
        return (dict(used.params) if used is not None else {},)
    mixed = itertools.product(*drawn.values())
    return tuple(dict(zip(drawn, values, strict=True)) for values in mixed)


def _expect(declared: Fault) -> dict[str, Any]:
    """How soon it must be seen and be over, as the built-in experiments have it."""
    used = _used().get(declared.id)
    expect = used.expect if used is not None else _UNUSED
    return {
        "detect": "required" if declared.expect else "optional",
        "within": f"{expect.within_s}s",
        "recover_within": f"{expect.recover_within_s}s",
    }


@cache
def _used() -> Mapping[str, FaultSpec]:
    """Each kind as a built-in experiment uses it, the first by name that does."""
    found: dict[str, FaultSpec] = {}
    for name in builtin_experiments():
        for spec in load_experiment(name).faults:
            found.setdefault(spec.kind, spec)
    return found


def _own_name(kind: str) -> str:
    return kind.replace(".", "-").replace("_", "-")
