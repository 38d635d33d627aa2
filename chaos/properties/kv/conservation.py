"""KV pages are neither lost nor doubled."""

from typing import Any

from tocsin.chaos.attribution import subject
from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.core.history import EventKind

_PARTS = ("pages_free", "pages_used", "pages_cached", "pages_quarantined")


@prop(
    "kv.conservation",
    sins=("leak_page", "double_page"),
    advice="compare the frees of cancelled and preempted requests with their allocations",
)
def judge(case: Case) -> PropertyVerdict:
    """At rest free + cached + quarantined pages are all pages, and no request holds one.

    Read from the page audits of each living replica after the load has ended.
    """
    last: dict[str, dict[str, Any]] = {}
    for event in case.events:
        if event.kind is EventKind.PAGE_AUDIT and _at_rest(event.data):
            last[subject(event)] = dict(event.data)
    violations = [
        Violation(f"{replica}: {reason}", evidence=reading)
        for replica, reading in last.items()
        if (reason := _reason(reading))
    ]
    return conclude(judge.id, len(last), violations, nothing="no replica was read at rest")


def _at_rest(reading: dict[str, Any]) -> bool:
    return (
        all(part in reading for part in (*_PARTS, "pages_total"))
        and not reading.get("running")
        and not reading.get("waiting")
    )


def _reason(reading: dict[str, Any]) -> str:
    total, parts = int(reading["pages_total"]), {name: int(reading[name]) for name in _PARTS}
    if min(parts.values()) < 0:
        return f"counts {parts}, expected none below zero"
    if sum(parts.values()) != total:
        return f"{sum(parts.values())} pages are accounted for, there are {total}: {parts}"
    if parts["pages_used"]:
        return f"{parts['pages_used']} pages are held by nobody's request"
    return ""
