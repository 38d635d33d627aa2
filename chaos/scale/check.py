"""The offline check of a whole history: all shards, and what they come to together."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.chaos.scale.shard import ShardResult, judge_shard, open_run
from tocsin.chaos.scale.tally import Tallies, merged
from tocsin.chaos.scale.worker import MEMORY_MB, JudgeShard, judge_here, judge_in_processes

REPORT = "scale.json"
_WORST_FIRST = ("fail", "unknown", "vacuous", "pass")
_EXIT = {"pass": 0, "fail": 1, "unknown": 2, "vacuous": 2}


@dataclass(frozen=True, slots=True)
class ScaleReport:
    """What a history comes to.

    Attributes:
        tally: by property; requests of a shard that died are unknown in each.
        whole: requests that were judged by their tokens.
        lost: what could not be read, a line each.
        notes: what a reader should know besides.
        cpu_s: of all processes that judged, wall_s: from the first to the last shard.
    """

    requests: int
    tokens: int
    whole: int
    outcomes: Counter[str]
    tally: Tallies
    lost: tuple[str, ...]
    notes: tuple[str, ...]
    shards: int
    cpu_s: float
    wall_s: float
    rss_mb_max: int

    @property
    def conclusion(self) -> str:
        """The worst of the properties."""
        found = {tally.conclusion for tally in self.tally.values()}
        return next(one for one in _WORST_FIRST if one in found)

    @property
    def exit_code(self) -> int:
        """0 pass, 1 violated, 2 unknown or vacuous."""
        return _EXIT[self.conclusion]

    def to_json(self) -> dict[str, Any]:
        """The content of `scale.json`."""
        return {
            "verdict": self.conclusion,
            "exit_code": self.exit_code,
            "requests": self.requests,
            "tokens": self.tokens,
            "whole": self.whole,
            "outcomes": dict(sorted(self.outcomes.items())),
            "properties": [
                {
                    "id": name,
                    "verdict": tally.conclusion,
                    "checked": tally.checked,
                    "violations": tally.violations,
                    "ties": tally.ties,
                    "first": [f"{request}: {what}" for request, what in tally.first],
                    "unknown": dict(tally.unknown),
                }
                for name, tally in self.tally.items()
            ],
            "lost": list(self.lost),
            "notes": list(self.notes),
            "shards": self.shards,
            "cpu_s": self.cpu_s,
            "wall_s": self.wall_s,
            "rss_mb_max": self.rss_mb_max,
        }


def check_folder(
    folder: Path,
    *,
    jobs: int = 0,
    memory_mb: int = MEMORY_MB,
    judge: JudgeShard = judge_shard,
) -> ScaleReport:
    """Judge a run folder: every request at the price of its 56 bytes, suspects by their tokens.

    Args:
        jobs: processes; 0: this one, without protection against a shard that dies.
        memory_mb: what each process may hold.
        judge: judges one shard; a test may pass another.

    Raises:
        SpecError: the folder holds no run.
    """
    run = open_run.__wrapped__(folder)
    began_s = time.monotonic()
    parts = (
        judge_in_processes(judge, folder, run.shards, jobs=jobs, memory_mb=memory_mb)
        if jobs
        else _here(judge, folder, run.shards)
    )
    results: list[ShardResult] = []
    died: dict[int, str] = {}
    for shard, part in parts:
        if isinstance(part, ShardResult):
            results.append(part)
        else:
            died[shard] = part
    results.sort(key=lambda one: one.shard)
    report = ScaleReport(
        requests=sum(one.requests for one in results),
        tokens=sum(one.tokens for one in results),
        whole=sum(one.whole for one in results),
        outcomes=sum((one.outcomes for one in results), Counter()),
        tally=merged(one.tally for one in results),
        lost=tuple(
            str(loss)
            for table in (run.requests, run.history)
            if table is not None
            for loss in table.lost
        ),
        notes=tuple(f"shard {shard} is unknown: {why}" for shard, why in sorted(died.items()))
        + _unfinished(run.requests is None or run.requests.closed),
        shards=run.shards,
        cpu_s=sum(one.cpu_s for one in results),
        wall_s=time.monotonic() - began_s,
        rss_mb_max=max((one.rss_mb_max for one in results), default=0),
    )
    known = run.judge.known
    _admit(report, died, known.planned if known.aborted_ns is None else 0)
    return report


def _here(judge: JudgeShard, folder: Path, shards: int) -> Iterator[tuple[int, ShardResult | str]]:
    try:
        yield from judge_here(judge, folder, shards)
    finally:
        open_run.cache_clear()


def _unfinished(closed: bool) -> tuple[str, ...]:
    if closed:
        return ()
    return ("the history was not closed: requests that were in memory at its end are lost",)


def _admit(report: ScaleReport, died: dict[int, str], planned: int) -> None:
    """What is not there is not fine: every property says what it has not seen."""
    reasons: dict[str, int] = {}
    if died:
        reasons["shards could not be judged"] = len(died)
    elif report.requests < planned:
        reasons["requests that were planned are not in the history"] = planned - report.requests
    if report.lost:
        reasons["pieces of the history are lost"] = len(report.lost)
    for tally in report.tally.values():
        for reason, count in reasons.items():
            tally.missing(reason, count)
