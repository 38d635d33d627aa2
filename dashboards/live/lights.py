"""What colour a cell of the grid has, and why."""

from tocsin.core.terms import Profile
from tocsin.dashboards.live.state import Light

ALARM_S = 60.0
"""An alarm shows for this long; afterwards it is only noted."""
RAN_S = 10.0
_SEVERE = "P0"
_ORDER = (Profile.OFF, Profile.GUARD, Profile.FULL)


def light(
    *,
    checks: int,
    profile: str,
    per_second: float,
    recent: list[str],
    unrepaired: bool,
    noted: bool,
) -> Light:
    """The light of one operator in one layer.

    Args:
        checks: how many are declared for it.
        profile: the least that any replica runs here.
        recent: priorities of the findings of the last `ALARM_S` seconds.
        unrepaired: one of them ended in a refusal.
        noted: an older finding is still remembered.
    """
    if not checks:
        return Light.ABSENT
    if recent:
        return Light.BAD if _SEVERE in recent or unrepaired else Light.WARN
    if profile == Profile.OFF:
        return Light.OFF
    if noted:
        return Light.NOTE
    return Light.OK if per_second > 0 else Light.IDLE


def least(profiles: list[str], otherwise: str) -> str:
    """The least of several profiles; a replica whose checks are off is not hidden by others."""
    known = [Profile(one) for one in profiles if one in set(Profile)]
    return str(min(known, key=_ORDER.index)) if known else otherwise
