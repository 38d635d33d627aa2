"""What a campaign consists of: shards that are done one by one, in any order, on any machine."""

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

import tocsin.core
from tocsin.bench.campaign.alarms import PATHS
from tocsin.bench.campaign.quotas import sequence
from tocsin.bench.campaign.sites import Fault
from tocsin.core.errors import SpecError

Kind = Literal["coverage", "pages", "state", "alarms", "repair"]
KINDS: tuple[Kind, ...] = ("coverage", "pages", "state", "repair", "alarms")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ON_TRIAL = ("core", "checker", "engine", "bench/campaign", "bench/competitors")
_SOURCES = frozenset({".py", ".h", ".cpp"})
_FORMAT = 2  # grows when a shard's record or its draws change, so that old ones are not used


class Campaign(BaseModel):
    """Sizes and seed; two campaigns with equal ones make the same trials."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    seed: int = 1
    model: str = "smollm2-135m"
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    """Of coverage, pages, state and repair."""
    rows: int = Field(default=32, ge=1, le=64)
    """Trials of one batch."""
    horizon: dict[str, PositiveInt] = {"fp32": 6, "bf16": 4}
    """Steps after a fault in which its harm is looked for, its own included, by dtype. A pilot
    found 116 harmful faults within 6 steps in fp32 and 5 more within 8; 34 in bf16, all within 2.
    What does harm later is benign here, and never counts as caught."""
    starts: tuple[int, ...] = (1, 4, 9)
    """Decode steps at which faults begin."""
    prompt: int = Field(default=34, ge=2)
    """Tokens of a prompt; chunk: of them prefilled last, in the step that prefill faults hit."""
    chunk: int = Field(default=8, ge=1)
    worlds: int = Field(default=2, ge=1)
    """Golden runs of a dtype, each of other prompts; the batches of a phase are shared out."""
    decode_batches: dict[str, NonNegativeInt] = {"fp32": 132, "bf16": 168}
    """By dtype, likewise `prefill_batches`: in bf16 a third fewer faults are harmful, the rest of
    them change a near tie."""
    prefill_batches: dict[str, NonNegativeInt] = {"fp32": 24, "bf16": 24}
    guard_every: int = Field(default=2, ge=1)
    """Of so many pairs of batches one is shown to profile `guard`, likewise to competitors: their
    coverage is far from 1, so that fewer cases tell it."""
    rivals_every: int = Field(default=4, ge=1)
    alone_max: int = Field(default=2, ge=0)
    """Harmful trials a batch that competitors without row flags are shown."""
    page_shards: int = Field(default=10, ge=0)
    """Of each dtype, likewise below; page_flips: of one shard."""
    page_flips: int = Field(default=520, ge=1)
    state_shards: int = Field(default=3, ge=0)
    state_faults: int = Field(default=210, ge=1)
    repair_shards: dict[str, NonNegativeInt] = {"fp32": 15, "bf16": 4}
    """By dtype: a step in bfloat16 takes a CPU without such instructions two to three times as
    long, and a repair is one of either."""
    repair_faults: int = Field(default=64, ge=1)
    alarm_shards: dict[str, NonNegativeInt] = {"fp32": 22, "bf16": 3, "fp16": 3}
    """By dtype, of each attention path; alarm_steps: decode steps of one."""
    alarm_rows: tuple[PositiveInt, ...] = (32, 8, 1, 32, 32)
    """Rows of the shards of a path, in turn."""
    alarm_prompt: int = Field(default=16, ge=1)
    """Tokens; a prefill has as many evaluations as a decode step and takes longer."""
    alarm_steps: int = Field(default=48, ge=1)
    slots: int = Field(default=4, ge=2)
    """Of the engine in pages, state and repair."""

    @property
    def digest(self) -> str:
        """Names the trials and the code that is on trial: 12 hex digits."""
        text = f"{_FORMAT} {code_digest()} {self.model_dump_json()}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def code_digest() -> str:
    """Names the source of checks, engine and campaign: other code has other results."""
    root = Path(tocsin.core.__file__).parent.parent
    found = hashlib.sha256()
    for folder in _ON_TRIAL:
        for path in sorted((root / folder).resolve().rglob("*")):
            if path.suffix in _SOURCES:
                found.update(path.name.encode())
                found.update(path.read_bytes())
    return found.hexdigest()[:12]


def quick(seed: int = 1) -> Campaign:
    """A tenth of an hour on two busy cores: every table, wide intervals."""
    return Campaign(
        seed=seed,
        horizon={"fp32": 4, "bf16": 3},
        starts=(1, 3, 6),
        prompt=22,
        worlds=1,
        decode_batches={"fp32": 8, "bf16": 8},
        prefill_batches={"fp32": 2, "bf16": 1},
        alone_max=1,
        page_shards=1,
        page_flips=256,
        state_shards=1,
        state_faults=70,
        repair_shards={"fp32": 1},
        repair_faults=8,
        alarm_shards={"fp32": 2, "bf16": 1, "fp16": 1},
        alarm_rows=(8, 1),
        alarm_steps=6,
    )


class Shard(BaseModel):
    """One unit of work.

    Attributes are what its key is made of; `path` and `rows` matter to clean runs only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    dtype: str
    number: int
    phase: str = ""
    path: str = ""
    rows: int = 0

    @property
    def key(self) -> str:
        """Names the shard: `coverage/bf16/decode/0007`."""
        return f"{self.lane}/{self.number:04d}"

    @property
    def lane(self) -> str:
        """What the shards share that take about as long: `coverage/bf16/decode`."""
        parts = (self.kind, self.dtype, self.phase, self.path, str(self.rows or ""))
        return "/".join(filter(None, parts))


def trial_of(key: str) -> tuple[Shard, int]:
    """The coverage shard and row of a trial's key, `coverage/bf16/decode/0007/12`.

    Raises:
        SpecError: not such a key.
    """
    found = re.fullmatch(r"coverage/(\w+)/(decode|prefill)/(\d{4})/(\d{2})", key)
    if found is None or found[1] not in DTYPES:
        raise SpecError(
            f"campaign: the trial is {key!r}, expected a key such as coverage/bf16/decode/0007/12; "
            "copy one from the table or from coverage_detail.json"
        )
    shard = Shard(kind="coverage", dtype=found[1], number=int(found[3]), phase=found[2])
    return shard, int(found[4])


def shards_of(campaign: Campaign, kinds: tuple[str, ...] = KINDS) -> tuple[Shard, ...]:
    """All shards, kinds and dtypes mixed so that the first of them say something of each."""
    lanes = [list(lane) for kind in KINDS if kind in kinds for lane in _lanes(campaign, kind)]
    longest = max(map(len, lanes), default=0)
    placed = [
        (index / len(lane) * longest, number, shard)
        for number, lane in enumerate(lanes)
        for index, shard in enumerate(lane)
    ]
    return tuple(shard for _, _, shard in sorted(placed, key=lambda one: one[:2]))


def _lanes(campaign: Campaign, kind: str) -> Iterator[list[Shard]]:
    if kind == "alarms":
        for dtype, count in campaign.alarm_shards.items():
            for path in PATHS:
                yield [
                    Shard(kind="alarms", dtype=dtype, number=number, path=path, rows=rows)
                    for number, rows in zip(range(count), cycle(campaign.alarm_rows), strict=False)
                ]
        return
    for dtype in campaign.dtypes:
        if kind == "coverage":
            for phase, sizes in (
                ("decode", campaign.decode_batches),
                ("prefill", campaign.prefill_batches),
            ):
                yield [
                    Shard(kind="coverage", dtype=dtype, number=number, phase=phase)
                    for number in range(sizes.get(dtype, 0))
                ]
        elif kind == "pages":
            yield [Shard(kind="pages", dtype=dtype, number=n) for n in range(campaign.page_shards)]
        elif kind == "state":
            yield [Shard(kind="state", dtype=dtype, number=n) for n in range(campaign.state_shards)]
        else:
            yield [
                Shard(kind="repair", dtype=dtype, number=n)
                for n in range(campaign.repair_shards.get(dtype, 0))
            ]


def faults_of(campaign: Campaign, shard: Shard) -> tuple[Fault, ...]:
    """The faults of a coverage shard, one a row; the shards of a phase go through the sequence."""
    drawn = sequence()
    first = shard.number * campaign.rows
    return tuple(
        Fault(*drawn[(first + row) % len(drawn)], row, campaign.seed, f"{shard.key}/{row:02d}")
        for row in range(campaign.rows)
    )


def world_number(campaign: Campaign, shard: Shard) -> int:
    """Number of the golden run of a coverage shard: both phases move on at the same time."""
    decode = shard.phase == "decode"
    sizes = campaign.decode_batches if decode else campaign.prefill_batches
    batches = sizes.get(shard.dtype) or 1
    return min(shard.number * campaign.worlds // batches, campaign.worlds - 1)
