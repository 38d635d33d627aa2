"""Who is to be told answers 500."""

from tocsin.chaos.contract import fault
from tocsin.chaos.side import ALERTS, SideTarget, refused
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority


@fault(
    "alert.sink_down",
    expect=("service.alerts",),
    priority=Priority.P2,
    source="prometheus/alertmanager#2286, prometheus/alertmanager#2404: the receiver is down for "
    "ten minutes, and what became of the alerts is not known",
    scope=Scope.SIDE,
    params={"duration_s": 8.0},
)
def sink_down(target: SideTarget) -> Evidence:
    """Have the receiver of alerts answer 500, and send an alert, marked as a drill.

    It must be kept and sent again until it is taken, none may be lost, and serving must not wait.
    The receiver is the run's own: on an application that is served already there is none. Params:
    `duration_s`, after which it takes everything again.
    """
    return refused(target, ALERTS, hang=False, act=target.page)


@sink_down.heal
def heal(target: SideTarget) -> None:
    """Take everything again."""
    if target.receivers is not None:
        target.receivers.take(ALERTS)


@sink_down.heal_verify
def is_healed(target: SideTarget) -> bool:
    """It takes alerts, and has been sent again every one that it refused."""
    receivers = target.receivers
    return receivers is not None and not receivers.refuses(ALERTS) and receivers.owed() == 0
