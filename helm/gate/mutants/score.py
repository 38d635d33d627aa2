"""Seeded faults against the gate: how many it sees, and which it does not."""

import multiprocessing
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.helm.gate.mutants.gate import EQUIVALENT, SURVIVED, Gate, Outcome
from tocsin.helm.gate.mutants.operators import Mutant, mutants

SEED = 20
TARGET = 0.95
_GATES: list[Gate] = []
"""The gate of this process; forked workers find what the first one has learnt."""


@dataclass(frozen=True, slots=True)
class Score:
    """What became of a sample of mutants."""

    outcomes: tuple[Outcome, ...]
    known: int

    @property
    def caught(self) -> int:
        """Seen by some rule."""
        return sum(one.caught for one in self.outcomes)

    @property
    def equivalent(self) -> int:
        """That change no rendered byte of the whole matrix: there is nothing to see."""
        return sum(one.by == EQUIVALENT for one in self.outcomes)

    @property
    def survivors(self) -> tuple[Outcome, ...]:
        """That change something, and nobody says so."""
        return tuple(one for one in self.outcomes if one.by == SURVIVED)

    @property
    def share(self) -> float:
        """Caught, of those that can be."""
        return self.caught / max(1, len(self.outcomes) - self.equivalent)

    def report(self) -> dict[str, Any]:
        """For mutants.json."""
        by_operator = Counter(one.mutant.operator for one in self.outcomes)
        return {
            "seed": SEED,
            "known": self.known,
            "mutants": len(self.outcomes),
            "caught": self.caught,
            "equivalent": self.equivalent,
            "survived": len(self.survivors),
            "score": round(self.share, 4),
            "operators": dict(sorted(by_operator.items())),
            "survivors": [one.mutant.name for one in self.survivors],
            "outcomes": [{"mutant": one.mutant.name, "by": one.by} for one in self.outcomes],
        }


def sample(known: Sequence[Mutant], count: int, seed: int = SEED) -> list[Mutant]:
    """A seeded choice in which every operator has its turn, the rare ones with all they have."""
    draw = random.Random(seed)
    queues: dict[str, list[Mutant]] = {}
    for one in known:
        queues.setdefault(one.operator, []).append(one)
    for queue in queues.values():
        draw.shuffle(queue)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(queues.values()):
        for name in sorted(queues):
            if queues[name] and len(chosen) < count:
                chosen.append(queues[name].pop())
    return chosen


def learn(chart: Path) -> None:
    """Render and judge the chart as it is, once a process and before the workers are forked.

    Raises:
        SpecError: helm refuses one of the value sets.
    """
    if not any(gate.chart == chart for gate in _GATES):
        gate = Gate(chart)
        gate.learn()
        _GATES[:] = [gate]


def score(chart: Path, count: int, *, processes: int = 2, seed: int = SEED) -> Score:
    """Judge a sample of the chart's mutants.

    Args:
        count: mutants in the sample.
        processes: that share the work; they are forked when the gate has learnt the chart.
    """
    known = mutants(chart)
    chosen = sample(known, count, seed)
    learn(chart)
    if processes == 1:
        return Score(tuple(map(_judge, chosen)), len(known))
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        return Score(tuple(pool.imap(_judge, chosen, chunksize=1)), len(known))


def _judge(mutant: Mutant) -> Outcome:
    return _GATES[0].judge(mutant)
