"""Paired, interleaved rounds: every variant once, against the bare step of its round."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the step.

    Attributes:
        name, profile: of its row.
        run: one step, timed.
        prepare: puts back what the last step changed; not timed.
        note: what a reader of its row must know.
        close: detaches it.
    """

    name: str
    profile: str
    run: Callable[[], object]
    prepare: Callable[[], None]
    note: str = ""
    close: Callable[[], None] = lambda: None


@dataclass(slots=True)
class Samples:
    """(CPU, wall) seconds of each variant, a list a round; variant 0 is the bare step."""

    rounds: list[list[tuple[float, float]]] = field(default_factory=list)

    @property
    def pairs(self) -> int:
        """Rounds that are whole."""
        return len(self.rounds)

    def quartiles(self, index: int) -> tuple[float, float, float]:
        """Quartiles of the ratios of CPU time."""
        return _quartiles([taken[index][0] / taken[0][0] for taken in self.rounds])

    def wall_median(self, index: int) -> float:
        """Median of the ratios of wall clock."""
        return statistics.median(taken[index][1] / taken[0][1] for taken in self.rounds)

    def bare_s(self) -> tuple[float, float]:
        """Medians of the bare step: CPU, wall."""
        cpu_s, wall_s = zip(*(taken[0] for taken in self.rounds), strict=True)
        return statistics.median(cpu_s), statistics.median(wall_s)

    def resolved(self, index: int) -> bool:
        """Whether the effect is larger than the width of the quartiles."""
        low, median, high = self.quartiles(index)
        return high - low < abs(median - 1.0)


@dataclass(slots=True)
class Rounds:
    """The loop, apart from what it measures.

    Attributes:
        draw: orders the variants of each round.
        cpu, wall: clocks in seconds.
        collect: what happens between two rounds.
    """

    draw: random.Random
    cpu: Clock = time.process_time
    wall: Clock = time.perf_counter
    collect: Callable[[], object] = gc.collect
    samples: Samples = field(default_factory=Samples)

    def run(
        self,
        variants: Sequence[Variant],
        enough: Callable[[Samples], bool],
        on_round: Callable[[int], None] = lambda pairs: None,
        settle: Callable[[], object] = lambda: None,
    ) -> Samples:
        """Rounds until it is enough; an interrupt leaves the whole rounds in `samples`.

        Args:
            variants: the bare step first.
            enough: asked after each round.
            on_round: told of the rounds so far.
            settle: done before each round, untimed.
        """
        self.samples = Samples()
        with _no_collection():
            while True:
                settle()
                self._one(variants)
                on_round(self.samples.pairs)
                if enough(self.samples):
                    return self.samples

    def _one(self, variants: Sequence[Variant]) -> None:
        order = list(range(len(variants)))
        self.draw.shuffle(order)
        taken: dict[int, tuple[float, float]] = {}
        for index in order:
            variant = variants[index]
            variant.prepare()
            wall, cpu = self.wall(), self.cpu()
            variant.run()
            taken[index] = self.cpu() - cpu, self.wall() - wall
        # One append, so that an interrupt leaves whole rounds only.
        self.samples.rounds.append([taken[index] for index in range(len(variants))])
        self.collect()


@contextmanager
def _no_collection() -> Iterator[None]:
    """The collector rests inside a round, and does not look at what was there before."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """With one value, that value three times."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high
