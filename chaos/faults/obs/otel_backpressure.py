"""The collector of traces takes no more."""

from tocsin.chaos.contract import fault
from tocsin.chaos.side import SPANS, SideTarget, refused
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority


@fault(
    "obs.otel_backpressure",
    expect=("service.traces",),
    priority=Priority.P2,
    source="open-telemetry/opentelemetry-python#2024: the application hangs while its collector is "
    "down",
    scope=Scope.SIDE,
    params={"duration_s": 10.0, "hang": True},
)
def otel_backpressure(target: SideTarget) -> Evidence:
    """Have the collector not answer, or answer 500, while spans are sent to it.

    No request may wait for it: spans wait in a bounded queue, those that do not fit are counted.
    The collector is the run's own, as with `alert.sink_down`. Params: `duration_s`; `hang`: it
    takes connections and says nothing, else it answers 500.
    """
    return refused(target, SPANS, hang=bool(target.params["hang"]))


@otel_backpressure.heal
def heal(target: SideTarget) -> None:
    """Take everything again."""
    if target.receivers is not None:
        target.receivers.take(SPANS)


@otel_backpressure.heal_verify
def is_healed(target: SideTarget) -> bool:
    """It takes spans."""
    return target.receivers is not None and not target.receivers.refuses(SPANS)
