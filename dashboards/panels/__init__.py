"""The six dashboards, one a file, in the order in which a person meets them."""

from tocsin.core.errors import SpecError
from tocsin.dashboards.panel import Dashboard
from tocsin.dashboards.panels import chaos, degradation, kv_memory, observer, operators, overview

DASHBOARDS: tuple[Dashboard, ...] = (
    overview.DASHBOARD,
    operators.DASHBOARD,
    kv_memory.DASHBOARD,
    degradation.DASHBOARD,
    chaos.DASHBOARD,
    observer.DASHBOARD,
)


def dashboard(name: str) -> Dashboard:
    """The dashboard of that id.

    Raises:
        SpecError: there is none.
    """
    for each in DASHBOARDS:
        if each.id == name:
            return each
    known = ", ".join(each.id for each in DASHBOARDS)
    raise SpecError(f"dashboards: {name!r} was named, expected one of {known}")
