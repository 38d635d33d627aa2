"""`store/bench/overhead.json`: its form, and reading and writing it so that it always holds."""

import os
import tempfile
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator
from pydantic import ValidationError as PydanticError

from tocsin.core.errors import EnvironmentFault, SpecError

DEFAULT_PATH = Path("store/bench/overhead.json")

CPU_TIME = "CPU time of the process"
WALL_CLOCK = "wall clock until the tokens are on the host"

Mode = Literal["eager", "compiled"]
DtypeName = Literal["fp32", "bf16"]
PhaseName = Literal["decode", "prefill"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Place(_Strict):
    """Whose figure it is and on what work."""

    name: str
    profile: str
    mode: Mode
    dtype: DtypeName
    phase: PhaseName
    batch: PositiveInt


class OverheadRow(Place):
    """Cost of a step with a detector as a multiple of the bare step of the same round.

    Attributes:
        pairs: rounds behind it.
        ratio_q25, ratio_median, ratio_q75: quartiles over the rounds; 1.0 costs nothing.
    """

    pairs: PositiveInt
    ratio_q25: PositiveFloat
    ratio_median: PositiveFloat
    ratio_q75: PositiveFloat

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.ratio_q25 <= self.ratio_median <= self.ratio_q75:
            raise ValueError("the quartiles are not in order")
        return self


class Unmeasured(Place):
    """A row that has no figure, and why; it stands in the table all the same."""

    reason: str


class Detail(Place):
    """What else was seen of a row; not part of the comparison.

    Attributes:
        wall_ratio_median: as the row's median, of wall clock.
        resolved: whether the width of the quartiles is below the effect.
        note: what a reader must know, empty when nothing.
    """

    wall_ratio_median: PositiveFloat
    resolved: bool
    note: str = ""


class Work(_Strict):
    """One kind of step, and what it costs bare.

    Attributes:
        subject: the model as Transformers runs it, or the reference engine.
        layers: decoder layers that ran.
        positions: keys that a query can see.
        bare_cpu_ms, bare_wall_ms: medians over the rounds.
    """

    subject: Literal["transformers", "engine"]
    mode: Mode
    dtype: DtypeName
    phase: PhaseName
    batch: PositiveInt
    layers: PositiveInt
    positions: PositiveInt
    pairs: PositiveInt
    bare_cpu_ms: PositiveFloat
    bare_wall_ms: PositiveFloat


class Protocol(_Strict):
    """How it was measured."""

    plan: Literal["quick", "full"]
    seed: int
    torch: str
    torch_threads: PositiveInt
    device: str
    clock: str
    pauses: str = (
        "between two rounds the garbage is collected and one bare step runs untimed; inside a "
        "round there is no collection"
    )
    rounds: str = "every variant once, order drawn anew; ratio to the bare step of the same round"


class Overhead(_Strict):
    """The whole file.

    Attributes:
        complete: False when the run was ended before its last kind of step.
    """

    rows: tuple[OverheadRow, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    details: tuple[Detail, ...] = ()
    work: tuple[Work, ...] = ()
    protocol: Protocol = Field()
    complete: bool = False


def write(path: Path, report: Overhead) -> None:
    """Put the file in its place whole: what a reader sees is the old or the new one.

    Raises:
        EnvironmentFault: the folder cannot be written.
    """
    text = report.model_dump_json(indent=1) + "\n"
    Overhead.model_validate_json(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise EnvironmentFault(
            f"bench: {path} could not be written ({error}); free some space or name another "
            "file with --output"
        ) from error


def read(path: Path) -> Overhead:
    """Read what `write` wrote.

    Raises:
        SpecError: there is no such file, or it is of another form.
    """
    try:
        return Overhead.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SpecError(f"bench: {path} cannot be read ({error}); run: make bench") from error
    except PydanticError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise SpecError(
            f"bench: {path} is not an overhead report ({place}: {first['msg']}), expected the "
            "form of tocsin.bench.overhead.schema; run: make bench"
        ) from error
