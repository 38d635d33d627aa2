"""Replays a large run into a run folder: engine, online check and recorder, in some processes."""

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.chaos.case import Case, Prompt
from tocsin.chaos.plan import make_plan
from tocsin.chaos.scale.golden import Knowledge
from tocsin.chaos.scale.recorder import CHUNK_ROWS, REQUESTS, SHARDS, Recorder
from tocsin.chaos.scale.replay import GAP_NS, T0_NS, ReplayEngine, drive, synthetic_golden
from tocsin.chaos.scale.sinner import HistorySinner
from tocsin.chaos.spec import Experiment
from tocsin.chaos.store import write_frame
from tocsin.core.errors import SpecError
from tocsin.core.system import GoldenAnswer

PROMPTS = 64
SHARE = 0.001


@dataclass(frozen=True, slots=True)
class Replay:
    """What is to be replayed, and how it is recorded.

    Attributes:
        sins: number of a request → what is done to its answer.
        piece: tokens that arrive together.
        share: of the clean requests that are kept whole.
    """

    requests: int
    seed: int = 1
    sins: Mapping[int, str] = field(default_factory=dict)
    piece: int = 1
    share: float = SHARE
    abort_ratio: float = 0.05
    shards: int = SHARDS
    chunk_rows: int = CHUNK_ROWS


def replay_case(replay: Replay, golden: Mapping[str, GoldenAnswer] | None = None) -> Case:
    """The frame of a replayed run: everything but its requests.

    Args:
        golden: by prompt id; None: synthetic ones, drawn from the seed.
    """
    names = [f"p{i:04d}" for i in range(PROMPTS)]
    answers = golden or {name: synthetic_golden(name, replay.seed) for name in names}
    spec = Experiment.model_validate(
        {
            "apiVersion": "chaos/v1",
            "kind": "Experiment",
            "name": "replay",
            "seed": replay.seed,
            "workload": {"requests": replay.requests, "abort_ratio": replay.abort_ratio},
        }
    )
    return Case(
        spec=spec,
        plan=make_plan(spec),
        facts={"engine": "replay", "model": "golden", "profile": "off"},
        records=(),
        requests={},
        events=(),
        golden=answers,
        certificate={"bit_exact": True, "tau": 0.0, "cases": 0},
        occurrences=(),
        prompts={name: Prompt(name, f"Prompt {name}", f"canary{name}") for name in answers},
        t_start_ns=T0_NS,
        t_end_ns=T0_NS + replay.requests * GAP_NS,
    )


def generate(
    folder: Path,
    replay: Replay,
    *,
    jobs: int = 1,
    golden: Mapping[str, GoldenAnswer] | None = None,
) -> None:
    """Replay a run into a folder.

    Args:
        folder: made if it is not there; must hold no requests yet.
        jobs: processes, each of which replays an equal part and writes chunks of its own.

    Raises:
        SpecError: the folder holds requests already.
    """
    if (folder / REQUESTS).exists():
        raise SpecError(f"{folder}: holds requests already, expected none; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_frame(folder, replay_case(replay, golden), {"engine": "replay"})
    ends = [replay.requests * (job + 1) // jobs for job in range(jobs)]
    parts = list(zip([0, *ends[:-1]], ends, strict=True))
    if jobs == 1:
        replay_part(folder, replay, 0, *parts[0])
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        done = [
            pool.submit(replay_part, folder, replay, job, first, end)
            for job, (first, end) in enumerate(parts)
        ]
        for one in done:
            one.result()


def replay_part(folder: Path, replay: Replay, job: int, first: int, end: int) -> None:
    """One process's part of a replay: the requests from number `first` to before `end`."""
    golden = Knowledge.of(folder).answers
    sinner = HistorySinner(replay_case(replay, golden), replay.sins) if replay.sins else None
    engine = ReplayEngine(
        golden, replay.seed, abort_ratio=replay.abort_ratio, piece=replay.piece, sinner=sinner
    )
    with Recorder(
        folder,
        golden,
        seed=replay.seed,
        share=replay.share,
        shards=replay.shards,
        chunk_rows=replay.chunk_rows,
        writer=str(job),
    ) as recorder:
        drive(recorder, engine.answers(first, end - first))
