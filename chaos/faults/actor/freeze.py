"""A serving process stops running without dying."""

from tocsin.chaos.contract import ProcessTarget, fault
from tocsin.chaos.freezing import let_go, stop
from tocsin.chaos.process import state_of
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority


@fault(
    "actor.freeze",
    expect=("service.heartbeat",),
    priority=Priority.P1,
    source="ray-project/ray#61263, vllm-project/vllm#36451: health answers, generation hangs",
    scope=Scope.PROCESS,
    params={"duration_s": 4.0},
)
def freeze(target: ProcessTarget) -> Evidence:
    """Send SIGSTOP, after a guardian stands ready to send SIGCONT when `duration_s` is over."""
    return stop("actor.freeze", target, float(target.params["duration_s"]))


@freeze.heal
def heal(target: ProcessTarget) -> None:
    """Let the process go on before its time."""
    let_go(target)


@freeze.heal_verify
def is_healed(target: ProcessTarget) -> bool:
    """The process is not stopped."""
    return state_of(target) != "T"
