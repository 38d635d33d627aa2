"""Parts of a matrix as a run would leave them, for the tests."""

from typing import Any

from tocsin.chaos.contract import Fault, faults
from tocsin.chaos.matrix.document import Part, Where

KIND = "weight.bitflip"


def fault() -> Fault:
    return faults()[KIND]


def part(**changes: Any) -> Part:
    """Ten occurrences of a flipped weight, all of them seen by the check that is meant to."""
    whole = {
        "kind": KIND,
        "number": 0,
        "where": Where.SIM,
        "seed": 7,
        "model": "tiny",
        "plan_digest": "d" * 64,
        "code": "c" * 64,
        "planned": 10,
        "fired": 10,
        "verified": 10,
        "healed": 10,
        "seen": 10,
        "detectors": {fault().expect[0]: 10, "numerical.finite": 3},
        "latencies_ms": (0.0,) * 9 + (40.0,),
        "false_alarms": {},
        "harm": {},
        "errors": (),
        "requests": 30,
        "cpu_s": 2.0,
    }
    return Part(**{**whole, **changes})
