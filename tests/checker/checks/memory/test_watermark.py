"""`memory.watermark`: below 2 GiB the step must become lighter."""

import pytest

from tocsin.checker.checks.memory.watermark import watermark
from tocsin.core.calls import DeviceMemoryCall

GIB = 2**30


@pytest.mark.parametrize(
    ("free_bytes", "ratio"), [(4 * GIB, 0.5), (2 * GIB, 1.0), (GIB, 2.0), (0, float("inf"))]
)
def test_the_ratio_is_the_watermark_over_what_is_free(free_bytes: int, ratio: float) -> None:
    """1 is the watermark itself, 2 the one of the essential checks."""
    call = DeviceMemoryCall(free_bytes=free_bytes, total_bytes=8 * GIB)
    assert watermark(call).item() == ratio


def test_the_watermark_is_configurable() -> None:
    """A small device has a smaller one."""
    call = DeviceMemoryCall(free_bytes=GIB, total_bytes=2 * GIB)
    assert watermark(call, free_bytes_min=GIB / 2).item() == 0.5
    assert watermark.with_thresholds(free_bytes_min=GIB / 4)(call).item() == 0.25
