"""The page of metrics hangs."""

from tocsin.chaos.contract import fault
from tocsin.chaos.freezing import let_go, stop
from tocsin.chaos.process import state_of
from tocsin.chaos.side import SideTarget
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority


@fault(
    "obs.metrics_outage",
    expect=("service.metrics",),
    priority=Priority.P2,
    source="sgl-project/sglang#28157, ggml-org/llama.cpp#24866: a scrape that hangs and serving "
    "wait for each other",
    scope=Scope.SIDE,
    params={"duration_s": 8.0},
)
def metrics_outage(target: SideTarget) -> Evidence:
    """Stop the process that serves this node's metrics; a guardian lets it go on.

    Whoever asks the node's page waits in vain, the gateway's page goes on with what it knew last,
    and no request may notice. Params: `duration_s`, after which it goes on by itself.
    """
    hub = target.hub
    if hub is None:
        raise SpecError("the metrics of this cluster are not served on this machine")
    before = _words(target)
    stop("obs.metrics_outage", hub, float(target.params["duration_s"]))
    return Evidence(place=f"metrics page, pid {hub.pid}", before=before, after=_words(target))


def _words(target: SideTarget) -> str:
    return "answers" if target.metrics_answer() else "no answer within a second"


@metrics_outage.heal
def heal(target: SideTarget) -> None:
    """Let it go on before its time."""
    if target.hub is not None:
        let_go(target.hub)


@metrics_outage.heal_verify
def is_healed(target: SideTarget) -> bool:
    """It runs, and its page is answered."""
    return target.hub is not None and state_of(target.hub) != "T" and target.metrics_answer()
