"""What one deployment is told: model, shape, profile; plain data that travels to every process."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tocsin.core.terms import Profile
from tocsin.engine.config import EngineConfig
from tocsin.engine.weights import prepare

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LOGITS_TOLD_EVERY = 4
"""In an experiment: a fingerprint for every fourth token."""
NAMES = {"smollm2-135m": "SmolLM2-135M-Instruct"}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a model is served.

    Attributes:
        path: folder with the dense weights (engine.weights.prepare); empty: each process finds
            that of `model` on its own host.
        name: under which clients see the model; empty: as `model` says.
        kv_scrub_pages: KV pages whose sums are read before a step, in turn, besides those that are
            just shared and those of a request that is about to end; 0: every page that a step
            reads, on the way where the native operators are there.
        device: where the model runs: `auto`, `cpu` or `cuda` (ray_jobs.devices).
        archive_url: where finished journal files are copied (fsspec); empty: nowhere.
        journal_prompts: whether token ids of prompts may be stored with a failure.
        logits_told_every: of how many tokens of an answer one has the fingerprint of its logits
            told; 0: none. Experiments ask for it.
    """

    path: str = ""
    model: str = "smollm2-135m"
    dtype: str = "fp32"
    profile: Profile = Profile.FULL
    replicas: int = 2
    slots: int = 8
    pages: int = 192
    page_size: int = 16
    max_length: int = 512
    threads: int = 1
    breaker_cooldown_s: float = 5.0
    archive_url: str = ""
    journal_prompts: bool = False
    name: str = ""
    device: str = "auto"
    kv_scrub_pages: int = 0
    logits_told_every: int = 0

    @property
    def served_name(self) -> str:
        """The name under which clients see the model."""
        return self.name or NAMES.get(self.model, Path(self.model).name)

    def folder(self) -> Path:
        """The folder with the weights on this host.

        Raises:
            EnvironmentFault, SpecError: there is none (engine.weights.prepare).
        """
        return Path(self.path) if self.path else prepare(self.model)

    def engine_config(self) -> EngineConfig:
        """The engine's shape."""
        return EngineConfig(
            slots=self.slots,
            pages=self.pages,
            page_size=self.page_size,
            max_model_len=self.max_length,
            torch_threads=self.threads,
            kv_scrub_pages=self.kv_scrub_pages or None,
            logits_told_every=self.logits_told_every,
        )

    def shape(self) -> dict[str, Any]:
        """What decides the bits of an answer, JSON-safe; no folder of this machine."""
        names = ("model", "dtype", "profile", "slots", "pages", "page_size", "max_length")
        return {name: value for name, value in self.as_dict().items() if name in names}

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return {**asdict(self), "profile": str(self.profile)}

    def told(self) -> dict[str, Any]:
        """What anybody may read: without the archive, whose address may hold a password."""
        told = {**self.as_dict(), "path": str(self.folder())}
        del told["archive_url"]
        return told
