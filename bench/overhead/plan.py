"""Which steps are measured: the full plan, and the part of it that ten minutes allow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tocsin.bench.overhead.schema import DtypeName, Mode, PhaseName
from tocsin.core.errors import SpecError

POSITIONS = {1: 512, 8: 512, 32: 256}
"""Batch → keys that a decode step sees, its own among them."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of step.

    Attributes:
        subject: the model as Transformers runs it, or the reference engine.
        positions: keys that a query can see; in prefill also the tokens of the step.
        layers: decoder layers; None: all of the model.
        pairs_min, pairs_max: rounds; between them, as many as the quartiles need.
        share: part of the plan's time, in no unit.
    """

    subject: Literal["transformers", "engine"]
    mode: Mode
    dtype: DtypeName
    phase: PhaseName
    batch: int
    positions: int
    layers: int | None
    pairs_min: int
    pairs_max: int
    share: float

    @property
    def tokens(self) -> int:
        """Tokens of each row in one step."""
        return self.positions if self.phase == "prefill" else 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Cases in order, and the time for all of them; None: as long as it takes."""

    name: Literal["quick", "full"]
    cases: tuple[Case, ...]
    budget_s: float | None


COMPILED_LAYERS = {"quick": 4, "full": 6}
"""Decoder layers of a compiled model, besides embedding and head.

A detector that reads each operator's output apart from the others has kernels of its own for each
layer, and the C++ compiler takes some 10 s of a core for the kernels of one.
"""

FULL_BUDGET_S = 2580.0
"""43 minutes: each case makes its least number of rounds, and as many more as are left."""


def full() -> Plan:
    """Everything: decode at batch 1, 8 and 32, prefill of 512, both modes, both dtypes."""
    dtypes: tuple[DtypeName, ...] = ("fp32", "bf16")
    modes: tuple[Mode, ...] = ("eager", "compiled")
    steps: tuple[tuple[PhaseName, int], ...] = (
        ("decode", 1),
        ("decode", 8),
        ("decode", 32),
        ("prefill", 1),
    )
    cases: list[Case] = []
    for mode in modes:
        for dtype in dtypes:
            for phase, batch in steps:
                most = 40 if phase == "decode" else 12
                case = _case(mode, dtype, phase, batch, 8 if phase == "prefill" else 12, most)
                slow = phase == "prefill" or batch == 32 or mode == "compiled"
                layers = COMPILED_LAYERS["full"] if mode == "compiled" else None
                cases.append(replace(case, layers=layers, share=2.0 if slow else 1.0))
    engine = replace(_case("eager", "fp32", "decode", 8, 12, 40), subject="engine", positions=512)
    cases.insert(4, engine)
    cases.insert(9, replace(engine, dtype="bf16"))
    # A CPU without bfloat16 arithmetic needs a quarter of an hour for each: nobody waits for them.
    cases.sort(key=lambda case: case.phase == "prefill" and case.dtype == "bf16")
    return Plan("full", tuple(cases), FULL_BUDGET_S)


def quick() -> Plan:
    """The part of it that two busy cores finish in ten minutes.

    Eager float32; of bf16 the decode step at batch 8; compiled the same step in float32. A prefill
    runs a third of the layers, a compiled model four, because all of them take longer than
    everything else; the engine has fewer positions, because filling them takes longer than its
    steps. What a case leaves of its time goes to those behind it, so the one that must be compiled
    comes last.
    """
    compiled = _case("compiled", "fp32", "decode", 8, 5, 40, share=14)
    cases = (
        _case("eager", "fp32", "decode", 8, 5, 25, share=4),
        _case("eager", "fp32", "decode", 1, 5, 25, share=2),
        _case("eager", "fp32", "decode", 32, 3, 15, share=3),
        replace(_case("eager", "fp32", "prefill", 1, 3, 9, share=3), layers=10),
        _case("eager", "bf16", "decode", 8, 3, 25, share=4),
        replace(
            _case("eager", "fp32", "decode", 8, 5, 25, share=3), subject="engine", positions=64
        ),
        replace(compiled, layers=COMPILED_LAYERS["quick"]),
    )
    return Plan("quick", cases, 520.0)


def only(
    plan: Plan,
    modes: Sequence[str],
    dtypes: Sequence[str],
    phases: Sequence[str],
    batches: Sequence[int],
) -> Plan:
    """The cases that a person asked for; an empty list asks for all.

    Raises:
        SpecError: no case is left.
    """
    kept = tuple(
        case
        for case in plan.cases
        if (not modes or case.mode in modes)
        and (not dtypes or case.dtype in dtypes)
        and (not phases or case.phase in phases)
        and (not batches or case.batch in batches)
    )
    if not kept:
        known = sorted({(case.mode, case.dtype, case.phase, case.batch) for case in plan.cases})
        listed = ", ".join("/".join(str(word) for word in case) for case in known)
        raise SpecError(
            f"bench: no step of the {plan.name} plan is left by these options, expected one of "
            f"{listed}; ask for less, or leave QUICK out"
        )
    return replace(plan, cases=kept)


def _case(
    mode: Mode,
    dtype: DtypeName,
    phase: PhaseName,
    batch: int,
    pairs_min: int,
    pairs_max: int,
    share: float = 1.0,
) -> Case:
    positions = 512 if phase == "prefill" else POSITIONS[batch]
    return Case(
        "transformers", mode, dtype, phase, batch, positions, None, pairs_min, pairs_max, share
    )
