"""Free memory runs low, as far as the worker can tell."""

from tocsin.chaos.contract import Target, fault
from tocsin.core.calls import DeviceMemoryCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "host.mem_pressure",
    expect=("memory.watermark",),
    priority=Priority.P1,
    source="vllm-project/vllm#546, vllm-project/vllm-ascend#16315: the pool runs out under load",
    phase=Phase.BEFORE,
    params={"free_bytes": 3 << 29, "times": 4},
)
def mem_pressure(call: DeviceMemoryCall, target: Target) -> Evidence | None:
    """Let the next readings of free memory be low ones; simulated, no memory is taken.

    Params: `free_bytes` of each low reading (1.5 GiB: below the watermark at which attention
    falls back); `times` how many readings. The reading after those is true again.
    """
    true_bytes = call.free_bytes
    call.free_bytes = min(true_bytes, int(target.params["free_bytes"]))
    return Evidence(
        place=f"reading of free memory on {call.device}, simulated",
        before=f"{true_bytes} bytes free",
        after=f"{call.free_bytes} bytes free",
    )
