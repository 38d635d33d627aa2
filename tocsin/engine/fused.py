"""Loops over pages as single operators of torch, where some part of the process has loaded them.

Nothing is imported for it: the operators are looked for by name in torch's own registry. Where they
are missing (no compiler, another device, an engine alone) the engine does the same with torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators, bound once: a look-up in each layer would cost what they save.

    Axes: P pages · D layers · B page size · W values of a token · T tokens · R rows ·
    n pages a row.

    Attributes:
        write_pages: `(data_PD2BW, sums_PD2B?, written_D2TW, key_RKSE, value_RKSE, slots_T, depth)`
            writes one layer's rows, and their sums as they are to be written.
        read_pages: `(data, table_Rn, depth, heads, sums?, changed_Rn?) -> k, v [R,K,L,E]`; counts
            in `changed` the token rows of each page that were read with another sum.
        note_written: `(written, pool states, table, at_R, row states, first, last)` adds one token
            to the state of each row, for some layers.
        keep_written: `(pool states, table, at_R, row states) -> the four states that were there`.
    """

    write_pages: Callable[..., None]
    read_pages: Callable[..., tuple[Tensor, Tensor]]
    note_written: Callable[..., None]
    keep_written: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]


def operators(data: Tensor) -> Operators | None:
    """The operators, None where nobody has loaded them or they cannot read these pages."""
    if data.device.type != "cpu" or data.dtype not in DTYPES:
        return None
    return _bound() if hasattr(torch.ops.tocsin, "read_pages") else None


@cache
def _bound() -> Operators:
    found: Any = torch.ops.tocsin
    return Operators(
        write_pages=_direct(found.write_pages.default),
        read_pages=_direct(found.read_pages.default),
        note_written=_direct(found.note_written.default),
        keep_written=_direct(found.keep_written.default),
    )


def _direct(overload: Any) -> Any:
    """What torch's own Python wrapper hands the arguments on to, as they are; the wrapper is a
    frame in each layer, and between two matrix products that is microseconds."""
    return getattr(overload, "_op", overload)
