"""A recorded run again, in the mode that it ran in."""

from dataclasses import dataclass
from pathlib import Path

from tocsin.chaos.case import Case
from tocsin.chaos.judge import judge
from tocsin.chaos.plan import make_plan
from tocsin.chaos.store import load_case
from tocsin.chaos.verdict import RunVerdict
from tocsin.core.errors import SpecError
from tocsin.ray_jobs.sim import SIM
from tocsin.ray_jobs.sim.ending import recurrence, violation


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run of the store, and the violation that is meant.

    Attributes:
        number: from 1, in the order of the verdict; None: the whole run is meant.
    """

    run_dir: Path
    case: Case
    verdict: RunVerdict
    number: int | None

    @property
    def simulated(self) -> bool:
        """Whether it ran in simulation."""
        return self.case.facts.get("mode") == SIM

    @property
    def model(self) -> str:
        """What its simulated replicas served."""
        return str(self.case.facts.get("sim_model", "tiny"))

    @property
    def store(self) -> Path:
        """The store that it is in."""
        return self.run_dir.parent.parent

    @property
    def arguments(self) -> str:
        """How to replay it, for the report of the replay."""
        number = f"#{self.number}" if self.number is not None else ""
        return f"tocsin chaos replay {self.run_dir}{number}"


def recorded_run(text: str) -> Recorded:
    """The run that `RUN` or `RUN#violation` names.

    Raises:
        SpecError: there is no whole run, or no such violation.
    """
    name, mark, digits = text.partition("#")
    if mark and not digits.isdecimal():
        raise SpecError(f"{text}: found #{digits}, expected the number of a violation, from 1")
    run_dir = Path(name).resolve()
    case = load_case(run_dir)
    verdict = judge(case)
    number = int(digits) if mark else None
    if number is not None:
        violation(verdict, number)
    return Recorded(run_dir, case, verdict, number)


def same_plan(one: Recorded) -> None:
    """See that the recorded experiment still makes the recorded plan.

    Raises:
        SpecError: it makes another one.
    """
    plan = make_plan(one.case.spec)
    if plan.digest != one.case.plan.digest:
        raise SpecError(
            f"{one.run_dir}: its experiment makes plan {plan.digest[:12]} now, recorded is "
            f"{one.case.plan.digest[:12]}: the drawing has changed since; replay it with the "
            "version that its manifest names"
        )


def told_again(one: Recorded, again: RunVerdict, *, exact: bool) -> tuple[bool, str]:
    """Whether the violation that is meant occurred again, and that in words.

    Args:
        exact: it must be the same request or occurrence; else the same property suffices.
    """
    if one.number is None:
        return True, f"it was {one.verdict.conclusion}, now it is {again.conclusion}"
    property_id, found = violation(one.verdict, one.number)
    how = recurrence(again, property_id, found)
    words = {
        "exactly": "occurred again",
        "elsewhere": "did not occur again, the property was violated elsewhere",
        "": "did not occur again",
    }[how]
    return how == "exactly" or (bool(how) and not exact), f"#{one.number} {property_id} {words}"
