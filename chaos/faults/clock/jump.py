"""The wall clock of a replica jumps."""

from tocsin.chaos.contract import Target, fault
from tocsin.core.calls import BatchCall
from tocsin.core.clock import OffsetClock
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "clock.jump",
    expect=("service.clock",),
    priority=Priority.P2,
    source="tox-dev/filelock#136, dronekit/dronekit-python#592: timeouts by a clock that is set",
    phase=Phase.BEFORE,
    params={"seconds": 3600.0},
)
def jump(call: BatchCall, target: Target) -> Evidence | None:
    """Set the wall clock that the replica's own parts read; monotonic time goes on as ever.

    The machine's clock is left alone. No timeout, lease or answer may change. Params: `seconds`
    forward, or back where negative. Lasts until it is healed: then the clock jumps back.
    """
    if not target.live_rows():
        return None
    clock, seconds = wall_of(target), target.params["seconds"]
    if not isinstance(seconds, int | float) or not seconds:
        raise SpecError(f"clock.jump: seconds is {seconds!r}, expected a number other than 0")
    before = clock.offset_s()
    clock.move(float(seconds))
    target.memory["seconds"] = float(seconds)
    return Evidence(
        place="wall clock of the replica, against the machine's",
        before=f"{before:+.1f} s",
        after=f"{clock.offset_s():+.1f} s",
    )


def wall_of(target: Target) -> OffsetClock:
    """The clock of the replica whose wall time can be moved.

    Raises:
        SpecError: it reads the machine's own.
    """
    if not isinstance(target.clock, OffsetClock):
        raise SpecError(
            "clock: this replica reads the machine's clock, expected one of its own; "
            "wire it with core.clock.OffsetClock"
        )
    return target.clock


@jump.heal
def heal(target: Target) -> None:
    """Set it back by as much."""
    if "seconds" in target.memory:
        wall_of(target).move(-target.memory.pop("seconds"))


@jump.heal_verify
def is_healed(target: Target) -> bool:
    """It was set back."""
    return "seconds" not in target.memory
