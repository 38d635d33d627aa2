"""Properties that die in every way in which one can, and one that is well."""

import os
import threading

from tocsin.chaos.case import Case, PropertyVerdict, conclude
from tocsin.chaos.contract import Property, prop

STOP = threading.Event()
"""Set by a test that is done with a thread in which a property never ends."""


@prop("bad.well", sins=(), advice="")
def well(case: Case) -> PropertyVerdict:
    """Counts the requests."""
    return conclude("bad.well", len(case.records), [])


@prop("bad.raises", sins=(), advice="")
def raises(case: Case) -> PropertyVerdict:
    """Raises what says that the memory is used up."""
    raise MemoryError


@prop("bad.greedy", sins=(), advice="")
def greedy(case: Case) -> PropertyVerdict:
    """Takes more memory than it may."""
    return conclude("bad.greedy", len(bytearray(2**30)), [])


@prop("bad.leaves", sins=(), advice="")
def leaves(case: Case) -> PropertyVerdict:
    """Ends its process."""
    os._exit(3)


@prop("bad.exits", sins=(), advice="")
def exits(case: Case) -> PropertyVerdict:
    """Asks to end its process."""
    raise SystemExit(4)


@prop("bad.loops", sins=(), advice="")
def loops(case: Case) -> PropertyVerdict:
    """Never ends by itself."""
    STOP.wait()
    return conclude("bad.loops", 0, [])


@prop("bad.late", sins=(), advice="")
def late(case: Case) -> PropertyVerdict:
    """Bears the small copy of the self-test, and dies of the run itself."""
    if case.records and case.records[0].attempts != ("self-test",):
        os._exit(5)
    return conclude("bad.late", len(case.records), [])


BAD: dict[str, Property] = {
    unit.id: unit for unit in (well, raises, greedy, leaves, exits, loops, late)
}
