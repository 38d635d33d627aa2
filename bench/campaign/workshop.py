"""Runs shards: keeps models, golden runs and competitors between them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tocsin.chaos
from tocsin.bench.campaign import alarms, pages, repair
from tocsin.bench.campaign.plan import DTYPES, Campaign, Shard, faults_of, world_number
from tocsin.bench.campaign.serving import PREFILL_CHUNK
from tocsin.bench.campaign.subject import Subject, World, golden_world, prepared
from tocsin.bench.campaign.trial import Rival, run_batch
from tocsin.bench.campaign.widened import widened_products
from tocsin.bench.competitors.competitor import Competitor
from tocsin.bench.competitors.table import competitors
from tocsin.bench.competitors.twin import twin
from tocsin.core.errors import ContractError, EnvironmentFault
from tocsin.core.terms import Profile

Prompts = Sequence[Sequence[int]]
Loader = Callable[[str, torch.dtype], tuple[nn.Module, Prompts]]
"""`(model name, dtype) -> model, prompts`."""

_CALIBRATION_PROMPTS = 8
_WORLDS_KEPT = 2
"""Golden runs of a dtype: where one phase is at the next already, the other may still need this."""


class Workshop:
    """One process's models. A shard's record depends on the campaign alone, not on the others."""

    def __init__(
        self, campaign: Campaign, load: Loader, rivals: tuple[Competitor, ...] | None = None
    ) -> None:
        """Nothing is loaded yet.

        Args:
            rivals: competitors; None: all that there are.
        """
        self.campaign = campaign
        self._load = load
        self._competitors = competitors() if rivals is None else rivals
        self._models: dict[str, tuple[nn.Module, Prompts]] = {}
        self._subjects: dict[str, tuple[Subject, list[Rival], dict[str, str]]] = {}
        self._worlds: dict[str, dict[int, World]] = {}

    def run(self, shard: Shard) -> dict[str, Any]:
        """The record of one shard, JSON-safe."""
        with widened_products():
            return self._run(shard)

    def _run(self, shard: Shard) -> dict[str, Any]:
        if shard.kind == "coverage":
            return self._coverage(shard)
        model, prompts = self._model(shard.dtype)
        if shard.kind == "alarms":
            length = min(self.campaign.alarm_prompt, self.campaign.prompt)
            rows = alarms.prompts_of(prompts, shard.rows, length, shard.number)
            return alarms.alarm_trials(twin(model), rows, shard.path, self.campaign.alarm_steps)
        chosen = self._prompts(prompts, self.campaign.slots, shard.number)
        source = (self.campaign.seed, shard.key)
        if shard.kind == "pages":
            return pages.flip_trials(twin(model), chosen, self.campaign.page_flips, *source)
        if shard.kind == "state":
            return pages.state_trials(twin(model), chosen, self.campaign.state_faults, *source)
        short = [prompt[-PREFILL_CHUNK:] for prompt in chosen]  # one prefill step a request
        return repair.repair_trials(twin(model), short, self.campaign.repair_faults, *source)

    def close(self) -> None:
        """Restore every model."""
        for subject, rivals, _ in self._subjects.values():
            for rival in rivals:
                if rival.per_row:
                    rival.attached.detach()
            for rival in rivals:
                rival.subject.close()
                rival.attached.detach()
            subject.close()
        self._subjects.clear()
        self._worlds.clear()

    def one(self, shard: Shard, row: int) -> dict[str, Any]:
        """The record of one trial of a coverage shard, made again alone among clean rows."""
        with widened_products():
            record: dict[str, Any] = self._coverage(shard, row)["trials"][0]
        return record

    def _coverage(self, shard: Shard, row: int | None = None) -> dict[str, Any]:
        campaign = self.campaign
        subject, rivals, absent = self._subject(shard.dtype)
        world = self._world(shard, subject)
        start = 0
        if shard.phase == "decode":
            start = campaign.starts[shard.number % len(campaign.starts)]
        faults = faults_of(campaign, shard)
        pair = shard.number // 2  # two machines with every second shard have as much to do
        trials = run_batch(
            subject,
            world,
            start,
            campaign.horizon[shard.dtype],
            faults if row is None else faults[row : row + 1],
            rivals if pair % campaign.rivals_every == 0 else (),
            campaign.alone_max,
            guarded=pair % campaign.guard_every == 0,
        )
        return {"trials": [trial.as_record() for trial in trials], "absent": absent}

    def _model(self, dtype: str) -> tuple[nn.Module, Prompts]:
        if dtype not in self._models:
            model, prompts = self._load(self.campaign.model, DTYPES[dtype])
            length = self.campaign.prompt
            kept = [prompt[-length:] for prompt in prompts if len(prompt) >= length]
            if len(kept) < self.campaign.slots:
                raise ContractError(
                    f"campaign: {len(kept)} prompts have {length} tokens, expected "
                    f"{self.campaign.slots}; ask for shorter prompts"
                )
            self._models[dtype] = (prepared(model), kept)
        return self._models[dtype]

    def _prompts(self, prompts: Prompts, rows: int, number: int) -> Prompts:
        return [prompts[(number * rows + row) % len(prompts)] for row in range(rows)]

    def _subject(self, dtype: str) -> tuple[Subject, list[Rival], dict[str, str]]:
        """The model under Tocsin, and under each competitor on a twin of its own."""
        if dtype in self._subjects:
            return self._subjects[dtype]
        origin, prompts = self._model(dtype)
        calibration = [torch.tensor(list(prompts[-_CALIBRATION_PROMPTS:]))]
        rivals: list[Rival] = []
        absent: dict[str, str] = {}
        common = Subject(twin(origin), Profile.OFF)
        for competitor in self._competitors:
            try:
                rivals.append(_rival(competitor, origin, common, calibration))
            except (ContractError, EnvironmentFault) as error:
                absent[competitor.name] = str(error)
        self._subjects[dtype] = (Subject(twin(origin)), rivals, absent)
        return self._subjects[dtype]

    def _world(self, shard: Shard, subject: Subject) -> World:
        number, campaign = world_number(self.campaign, shard), self.campaign
        kept = self._worlds.setdefault(shard.dtype, {})
        if number not in kept:
            while len(kept) >= _WORLDS_KEPT:
                del kept[next(iter(kept))]
            prompts = self._prompts(self._model(shard.dtype)[1], campaign.rows, number)
            tokens = max((0, *campaign.starts)) + campaign.horizon[shard.dtype]
            subject.set_profile(Profile.FULL)
            kept[number] = golden_world(
                subject, torch.tensor([list(one) for one in prompts]), campaign.chunk, tokens
            )
        return kept[number]


def _rival(
    competitor: Competitor, origin: nn.Module, common: Subject, calibration: list[torch.Tensor]
) -> Rival:
    """Attach a competitor; those that only look, row by row, share one model and one pass.

    One that takes the place of a module's `forward` comes first: Tocsin's seams go around it.

    Raises:
        ContractError: it has nothing to look at in this model.
        EnvironmentFault: its package is missing.
    """
    if not competitor.per_row:
        own = twin(origin)
        attached = competitor.attach(own, calibration)
        subject = Subject(own, Profile.OFF)
    else:
        subject = Subject(twin(origin), Profile.OFF) if competitor.around else common
        attached = competitor.attach(subject.model, calibration)
    return Rival(competitor.name, competitor.profile, subject, attached, competitor.per_row)


def load_served(model: str, dtype: torch.dtype) -> tuple[nn.Module, Prompts]:
    """A served model and the prompts of the chaos runs, in its chat form."""
    from tocsin.engine.weights import load, prepare

    module, tokenizer = load(prepare(model), dtype)
    path = Path(tocsin.chaos.__file__).parent / "prompts" / "golden-48.json"
    texts = [one["text"] for one in json.loads(path.read_text(encoding="utf-8"))]
    prompts = []
    for text in texts:
        messages = [{"role": "user", "content": text}]
        made = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
        prompts.append(list(made if isinstance(made, list) else made["input_ids"]))
    return module, prompts
