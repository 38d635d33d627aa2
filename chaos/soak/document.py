"""`soak.json`: the windows of a soak, and what they come to."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT: Literal["tocsin.soak/1"] = "tocsin.soak/1"


class _Model(BaseModel):
    """Frozen; a key that is not known is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Window(_Model):
    """One judged run of a soak.

    `processes` holds readings of proc(5) at its end by process: rss_bytes, shm_bytes, fds, threads.
    """

    index: int
    name: str
    kinds: tuple[str, ...] = Field(description="faults that were drawn")
    verdict: str
    exit_code: int
    sentence: str
    requests: int = 0
    compared: int = Field(
        default=0, description="answers that were compared with their golden decode"
    )
    tokens: int = 0
    planned: int = 0
    fired: int = 0
    detected: int = 0
    healed: int = 0
    false_alarms: int = 0
    divergences: Mapping[str, int] = Field(
        default_factory=dict, description="wrong answers by class of divergence"
    )
    cancelled: int = 0
    preempted: int = 0
    resumed: int = 0
    availability: float | None = None
    wall_s: float
    processes: Mapping[str, Mapping[str, float]] = Field(default_factory=dict)
    kept: str = Field(default="", description="file or folder by which it can be looked into")


class Trend(_Model):
    """How one reading of one process went over the windows."""

    process: str
    reading: str
    windows: int
    first: float = Field(description="median of the first windows that count")
    last: float = Field(description="median of the last ones")
    per_1000: float = Field(description="Theil-Sen slope: more for each 1,000 requests")
    verdict: Literal["steady", "leak", "unknown"]
    why: str = ""


class Soak(_Model):
    """The whole of it; written anew after each window."""

    format: Literal["tocsin.soak/1"] = FORMAT
    where: Literal["sim", "ray"]
    model: str
    seed: int
    faultless: bool
    wanted_requests: int | None
    wanted_hours: float | None
    done: bool = Field(description="false: it goes on, or was killed")
    verdict: str
    exit_code: int
    sentence: str
    requests: int
    wall_s: float
    windows: tuple[Window, ...]
    trends: tuple[Trend, ...]
