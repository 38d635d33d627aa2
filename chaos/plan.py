"""From a spec to its occurrences: each drawn from its own stream, so removing one moves none."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.chaos.contract import Fault, faults
from tocsin.chaos.spec import Experiment, FaultSpec
from tocsin.core.draw import draw_below, draw_u64, draw_unit
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope


@dataclass(frozen=True, slots=True)
class Expectation:
    """What must follow one occurrence; see `spec.ExpectSpec`."""

    detect: str
    detectors: tuple[str, ...]
    within_s: float
    severity: str
    reaction: str
    recover_within_s: float


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One planned injection.

    Attributes:
        id: `<fault id>@<n>`.
        fault: id of the fault in the spec; kind: id of its declaration.
        clock: `request` (requests sent) or `decode_step` (steps of the replica since the start).
        at: the tick of that clock from which it is due.
        replica: index of the replica, in the system's order at the start; 0 for the client.
        seed: private random number.
    """

    id: str
    fault: str
    kind: str
    n: int
    scope: Scope
    clock: str
    at: int
    replica: int
    seed: int
    params: Mapping[str, Any]
    expect: Expectation


@dataclass(frozen=True, slots=True)
class Plan:
    """All occurrences of a run, in order of clock and tick.

    Attributes:
        digest: SHA-256, hexadecimal, of seed, workload, number of replicas and occurrences; the
            profile is not part of it: the same plan is run with checks on and off.
    """

    experiment: str
    seed: int
    digest: str
    occurrences: tuple[Occurrence, ...]


def make_plan(spec: Experiment, catalogue: Mapping[str, Fault] | None = None) -> Plan:
    """Expand an experiment.

    Args:
        spec: as `spec_file.load_experiment` returns it, defaults filled in.
        catalogue: known faults by id; None: the declared ones.

    Raises:
        SpecError: a fault has no occurrence at all (a stop before its start).
    """
    known = faults() if catalogue is None else catalogue
    occurrences: list[Occurrence] = []
    for i, fault in enumerate(spec.faults):
        mine = _expand(spec, fault, known[fault.kind].scope)
        if not mine:
            raise SpecError(
                f"faults[{i}].when: {fault.id} has no occurrence; "
                "raise `stop`, `count` or `probability`"
            )
        occurrences += mine
    occurrences.sort(key=lambda one: (one.clock, one.at, one.id))
    return Plan(spec.name, spec.seed, _digest(spec, occurrences), tuple(occurrences))


def redraw(spec: Experiment, recorded: Sequence[Occurrence]) -> list[Occurrence]:
    """What the seed draws for the faults that a recorded plan holds; needs no catalogue.

    Args:
        spec: of the run. recorded: its occurrences, which know the scope of their fault.
    """
    scopes = {one.fault: one.scope for one in recorded}
    return [
        occurrence
        for fault in spec.faults
        if fault.id in scopes
        for occurrence in _expand(spec, fault, scopes[fault.id])
    ]


def as_json(occurrence: Occurrence) -> dict[str, Any]:
    """The occurrence as JSON-safe data with a fixed order of keys."""
    document = dataclasses.asdict(occurrence)
    document["params"] = dict(sorted(occurrence.params.items()))
    return document


def from_json(document: Mapping[str, Any]) -> Occurrence:
    """The inverse of `as_json`."""
    expect = dict(document["expect"])
    expect["detectors"] = tuple(expect["detectors"])
    return Occurrence(
        **{**document, "scope": Scope(document["scope"]), "expect": Expectation(**expect)}
    )


def plan_table(plan: Plan) -> str:
    """The plan as a table for the terminal."""
    header = ("occurrence", "kind", "when", "replica", "must be seen by", "within")
    rows = [
        (
            one.id,
            one.kind,
            f"{one.clock} {one.at}",
            str(one.scope) if one.scope.aimless else str(one.replica),
            f"{' or '.join(one.expect.detectors)}"
            if one.expect.detect == "required"
            else f"({one.expect.detect})",
            f"{one.expect.within_s:g} s",
        )
        for one in plan.occurrences
    ]
    body = _columns([header, *rows])
    kinds = len({one.kind for one in plan.occurrences})
    return (
        f"{plan.experiment}: seed {plan.seed}, plan {plan.digest[:12]}, "
        f"{len(rows)} occurrences of {kinds} kinds\n{body}"
    )


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _expand(spec: Experiment, fault: FaultSpec, scope: Scope) -> list[Occurrence]:
    """Occurrences of one fault; n counts ticks and, for `each`, replicas."""
    found: list[Occurrence] = []
    n = 0
    for tick in _ticks(fault):
        for replica in _replicas(spec, fault, scope, n):
            fires = draw_unit(spec.seed, fault.id, n, "fires") < fault.when.probability
            if fires and (fault.when.only is None or n in fault.when.only):
                found.append(_occurrence(spec, fault, scope, n, tick, replica))
            n += 1
    return found


def _ticks(fault: FaultSpec) -> Sequence[int]:
    when = fault.when
    if when.every is None:
        return when.at
    end = when.stop + 1 if when.stop is not None else when.start + when.every * (when.count or 0)
    return range(when.start, end, when.every)[: when.count]


def _replicas(spec: Experiment, fault: FaultSpec, scope: Scope, n: int) -> tuple[int, ...]:
    if scope.aimless:
        return (0,)
    wanted = fault.target.replica
    if wanted == "each":
        return tuple(range(spec.system.replicas))
    if wanted == "one":
        return (draw_below(spec.system.replicas, spec.seed, fault.id, n, "replica"),)
    return (wanted,)


def _occurrence(
    spec: Experiment, fault: FaultSpec, scope: Scope, n: int, tick: int, replica: int
) -> Occurrence:
    jitter = fault.when.jitter
    shift = draw_below(2 * jitter + 1, spec.seed, fault.id, n, "jitter") - jitter
    expect = fault.expect
    return Occurrence(
        id=f"{fault.id}@{n}",
        fault=fault.id,
        kind=fault.kind,
        n=n,
        scope=scope,
        clock=fault.when.clock,
        at=max(0, tick + shift),
        replica=replica,
        seed=draw_u64(spec.seed, fault.id, n, "seed"),
        params=dict(fault.params),
        expect=Expectation(
            detect=expect.detect,
            detectors=expect.detectors,
            within_s=expect.within_s,
            severity=str(expect.severity or ""),
            reaction=expect.reaction,
            recover_within_s=expect.recover_within_s,
        ),
    )


def _digest(spec: Experiment, occurrences: Sequence[Occurrence]) -> str:
    document = {
        "seed": spec.seed,
        "replicas": spec.system.replicas,
        "workload": spec.workload.model_dump(mode="json"),
        "occurrences": [as_json(one) for one in occurrences],
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
