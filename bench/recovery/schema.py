"""`store/bench/recovery.json`: its form, and the table of it."""

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_PATH = Path("store/bench/recovery.json")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RecoveryRow(_Strict):
    """One rung.

    Attributes:
        detected: rounds with a failure; attributed: with the right cause and action, and no other.
        as_golden: rounds whose answers are bit for bit the clean ones.
        runs_max: forward passes of the faulty step, the first included.
        steps_more_max: engine steps beyond those of a clean round.
        mttd_ms_median: from the fault to the settlement that reads the verdict.
        mttr_ms_median, mttr_ms_max: from there to the victim's next token, or its refusal.
    """

    rung: str
    remedy: str
    cause: str
    trials: int = Field(ge=1)
    detected: int = Field(ge=0)
    attributed: int = Field(ge=0)
    as_golden: int = Field(ge=0)
    runs_max: int = Field(ge=0)
    steps_more_max: int
    mttd_ms_median: float | None
    mttr_ms_median: float | None
    mttr_ms_max: float | None


class Recovery(_Strict):
    """All rungs on one model.

    Attributes:
        clean_step_ms: median of a decode step without a fault, checks included.
    """

    model: str
    clean_step_ms: float
    rows: tuple[RecoveryRow, ...]

    @property
    def good(self) -> bool:
        """Every round was attributed, and every answer that was given is the clean one."""
        return all(row.trials == row.attributed == row.as_golden for row in self.rows)


def write(path: Path, report: Recovery) -> None:
    """Replace the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report.model_dump(mode="json"), indent=2) + "\n"
    new = path.with_suffix(".json.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def table_of(report: Recovery) -> str:
    """The report for a person."""
    head = (
        "rung", "remedy", "trials", "attributed", "as golden", "runs", "steps more",
        "MTTD ms", "MTTR ms", "max",
    )  # fmt: skip
    rows = [head] + [
        (
            row.rung,
            row.remedy,
            str(row.trials),
            str(row.attributed),
            str(row.as_golden),
            str(row.runs_max),
            str(row.steps_more_max),
            *(_ms(one) for one in (row.mttd_ms_median, row.mttr_ms_median, row.mttr_ms_max)),
        )
        for row in report.rows
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.append(f"{report.model}, a clean decode step takes {report.clean_step_ms:.1f} ms")
    return "\n".join(lines)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
