"""After the run every process holds what it held before, give or take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.chaos.vitals import AFTER, BEFORE
from tocsin.core.history import EventKind

_MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much more of one thing may be held: a share of what it was, or so much, if larger.

    Attributes:
        param: name of the check's parameter that sets `more`, in `unit`.
    """

    key: str
    param: str
    unit: str
    scale: float
    more: float
    share: float = 0.0


ALLOWANCES = (
    # A first failure loads kernels, keeps capsules and fills caches; it does so once.
    Allowance("rss_bytes", "rss_mib", "MiB", _MIB, 512.0, share=0.25),
    Allowance("shm_bytes", "shm_mib", "MiB", _MIB, 128.0),
    Allowance("fds", "fds", "open files", 1.0, 64.0),
    Allowance("threads", "threads", "threads", 1.0, 64.0),
)


@prop(
    "resource.no_leak",
    sins=("leak_files", "leak_memory"),
    advice="take the difference per request: one that grows with their number is a leak, one that "
    "stays is a cache",
    conditional=True,
)
def judge(case: Case) -> PropertyVerdict:
    """Memory, open files and threads of each replica that lived through the run came back.

    Read before the first fault, after the warm-up, and at rest after the last heal. KV pages are
    held to the page by `kv.conservation`. A short run shows only what leaks with every request:
    the allowances are set by `rss_mib`, `shm_mib`, `fds` and `threads`.
    """
    readings: dict[str, dict[str, Mapping[str, Any]]] = {BEFORE: {}, AFTER: {}}
    for event in case.events:
        if event.kind is EventKind.RESOURCES and event.data.get("when") in readings:
            readings[event.data["when"]][event.replica] = event.data
    before, after = readings[BEFORE], readings[AFTER]
    # Another process under the same name began anew: there is nothing to compare.
    both = [name for name in before if name in after and _same(before[name], after[name])]
    params = case.spec.check_params(judge.id)
    violations = [
        Violation(f"{name}: {reason}", evidence={"before": before[name], "after": after[name]})
        for name in both
        for reason in _grown(before[name], after[name], params)
    ]
    told = bool(before or after) or "resources" in case.facts.get("observes", ())
    missing = "" if before and after else "no replica was read before and after the faults"
    return conclude(
        judge.id,
        len(both),
        violations,
        unknown=missing if told and not case.aborted else "",
        nothing=_nothing(told=told, read_again=bool(after)),
        notes=(f"{len(both)} of {len(before)} replicas were there before and after",)
        if len(both) < len(before)
        else (),
    )


def _nothing(*, told: bool, read_again: bool) -> str:
    if not told:
        return "nobody could read what the replicas hold"
    if read_again:
        return "every replica was replaced meanwhile"
    return "the run was stopped before what is held could be read again"


def _same(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return bool(before.get("pid") == after.get("pid"))


def _grown(
    before: Mapping[str, Any], after: Mapping[str, Any], params: Mapping[str, float]
) -> list[str]:
    """What is held beyond its allowance, in words."""
    found = []
    for one in ALLOWANCES:
        if one.key not in before or one.key not in after:
            continue
        was, now = float(before[one.key]), float(after[one.key])
        allowed = max(params.get(one.param, one.more) * one.scale, was * one.share)
        if now - was > allowed:
            found.append(
                f"holds {(now - was) / one.scale:.0f} {one.unit} more than before "
                f"({was / one.scale:.0f}), allowed are {allowed / one.scale:.0f}"
            )
    return found
