"""How a run ended badly, so that another one can be told to end in the same way."""

from dataclasses import dataclass

from tocsin.chaos.case import Conclusion, PropertyVerdict, Violation
from tocsin.chaos.judge import worst_first
from tocsin.chaos.verdict import RunVerdict
from tocsin.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class Ending:
    """The property that names a violated run; without one, what the run came to.

    Attributes:
        property_id: empty: no property was violated.
    """

    conclusion: Conclusion
    property_id: str = ""

    def of(self, verdict: RunVerdict) -> bool:
        """Whether a run failed in this way."""
        if not self.property_id:
            return verdict.conclusion is self.conclusion
        return any(one.id == self.property_id for one in _violated(verdict))

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.property_id} is violated" if self.property_id else f"it is {self.conclusion}"


def ending_of(verdict: RunVerdict, number: int | None = None) -> Ending:
    """How a run failed: what reached a user comes first.

    Args:
        number: of the violation that is meant, from 1; None: the one that names the run.

    Raises:
        SpecError: it did not fail, or has no such violation.
    """
    if number is not None:
        return Ending(Conclusion.FAIL, violation(verdict, number)[0])
    violated = _violated(verdict)
    if violated:
        named = min(violated, key=lambda one: worst_first(one.id))
        return Ending(Conclusion.FAIL, named.id)
    if verdict.conclusion is Conclusion.PASS:
        raise SpecError("the run passed, expected one that failed; there is nothing to shrink")
    return Ending(verdict.conclusion)


def violations(verdict: RunVerdict) -> list[tuple[str, Violation]]:
    """All violations with their property, numbered from 1 in this order."""
    return [(one.id, found) for one in verdict.properties for found in one.violations]


def violation(verdict: RunVerdict, number: int) -> tuple[str, Violation]:
    """The violation of a number, with its property.

    Raises:
        SpecError: there is none.
    """
    known = violations(verdict)
    if not 1 <= number <= len(known):
        raise SpecError(
            f"#{number}: the run has {len(known)} violations, expected "
            f"{f'1 to {len(known)}' if known else 'no number'}; see its report"
        )
    return known[number - 1]


def recurrence(verdict: RunVerdict, property_id: str, found: Violation) -> str:
    """How a violation occurs again in another run: `exactly`, `elsewhere`, or empty: not at all."""
    others = [other for name, other in violations(verdict) if name == property_id]
    same = [
        other
        for other in others
        if (other.request_id, other.occurrence) == (found.request_id, found.occurrence)
    ]
    if same:
        return "exactly"
    return "elsewhere" if others else ""


def _violated(verdict: RunVerdict) -> list[PropertyVerdict]:
    return [one for one in verdict.properties if one.conclusion is Conclusion.FAIL]
