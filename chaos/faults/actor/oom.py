"""A serving process asks for more memory than it may have."""

from tocsin.chaos import notes
from tocsin.chaos.contract import ProcessTarget, fault
from tocsin.chaos.notes import memory_answer, memory_note
from tocsin.chaos.process import is_replaced
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.terms import Priority

_KIND = "actor.oom"
_ANSWER_WITHIN_S = 5.0
_LASTS_S = 6.0
_POLL_S = 0.02
_NOTHING = "nothing was refused"


@fault(
    _KIND,
    expect=("service.actor_down",),
    priority=Priority.P1,
    source="vllm-project/vllm#546, vllm-project/vllm#8219: the allocator fails in the middle of a "
    "step, and the engine is gone",
    scope=Scope.PROCESS,
    params={"bytes": 1 << 30, "headroom_bytes": 64 << 20},
)
def oom(target: ProcessTarget) -> Evidence:
    """Let the process limit its own address space, then allocate `bytes` in the stepping thread.

    The limit (RLIMIT_AS) is what it has and `headroom_bytes` more, and holds for this process and
    this one allocation: no memory is taken, the machine does not notice. What the allocator raises
    ends the engine, as it does in earnest, and with it the replica.
    """
    wanted, headroom = target.params["bytes"], target.params["headroom_bytes"]
    if not (isinstance(wanted, int) and isinstance(headroom, int) and 0 <= headroom < wanted):
        raise SpecError(
            f"{_KIND}: bytes is {wanted!r} and headroom_bytes {headroom!r}, expected whole "
            "numbers, and more bytes than headroom; correct it"
        )
    if target.folder is None:
        raise SpecError(f"{_KIND}: the node has no folder for notes, expected one; serve with Ray")
    note = {"bytes": wanted, "headroom_bytes": headroom}
    notes.leave(target.folder, memory_note(target.pid), note, _LASTS_S)
    place = f"pid {target.pid}, an allocation of {wanted} bytes"
    return Evidence(place=place, before=_NOTHING, after=_answer(target))


def _answer(target: ProcessTarget) -> str:
    """What the process says of it, as soon as it says anything."""
    deadline_ns = target.clock.now_ns() + int(_ANSWER_WITHIN_S * 1e9)
    while target.folder is not None and target.clock.now_ns() < deadline_ns:
        said = notes.read(target.folder, memory_answer(target.pid))
        if said is not None:
            text = str(said["said"])
            return text if text.startswith("refused") else _NOTHING
        target.clock.sleep(_POLL_S)
    return _NOTHING


@oom.heal
def heal(target: ProcessTarget) -> None:
    """Take the notes away; the limit was lifted by the process itself."""
    if target.folder is not None:
        notes.remove(target.folder, memory_note(target.pid))
        notes.remove(target.folder, memory_answer(target.pid))


@oom.heal_verify
def is_healed(target: ProcessTarget) -> bool:
    """Another living process serves in its place."""
    return is_replaced(target)
