"""What a proof hands back: figures for the table, and findings where it failed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.helm.gate.rule import Finding

Figure = int | float | str


@dataclass(frozen=True, slots=True)
class Proof:
    """The outcome of one proof.

    Attributes:
        name: of its module.
        says: one line with the figure that people look for.
        figures: for check.json.
        findings: what was wrong; none means that it holds.
        remarks: what a reader of the figure must know besides, a line each.
        seconds: how long it took, beside what else ran.
    """

    name: str
    says: str
    figures: Mapping[str, Figure] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    remarks: tuple[str, ...] = ()
    seconds: float = 0

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.findings
