"""A replica cannot start: its weights are cut off, or its constructor raises."""

import signal

from tocsin.chaos import notes
from tocsin.chaos.contract import ProcessTarget, fault
from tocsin.chaos.process import is_replaced, send, state_of, wait_for
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_KIND = "actor.init_fail"
_SEEN_WITHIN_S = 2.0
_LASTS_S = 90.0
_KINDS = ("weights", "raise")
_TIMES_MOST = 5


@fault(
    _KIND,
    expect=("service.start",),
    priority=Priority.P1,
    source="ray-project/ray#54070: healthy replicas restarted; vllm-project/vllm#16259: workers "
    "crash and nobody takes them out",
    scope=Scope.PROCESS,
    params={"kind": "weights", "times": 2},
)
def init_fail(target: ProcessTarget) -> Evidence:
    """Kill the process, and let the next `times` starts on its node fail.

    Params: `kind` is `weights` (a copy of the model whose weight file is cut off) or `raise`. The
    evidence is the kill; that the starts failed is what must be seen, and what healing waits for.
    """
    kind, times = target.params["kind"], target.params["times"]
    if kind not in _KINDS or not isinstance(times, int) or not 1 <= times <= _TIMES_MOST:
        raise SpecError(
            f"{_KIND}: kind is {kind!r} and times {times!r}, expected one of "
            f"{', '.join(_KINDS)} and 1 to {_TIMES_MOST}; correct it"
        )
    if target.folder is None:
        raise SpecError(f"{_KIND}: the node has no folder for notes, expected one; serve with Ray")
    notes.leave(target.folder, notes.START, {"kind": kind, "times": times}, _LASTS_S)
    before = state_of(target)
    send(target, signal.SIGKILL)
    after = wait_for(target, lambda state: state == "gone", _SEEN_WITHIN_S)
    place = f"pid {target.pid}, and the next {times} starts on its node"
    return Evidence(place=place, before=f"state {before}", after=f"state {after}")


@init_fail.heal
def heal(target: ProcessTarget) -> None:
    """Take the note away: the next start goes well."""
    if target.folder is not None:
        notes.remove(target.folder, notes.START)


@init_fail.heal_verify
def is_healed(target: ProcessTarget) -> bool:
    """No start is to fail any more, and another living process serves."""
    note = None if target.folder is None else notes.read(target.folder, notes.START)
    return (note is None or int(note["times"]) == 0) and is_replaced(target)
