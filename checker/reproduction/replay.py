"""One check on one call, as a reproduction's test runs it: it raises what the check says."""

from tocsin.checker.contract import registry
from tocsin.checker.finding import make_finding
from tocsin.checker.shrink import read
from tocsin.core.calls import Call
from tocsin.core.errors import CheckFailed, ContractError


def replay(call: Call, check: str, **thresholds: float) -> float:
    """The worst ratio of a check on a call; at most 1, or the check alarms.

    Args:
        check: id of the check.
        thresholds: its limits where they differ from the declared ones.

    Raises:
        CheckFailed: the check alarms, with its finding.
        ContractError: there is no check of that id.
    """
    unit = registry().get(check)
    if unit is None:
        raise ContractError(
            f"replay: found no check {check!r} in this version of tocsin, expected one of "
            "docs/contracts.md; install the version that recorded the failure"
        )
    found = read(unit.with_thresholds(**thresholds), call)
    if found.fails:
        rows = tuple(found.alarms.nonzero().flatten().tolist()) if found.alarms.numel() > 1 else ()
        finding = make_finding(
            unit, call.operator, found.ratio, rows, module=call.module, depth=call.depth
        )
        raise CheckFailed((finding,))
    return found.ratio
