"""`store/bench/coverage.json`: who caught how many of the faults that change an answer."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CoverageRow(_Frozen):
    """One detector on one kind of fault."""

    name: str
    """`tocsin`, or a competitor as it is called in `overhead.json`."""
    profile: str
    dtype: str
    """`fp32`, `bf16` or `fp16`."""
    site: str
    """Where the fault was; `all`: pooled over the sites of the headline."""
    bits: str
    """Stratum or fault model; `all`: the single-bit strata pooled as they were drawn; `uniform`:
    weighed back to uniformly chosen bits (counts as drawn, `low95` at the effective size)."""
    trials: int = Field(ge=0)
    """Faults that fired and that this detector was shown."""
    harmful: int = Field(ge=0)
    """Of them: changed a token against a clean margin, or ended in no number or an exception; for
    stored pages and state every change."""
    caught: int = Field(ge=0)
    caught_before_release: int = Field(ge=0)
    """Caught in a step at or before that of the first wrong token."""
    low95: float = Field(ge=0.0, le=1.0)
    """Wilson lower bound of caught before release."""

    @model_validator(mode="after")
    def _counts_in_order(self) -> "CoverageRow":
        if not self.caught_before_release <= self.caught <= self.harmful <= self.trials:
            raise ValueError(
                f"coverage: {self.name} at {self.site} has trials {self.trials}, harmful "
                f"{self.harmful}, caught {self.caught}, in time {self.caught_before_release}; "
                "expected none above the one before"
            )
        return self


class FalseAlarms(_Frozen):
    """Clean runs."""

    evaluations: int = Field(ge=0)
    """Ratios compared with their limits."""
    alarms: int = Field(ge=0)


class Repaired(_Frozen):
    """Transient faults under the engine's gate."""

    trials: int = Field(ge=0)
    """Faults that were seen and so repaired."""
    identical: int = Field(ge=0)
    """Of them: logits and tokens have the golden bits."""


class Coverage(_Frozen):
    """The whole file."""

    rows: tuple[CoverageRow, ...]
    false_alarms: FalseAlarms
    repaired: Repaired


def read(path: Path) -> Coverage:
    """The file, validated."""
    return Coverage.model_validate_json(path.read_text(encoding="utf-8"))


def write(path: Path, coverage: Coverage) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(coverage.model_dump_json(indent=1) + "\n", encoding="utf-8")
    part.replace(path)
