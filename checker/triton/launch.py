"""How a kernel is launched, and what its debug mode asserts."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
import triton
import triton.language as tl

from tocsin.checker.triton import demand

BLOCK_MAX: Final = 4096
"""Numbers of one row that a program holds at a time."""


def launch(kernel: Any, programs: int, *arguments: Any, debug: bool, **constants: Any) -> None:
    """Run `programs` programs of a kernel; without a synchronisation unless `debug`.

    Args:
        debug: `tl.device_assert` is compiled in: the first program whose check would alarm stops
            the launch there, instead of leaving a ratio for the verdict.

    Raises:
        EnvironmentFault: there is neither a GPU nor the interpreter.
        Exception: in debug mode, what Triton raises for a failed assertion.
    """
    demand()
    if programs == 0:
        return
    with interpreted(debug):
        kernel[(programs,)](*arguments, DEBUG=debug, debug=debug, **constants)
        if debug and torch.cuda.is_available():
            torch.cuda.synchronize()  # an assertion on the device shows at the next read of it


@contextmanager
def interpreted(debug: bool) -> Iterator[None]:
    """What the interpreter must be told beside a launch; nothing where a GPU runs the kernel.

    Its assertions come from its own options, and NumPy, in which it computes, would warn of the
    infinities that a check is there to meet.
    """
    if not triton.knobs.runtime.interpret:
        yield
        return
    from triton.runtime.interpreter import interpreter_builder

    before = interpreter_builder.options
    interpreter_builder.options = dataclasses.replace(before, debug=debug)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        interpreter_builder.options = before


def block(size: int) -> int:
    """Width of a program for rows of this many numbers: a power of two."""
    return min(BLOCK_MAX, max(16, int(triton.next_power_of_2(max(1, size)))))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def over(residual, limit):  # type: ignore[no-untyped-def]
    """|residual| / limit as `checker.ratios.over`; what is no number becomes infinity.

    A maximum on a GPU may drop NaN, so none is left to it.
    """
    ratio = tl.abs(residual) / limit + limit * 1e-37
    return tl.where(ratio == ratio, ratio, float("inf"))
