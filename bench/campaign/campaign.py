"""Works through the shards of a campaign: here, or over Ray actors; resumes where it was ended."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from tocsin.bench.campaign.journal import Journal, read
from tocsin.bench.campaign.outcome import MARGINS
from tocsin.bench.campaign.plan import Campaign, Shard
from tocsin.bench.campaign.schema import write
from tocsin.bench.campaign.summary import Summary, summarise
from tocsin.bench.campaign.widened import needed
from tocsin.bench.campaign.workshop import Loader, Workshop, load_served
from tocsin.core.errors import EnvironmentFault, SpecError

Results = Generator[tuple[str, dict[str, Any]], None, None]
"""Key and record of each finished shard."""

Progress = Callable[[int, int, str, float, float], None]
"""Told of each finished shard: done, all, its key, seconds it took, seconds left as it seems."""


def share(shards: Sequence[Shard], part: str) -> tuple[Shard, ...]:
    """Every n-th shard of each lane, from `i/n` with i from 1 to n; parts take about as long.

    Raises:
        SpecError: not of that form.
    """
    first, _, count = part.partition("/")
    if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise SpecError(
            f"campaign: --shard is {part!r}, expected i/n with i from 1 to n, such as 2/4"
        )
    mine: list[Shard] = []
    seen: Counter[str] = Counter()
    for shard in shards:
        # A lane's first one goes to another part than that of the lane before it.
        lane = list(seen).index(shard.lane) if shard.lane in seen else len(seen)
        if (lane + seen[shard.lane]) % int(count) == int(first) - 1:
            mine.append(shard)
        seen[shard.lane] += 1
    return tuple(mine)


def journal_paths(folder: Path, campaign: Campaign) -> list[Path]:
    """Journals of all writers of a campaign."""
    return sorted(folder.glob(f"campaign-{campaign.digest}-*.jsonl"))


def work(
    campaign: Campaign,
    shards: Sequence[Shard],
    folder: Path,
    *,
    part: str = "1/1",
    until_s: float | None = None,
    actors: int = 0,
    threads: int = 1,
    progress: Progress = lambda done, total, key, took_s, left_s: None,
) -> int:
    """Do what no journal of the folder has; returns how many shards are left.

    Args:
        until_s: of the monotonic clock; no shard begins that, by its pace so far, would end after.
        actors: Ray actors that share the work; 0: it is done here.
        threads: of torch, here or in each actor.
    """
    done = read(journal_paths(folder, campaign))
    left = [shard for shard in shards if shard.key not in done]
    journal = Journal(folder / f"campaign-{campaign.digest}-{part.replace('/', 'of')}.jsonl")
    finished = len(shards) - len(left)
    results = _on_ray(campaign, left, actors, threads) if actors else _here(campaign, left, threads)
    pace = _Pace(left)
    began = time.monotonic()
    try:
        while left and (until_s is None or time.monotonic() + pace.next_s() < until_s):
            found = next(results, None)
            if found is None:
                break
            journal.append(*found)
            finished += 1
            took_s = time.monotonic() - began
            pace.done(found[0], took_s)
            progress(finished, len(shards), found[0], took_s, pace.left_s())
            began = time.monotonic()
    finally:
        results.close()
    return len(shards) - finished


def report(campaign: Campaign, folder: Path) -> Summary:
    """Add up all journals of the folder; write `coverage.json` and `coverage_detail.json`."""
    records = read(journal_paths(folder, campaign))
    summary = summarise(records)
    write(folder / "coverage.json", summary.coverage)
    detail = {
        "campaign": campaign.model_dump(),
        "digest": campaign.digest,
        "margins": {str(dtype): margin for dtype, margin in MARGINS.items()},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "products": "widened to float32" if needed() else "native",
        "shards": len(records),
        "weighed": [
            {
                "name": name,
                "profile": profile,
                "dtype": dtype,
                "harm": one.harm,
                "coverage": one.coverage,
                "low95": one.low95,
                "effective": one.effective,
            }
            for (name, profile, dtype), one in summary.weighed.items()
        ],
        "ablation": {
            dtype: {
                check: {"coverage": share, "alone": alone} for check, (share, alone) in one.items()
            }
            for dtype, one in summary.ablation.items()
        },
        "outcomes": summary.outcomes,
        "absent": summary.absent,
        "misses": summary.misses,
        **summary.extra,
    }
    path = folder / "coverage_detail.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(detail, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    return summary


class _Pace:
    """How long the shards that are left will take, by what those of their lane took so far."""

    def __init__(self, left: Sequence[Shard]) -> None:
        self._left = [shard.lane for shard in left]
        self._took_s: dict[str, list[float]] = {}

    def done(self, key: str, took_s: float) -> None:
        """The shard of this key took so long."""
        lane = key.rpartition("/")[0]
        self._left.remove(lane)
        self._took_s.setdefault(lane, []).append(took_s)

    def left_s(self) -> float:
        """Seconds of all that are left."""
        return sum(map(self._expected_s, self._left))

    def next_s(self) -> float:
        """Seconds of the next one."""
        return self._expected_s(self._left[0]) if self._left else 0.0

    def _expected_s(self, lane: str) -> float:
        """Seconds of a shard; of a lane without one done: what the lanes take on average."""
        known = self._known()
        return known.get(lane, fmean(known.values())) if known else 0.0

    def _known(self) -> dict[str, float]:
        """Seconds of a shard by lane; the first of a lane may load models and counts if alone."""
        return {lane: fmean(took[1:] or took) for lane, took in self._took_s.items()}


def _here(campaign: Campaign, shards: Sequence[Shard], threads: int) -> Results:
    torch.set_num_threads(threads)
    workshop = Workshop(campaign, load_served)
    try:
        for shard in shards:
            yield shard.key, workshop.run(shard)
    finally:
        workshop.close()


def _on_ray(campaign: Campaign, shards: Sequence[Shard], actors: int, threads: int) -> Results:
    """Shards go to whichever actor is free; ends what it started and nothing else."""
    import ray

    started = not ray.is_initialized()
    if started and os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False)
    elif started:
        cores = max(os.cpu_count() or 1, actors * threads)
        ray.init(address="local", num_cpus=cores, include_dashboard=False, log_to_driver=False)
    remote: Any = ray.remote(num_cpus=threads)(_Actor)
    settings = campaign.model_dump_json()
    crew: list[Any] = [remote.remote(settings, threads, load_served) for _ in range(actors)]
    waiting = list(shards)
    busy: dict[Any, tuple[Any, Shard]] = {}
    try:
        for actor in crew:
            if waiting:
                shard = waiting.pop(0)
                busy[actor.run.remote(shard.model_dump_json())] = (actor, shard)
        while busy:
            (ready,), _ = ray.wait(list(busy), num_returns=1)
            actor, shard = busy.pop(ready)
            if waiting:
                following = waiting.pop(0)
                busy[actor.run.remote(following.model_dump_json())] = (actor, following)
            try:
                record = ray.get(ready)
            except ray.exceptions.RayActorError as error:
                raise EnvironmentFault(
                    f"campaign: the actor of shard {shard.key} died ({error}), expected a record; "
                    "give it more memory and run the same command again: nothing done is lost"
                ) from error
            yield shard.key, record
    finally:
        for actor in crew:
            ray.kill(actor)
        if started:
            ray.shutdown()


class _Actor:
    """One Ray actor with a workshop of its own."""

    def __init__(self, campaign: str, threads: int, load: Loader) -> None:
        torch.set_num_threads(threads)
        self._workshop = Workshop(Campaign.model_validate_json(campaign), load)

    def run(self, shard: str) -> dict[str, Any]:
        """The record of one shard."""
        return self._workshop.run(Shard.model_validate_json(shard))
