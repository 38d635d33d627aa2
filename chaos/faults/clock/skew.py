"""The wall clock of a replica runs at another rate."""

from tocsin.chaos.contract import Target, fault
from tocsin.chaos.faults.clock.jump import wall_of
from tocsin.core.calls import BatchCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "clock.skew",
    expect=("service.clock",),
    priority=Priority.P2,
    source="tox-dev/filelock#136, dronekit/dronekit-python#592: timeouts by a clock that drifts",
    phase=Phase.BEFORE,
    params={"rate": 4.0},
)
def skew(call: BatchCall, target: Target) -> Evidence | None:
    """Let the wall clock that the replica's own parts read run faster or slower than time does.

    Monotonic time goes on as ever, and the machine's clock is left alone. No timeout, lease or
    answer may change. Params: `rate` in seconds a second. Lasts until it is healed: then the clock
    says again what the machine's does.
    """
    if not target.live_rows():
        return None
    clock, rate = wall_of(target), target.params["rate"]
    if not isinstance(rate, int | float) or rate < 0 or rate == 1:
        raise SpecError(f"clock.skew: rate is {rate!r}, expected 0 or more, and not 1")
    before = clock.rate
    clock.run_at(float(rate))
    target.memory.update(before=before, rate=clock.rate)
    return Evidence(
        place="rate of the replica's wall clock",
        before=f"{before:g} s a second",
        after=f"{clock.rate:g} s a second",
    )


@skew.heal
def heal(target: Target) -> None:
    """Let it run with the machine's again, unless it was given another rate since."""
    if "rate" in target.memory and wall_of(target).rate == target.memory["rate"]:
        wall_of(target).run_at(target.memory["before"])
        wall_of(target).settle()


@skew.heal_verify
def is_healed(target: Target) -> bool:
    """It runs at another rate than the fault's."""
    return "rate" not in target.memory or wall_of(target).rate != target.memory["rate"]
