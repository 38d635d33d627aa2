"""What a person may set about the checker: profile, limits, breaker, watermarks, scrubbing."""

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tocsin.checker.journal.settings import JournalSettings
from tocsin.checker.sampling import Share
from tocsin.checker.switchboard import Level
from tocsin.core.terms import Operator, Profile

GIB = 1 << 30


class CheckerSettings(BaseModel):
    """Settings of one replica's checker; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    profile: Profile = Profile.FULL
    """Which checks run: off, guard or full."""
    thresholds: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Check id → limit → value, where they differ from the declared ones."""
    sample: Share = 0.0
    """Share of requests that are checked in full under the guard profile, as 0.01 or "1%"."""
    sample_seed: int = 0
    """Key of the hash that chooses them: the same key, the same requests on every replica."""
    rotate_steps: int = Field(default=256, ge=0)
    """Steps of one operator's turn under guard: it is checked in full for a quarter of them."""
    levels: dict[Operator, Level] = Field(default_factory=dict)
    """Operator → all, guard or numerical, where it is not checked as the profile says."""
    failures_max: int = Field(default=3, ge=1)
    """Failures in a row that open the breaker."""
    cooldown_s: float = Field(default=30.0, gt=0)
    """Seconds until an open breaker tries the first backend again."""
    degrade_free_bytes: int = Field(default=2 * GIB, ge=0)
    """Below this much free memory attention runs on the lighter backend."""
    essential_free_bytes: int = Field(default=1 * GIB, ge=0)
    """Below this much only the memory and state checks of the guard profile run."""
    recover_factor: float = Field(default=1.25, ge=1.0)
    """A watermark is left only above this multiple of it."""
    scrub_bytes: int = Field(default=1 << 20, ge=0)
    """Weight bytes whose sums are verified after each step; 0 switches scrubbing off."""
    runs_max: int = Field(default=5, ge=1, le=16)
    """Runs of one step, the first included, before a row is refused."""
    recomputes_max: int = Field(default=3, ge=0)
    """Recomputations of one request before it is refused."""
    legitimate_ratio_max: float = Field(default=8.0, ge=1.0)
    """A ratio above this is never taken for rounding, whatever two backends agree on."""
    journal: JournalSettings = Field(default_factory=JournalSettings)
    """What is written down about failures, and for how long."""

    @model_validator(mode="after")
    def _watermarks_in_order(self) -> "CheckerSettings":
        if self.essential_free_bytes > self.degrade_free_bytes:
            raise ValueError(
                f"settings: essential_free_bytes is {self.essential_free_bytes}, expected at most "
                f"degrade_free_bytes ({self.degrade_free_bytes}); lower it"
            )
        return self
