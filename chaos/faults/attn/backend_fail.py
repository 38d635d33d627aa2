"""The primary attention backend raises instead of answering."""

from tocsin.chaos.contract import Raises, Target, fault
from tocsin.core.calls import AttentionCall
from tocsin.core.errors import BackendError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "attn.backend_fail",
    expect=("service.backend_error",),
    priority=Priority.P1,
    source="flashinfer-ai/flashinfer#924, sgl-project/sglang#20389: illegal address in the kernel",
    phase=Phase.BEFORE,
    params={"backend": "flash", "times": 3},
)
def backend_fail(call: AttentionCall, target: Target) -> Raises | None:
    """Let the next launches of one backend raise, as a kernel does that the device refuses.

    Params: `backend` whose launches fail, the others are left alone; `times` how many fail.
    """
    if call.backend != target.params["backend"] or not target.live_rows():
        return None
    count = target.memory.get("count", 0) + 1
    target.memory["count"] = count
    times = target.params["times"]
    return Raises(
        Evidence(
            place=f"launch of {call.backend} at depth {call.depth}",
            before="answers",
            after=f"raises ({count} of {times})",
            requests=tuple(filter(None, target.request_ids)),
        ),
        BackendError(
            f"attention: backend {call.backend} failed at launch ({count} of {times}, injected); "
            "expected an answer; run the step on the fallback"
        ),
    )
