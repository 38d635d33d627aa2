"""The disk takes nothing more of what serving processes write."""

import resource

from tocsin.chaos.contract import ProcessTarget, fault
from tocsin.chaos.guard_duty import put_on_duty
from tocsin.chaos.guardian import give_back
from tocsin.chaos.process import state_of
from tocsin.chaos.side import SideTarget
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_SECONDS_MAX = 120.0


@fault(
    "disk.full",
    expect=("service.logs",),
    priority=Priority.P2,
    source="sysown/proxysql#1297, enioka-Haute-Couture/jqm#137: the server dies of its own log",
    scope=Scope.SIDE,
    params={"bytes": 0, "duration_s": 15.0},
    company="act.nan",
)
def full(target: SideTarget) -> Evidence:
    """Let no file of the serving processes grow beyond `bytes`; a guardian takes that back.

    The kernel refuses what is written beyond (EFBIG, in place of ENOSPC: the same error to who
    writes, without a filesystem of one's own and without root). Serving must go on; lines of
    failures that were lost must be counted and said. It is seen only where something is to be
    written: plan it together with a fault that leaves a line. Params: `duration_s` at most.
    """
    most, seconds = int(target.params["bytes"]), float(target.params["duration_s"])
    if most < 0 or not 0 < seconds <= _SECONDS_MAX or not target.workers:
        raise SpecError(
            f"bytes is {most}, duration_s {seconds}, with {len(target.workers)} serving processes "
            f"on this machine; expected at least 0, up to {_SECONDS_MAX:g}, and one at least"
        )
    limits = [(one, resource.prlimit(one.pid, resource.RLIMIT_FSIZE)) for one in target.workers]
    target.memory["before"] = {one.pid: soft for one, (soft, _) in limits}
    before = _words(target)
    orders = [f"{one.pid}:{one.started_ticks}:{soft}" for one, (soft, _) in limits]
    put_on_duty("disk.full", seconds, orders)
    for one, (_, hard) in limits:
        resource.prlimit(one.pid, resource.RLIMIT_FSIZE, (most, hard))
    return Evidence(
        place=f"files of {len(limits)} serving processes, journal in {target.journal}",
        before=before,
        after=_words(target),
    )


def _words(target: SideTarget) -> str:
    softs = {_soft(one) for one in target.workers if state_of(one) != "gone"}
    words = ["of any size" if soft == resource.RLIM_INFINITY else str(soft) for soft in softs]
    return f"may grow to {' or '.join(sorted(words))} bytes".replace(
        "of any size bytes", "any size"
    )


def _soft(one: ProcessTarget) -> int:
    try:
        return resource.prlimit(one.pid, resource.RLIMIT_FSIZE)[0]
    except ProcessLookupError:
        return resource.RLIM_INFINITY


@full.heal
def heal(target: SideTarget) -> None:
    """Give every process its limit back before the time is over."""
    for one in target.workers:
        give_back(one.pid, one.started_ticks, target.memory["before"][one.pid])


@full.heal_verify
def is_healed(target: SideTarget) -> bool:
    """Every process that still lives may write as much as before."""
    return all(
        _soft(one) == target.memory["before"][one.pid]
        for one in target.workers
        if state_of(one) != "gone"
    )
