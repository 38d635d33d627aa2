"""The oracle's own test at scale: each sin once among many clean requests, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tocsin.chaos.scale.check import ScaleReport, check_folder
from tocsin.chaos.scale.generate import Replay, generate
from tocsin.chaos.scale.sinner import expected_flags, one_of_each


@dataclass(frozen=True, slots=True)
class Planted:
    """One sin among the clean requests.

    Attributes:
        expected, flagged: properties that must object to it, and those that did.
    """

    sin: str
    request_id: str
    expected: tuple[str, ...]
    flagged: tuple[str, ...]

    @property
    def caught(self) -> bool:
        """Flagged by the properties that name it, and by no other."""
        return self.flagged == self.expected


@dataclass(frozen=True, slots=True)
class ScaleSelfTest:
    """What a self-test comes to.

    Attributes:
        false: violations found in requests that nobody touched.
    """

    planted: tuple[Planted, ...]
    false: int
    report: ScaleReport

    @property
    def passed(self) -> bool:
        """Every sin was caught, and nothing else was found."""
        judged = not any(tally.unknown for tally in self.report.tally.values())
        return judged and not self.false and all(one.caught for one in self.planted)


def self_test(folder: Path, replay: Replay, *, jobs: int = 0) -> ScaleSelfTest:
    """Replay a run with every sin in it once, check it, and compare.

    Args:
        folder: where the run is kept.
        jobs: processes; 0: this one.
    """
    sins = one_of_each(replay.requests, replay.seed)
    generate(folder, replace(replay, sins=sins), jobs=max(1, jobs))
    return compare(sins, check_folder(folder, jobs=jobs))


def compare(sins: Mapping[int, str], report: ScaleReport) -> ScaleSelfTest:
    """What was planted against what was found."""
    expected = expected_flags()
    ids = {number: f"r{number:05d}" for number in sins}
    flagged: dict[str, list[str]] = {request: [] for request in ids.values()}
    true = 0
    for name, tally in report.tally.items():
        for request, _ in tally.first:
            if request in flagged:
                flagged[request].append(name)
                true += 1
    found = sum(tally.violations for tally in report.tally.values())
    planted = tuple(
        Planted(sin, ids[number], expected[sin], tuple(flagged[ids[number]]))
        for number, sin in sorted(sins.items())
    )
    return ScaleSelfTest(planted, found - true, report)
