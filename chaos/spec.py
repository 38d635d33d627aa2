"""An experiment as a person writes it: YAML, unknown keys refused, every value in its range."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from tocsin.core.terms import Priority, Profile

_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS_BYTES = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*$")
_ABORT = re.compile(
    r"^\s*(ok_ratio|host_mem_free)\s*<\s*(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB)?"
    r"(?:\s+for\s+(\d+(?:\.\d+)?\s*(?:ms|s|m|h)))?\s*$"
)
_NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"
DAY_S = 86_400.0
LATEST = "latest"
"""Name of the link in a store that leads to the newest run; no experiment may have it."""


def _free(value: str) -> str:
    if value == LATEST:
        raise ValueError(f"expected another name than {LATEST!r}, which leads to the newest run")
    return value


def parse_duration_s(value: object) -> float:
    """Seconds of `200ms`, `2s`, `5m`, `1h`.

    Raises:
        ValueError: anything else, also a number without its unit.
    """
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("expected a duration with its unit, such as 200ms, 2s or 5m")
    return float(match[1]) * _UNITS_S[match[2]]


Duration = Annotated[float, BeforeValidator(parse_duration_s), Field(le=DAY_S)]
Ratio = Annotated[float, Field(ge=0.0, le=1.0)]


class _Model(BaseModel):
    """Frozen; a key that is not known is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)


class SystemSpec(_Model):
    """What is served: model, replicas, and how much is checked."""

    model: str = "smollm2-135m"
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    replicas: int = Field(default=2, ge=1, le=1024)
    nodes: int = Field(default=1, ge=1, le=8, description="Ray nodes of a cluster of its own")
    slots: int = Field(default=8, ge=1, le=256)
    pages: int = Field(default=192, ge=4)
    page_size: int = Field(default=16, ge=1)
    max_length: int = Field(default=512, ge=2)
    profile: Profile = Profile.FULL


class WorkloadSpec(_Model):
    """The honest requests: which prompts, how many, how fast, how they end."""

    prompts: str = "builtin/golden-48"
    arrival: Literal["poisson", "closed"] = "closed"
    rate: float = Field(default=6.0, gt=0, description="requests a second, for poisson")
    concurrency: int = Field(default=12, ge=1, le=4096)
    requests: int = Field(default=240, ge=1)
    stream_ratio: Ratio = 0.8
    abort_ratio: Ratio = 0.05
    canaries: bool = True
    max_new_tokens: int = Field(default=16, ge=1, le=4096)
    deadline_s: Duration = Field(default=60.0, alias="deadline")


class TargetSpec(_Model):
    """Who suffers: one replica drawn by the seed, each of them, or the one of an index."""

    replica: Literal["one", "each"] | Annotated[int, Field(ge=0)] = "one"


class WhenSpec(_Model):
    """When: ticks of a logical clock, a list of them or a series."""

    clock: Literal["request", "decode_step"] = "decode_step"
    at: tuple[Annotated[int, Field(ge=0)], ...] = ()
    every: int | None = Field(default=None, ge=1)
    start: int = Field(default=0, ge=0)
    stop: int | None = Field(default=None, ge=0)
    count: int | None = Field(default=None, ge=1, le=10_000)
    probability: Ratio = 1.0
    jitter: int = Field(default=0, ge=0)
    only: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None, description="numbers of the occurrences that are left, as shrinking finds"
    )

    @model_validator(mode="after")
    def _one_way(self) -> "WhenSpec":
        if bool(self.at) == (self.every is not None):
            raise ValueError("expected either `at` (a list of ticks) or `every` (a series)")
        if self.every is not None and self.stop is None and self.count is None:
            raise ValueError("`every` without an end; add `stop` or `count`")
        if self.at and (self.stop is not None or self.count is not None or self.start):
            raise ValueError("`start`, `stop` and `count` belong to `every`, not to `at`")
        return self


class ExpectSpec(_Model):
    """What must follow: by whom the fault is seen, how soon, and how soon all is well again."""

    detect: Literal["required", "optional", "forbidden"] = "required"
    detectors: tuple[Annotated[str, Field(pattern=r"^[a-z_]+\.[a-z_]+$")], ...] = ()
    within_s: Duration = Field(default=5.0, alias="within")
    severity: Priority | None = None
    reaction: str = ""
    recover_within_s: Duration = Field(default=15.0, alias="recover_within")


class FaultSpec(_Model):
    """One fault of the experiment and all its occurrences."""

    id: str = Field(pattern=_NAME)
    kind: str
    target: TargetSpec = TargetSpec()
    params: Mapping[str, Any] = Field(default_factory=dict)
    when: WhenSpec
    expect: ExpectSpec = ExpectSpec()


class CheckSpec(_Model):
    """A property to be judged, with the limits that it takes."""

    id: str
    params: Mapping[str, float] = Field(default_factory=dict)


class AbortSpec(_Model):
    """A condition under which the run stops: `ok_ratio < 0.5 for 10s`, `host_mem_free < 1GiB`."""

    when: str

    @field_validator("when")
    @classmethod
    def _parsable(cls, value: str) -> str:
        if _ABORT.match(value) is None:
            raise ValueError(
                "expected `ok_ratio < NUMBER for DURATION` or `host_mem_free < NUMBER GiB`"
            )
        return value

    @property
    def metric(self) -> str:
        """`ok_ratio` or `host_mem_free`."""
        return self._match[1]

    @property
    def limit(self) -> float:
        """The run stops below it: a share, or bytes."""
        return float(self._match[2]) * _UNITS_BYTES.get(self._match[3] or "", 1.0)

    @property
    def window_s(self) -> float:
        """For how long it must hold; 5 s when the condition does not say."""
        return parse_duration_s(self._match[4]) if self._match[4] else 5.0

    @property
    def _match(self) -> re.Match[str]:
        match = _ABORT.match(self.when)
        if match is None:  # the validator has let only matching text in
            raise ValueError(self.when)
        return match


class SafetySpec(_Model):
    """What the run must never do, and when it stops by itself.

    `max_concurrent_faults` counts those of the clients and those beside the replicas too: with 1
    each fault has the system to itself.
    """

    scope: Literal["in_process", "isolated", "cluster_destructive"] = "in_process"
    max_concurrent_faults: int = Field(default=2, ge=1)
    max_targets: Ratio = 0.5
    keep_alive: int = Field(default=1, ge=0)
    max_duration_s: Duration = Field(default=300.0, alias="max_duration")
    ttl_s: Duration = Field(default=15.0, alias="ttl")
    abort: tuple[AbortSpec, ...] = ()

    @field_validator("ttl_s", "max_duration_s")
    @classmethod
    def _positive(cls, value: float) -> float:
        if value <= 0:
            raise ValueError("expected more than 0s")
        return value


class BudgetSpec(_Model):
    """How much harm the experiment allows."""

    silent_corruption: int = Field(default=0, ge=0)
    lost: int = Field(default=0, ge=0)
    duplicated: int = Field(default=0, ge=0)
    availability: Ratio = 0.9


class ProbeSpec(_Model):
    """A condition on the service as its clients see it; without data it is unknown."""

    name: str
    metric: Literal["ok_ratio", "ttft_ms_p99", "itl_ms_p99"]
    op: Literal["<", "<=", ">", ">="]
    value: float

    def holds(self, reading: float) -> bool:
        """Whether a reading meets the condition; a NaN never does."""
        return {
            "<": reading < self.value,
            "<=": reading <= self.value,
            ">": reading > self.value,
            ">=": reading >= self.value,
        }[self.op]


class SteadyStateSpec(_Model):
    """What normal looks like: before the faults, and how soon again after them."""

    warmup: int = Field(default=8, ge=1, description="requests that must all be right at first")
    window_s: Duration = Field(default=1.0, alias="window")
    good_windows: int = Field(default=3, ge=1)
    probes: tuple[ProbeSpec, ...] = ()


class Experiment(_Model):
    """One experiment file."""

    api_version: Literal["chaos/v1"] = Field(alias="apiVersion")
    kind: Literal["Experiment"]
    name: Annotated[str, AfterValidator(_free)] = Field(pattern=_NAME)
    hypothesis: str = ""
    seed: int = Field(ge=0, lt=2**63)
    system: SystemSpec = SystemSpec()
    workload: WorkloadSpec = WorkloadSpec()
    steady_state: SteadyStateSpec = SteadyStateSpec()
    faults: tuple[FaultSpec, ...] = ()
    checks: tuple[CheckSpec, ...] = ()
    safety: SafetySpec = SafetySpec()
    budget: BudgetSpec = BudgetSpec()

    def check_params(self, property_id: str) -> Mapping[str, float]:
        """Limits that the file sets for one property."""
        return next((check.params for check in self.checks if check.id == property_id), {})
