"""Whether enough memory is free to go on as usual."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.core.calls import DeviceMemoryCall
from tocsin.core.terms import Phase, Priority, Profile


@check(
    "memory.watermark",
    priority=Priority.P1,
    impact="the next allocation may fail and take every running request with it",
    catches=("host.mem_pressure",),
    source="vllm-project/vllm#546, vllm-project/vllm-ascend#16315; the source text: 2 GiB",
    profile=Profile.GUARD,
    phase=Phase.BEFORE,
    remedy="serve attention from the backend that needs least, admit fewer requests",
)
def watermark(call: DeviceMemoryCall, free_bytes_min: float = 2.0 * 2**30) -> Tensor:
    """The low watermark over the free memory.

    With the default watermark of 2 GiB a ratio above 2 means less than 1 GiB: then only the
    essential checks may run, so that the check is not what exhausts the memory.

    Args:
        call: a reading, taken off the hot path.
        free_bytes_min: bytes that must be free.

    Returns:
        ratio, [1], float32 on the host; infinite when nothing is free.
    """
    free = max(0, call.free_bytes)
    ratio = free_bytes_min / free if free else torch.inf
    return torch.tensor([ratio], dtype=torch.float32)
