"""`matrix.json`: what a matrix holds, as its files are written and read back.

One `Part` is one run of one kind alone and one file; the `Matrix` is all of them added up. Counts
are of occurrences: `detectors["state.weight_sum"]` is by how many occurrences that check alarmed.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT: Literal["tocsin.matrix/1"] = "tocsin.matrix/1"


class Where(StrEnum):
    """What the fault was injected into."""

    SIM = "sim"
    RAY = "ray"
    NOWHERE = ""


class Conclusion(StrEnum):
    """What a row comes to, worst first."""

    HARM = "harm"  # a user was served something wrong, or a fault stayed
    WEAK = "weak"  # seen less often than is demanded, or alarms that belong to no fault
    INVALID = "invalid"  # an occurrence did not fire: the row proves nothing
    EMPTY = "empty"  # no detector that is meant to see it saw it at all
    CAUGHT = "caught"
    UNWATCHED = "unwatched"  # it names no detector: fired and healed, and nobody was harmed
    NOT_RUN = "not run"


class _Model(BaseModel):
    """Frozen; a key that is not known is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(_Model):
    """One run of one kind of fault alone; in Ray several kinds share a run, one at a time."""

    kind: str
    number: int = Field(ge=0, description="of the runs of this kind, from 0")
    where: Where
    seed: int = Field(description="of the matrix; the run's own is drawn from it")
    model: str = Field(description="what was served: tiny, or the name of a model")
    plan_digest: str
    code: str = Field(description="SHA-256 over the Python sources that it ran, hexadecimal")
    planned: int
    fired: int
    verified: int = Field(description="fired with evidence: the place reads otherwise")
    healed: int
    seen: int = Field(description="by a detector that is meant to, in time")
    detectors: Mapping[str, int] = Field(description="every detector that alarmed for it")
    latencies_ms: tuple[float, ...] = Field(
        description="injection to the first meant alarm; virtual time in a simulation"
    )
    false_alarms: Mapping[str, int] = Field(description="by detector: alarms of no fault")
    harm: Mapping[str, int] = Field(description="violations by property, of what reaches users")
    errors: tuple[str, ...] = Field(description="what occurrences said that did not go well")
    requests: int
    cpu_s: float = Field(description="of the simulating process; 0 in Ray")


class Row(_Model):
    """One kind of fault, all its parts added up."""

    kind: str
    where: Where
    priority: str
    expected: tuple[str, ...] = Field(description="of these at least one must see it")
    conclusion: Conclusion
    why: str = Field(default="", description="in words; empty where nothing is to be said")
    planned: int = 0
    fired: int = 0
    verified: int = 0
    healed: int = 0
    seen: int = 0
    recall: float | None = Field(default=None, description="seen / fired; null: nothing fired")
    mttd_ms_p50: float | None = None
    mttd_ms_p99: float | None = None
    detectors: Mapping[str, int] = Field(default_factory=dict)
    false_alarms: Mapping[str, int] = Field(default_factory=dict)
    harm: Mapping[str, int] = Field(default_factory=dict)
    requests: int = 0
    cpu_s: float = 0.0


class Matrix(_Model):
    """Every kind of fault that was asked for, a row each."""

    format: Literal["tocsin.matrix/1"] = FORMAT
    seed: int
    occurrences: int = Field(description="wanted of each kind in simulation")
    occurrences_on_ray: int = Field(description="wanted of each kind in Ray; 0: Ray is left out")
    model: str
    recall_least: float
    exit_code: int
    wall_s: float = Field(description="of the command that wrote this; what was done is not redone")
    code: str = Field(description="of the sources when this was written; see Part.code")
    stale: tuple[str, ...] = Field(description="kinds of which a part was made by other sources")
    rows: tuple[Row, ...]
