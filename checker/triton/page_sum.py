"""64-bit sums of KV pages: each word times an odd number of its own, modulo 2^64."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tocsin.checker.triton.launch import block, launch
from tocsin.core.errors import ContractError


def page_sums(
    data: Tensor, pages: Tensor | None = None, *, weighted: bool = True, debug: bool = False
) -> Tensor:
    """Sum of the words of each row of the pages, as the engine records them when it writes.

    Args:
        data: [P,...,width] contiguous, of any dtype; a row is a whole number of 64-bit words.
        pages: [n] int64 which pages; None: all.
        weighted: word i times 2i + 1; False: the words alone.

    Returns:
        [n,...] int64, modulo 2^64.

    Raises:
        ContractError: a row is no whole number of words, or the pages are not contiguous.
    """
    width_bytes = data.shape[-1] * data.element_size()
    if width_bytes % 8 or not data.is_contiguous():
        raise ContractError(
            f"page_sums: rows are {width_bytes} bytes, contiguous {data.is_contiguous()}; expected "
            "contiguous rows of whole 64-bit words; choose an even head size"
        )
    words = data.view(torch.int64)
    if pages is None:
        pages = torch.arange(data.shape[0], device=data.device)
    rows = words[0].numel() // words.shape[-1] if data.shape[0] else 0
    sums = torch.empty(len(pages), *data.shape[1:-1], dtype=torch.int64, device=data.device)
    launch(
        _page_sum,
        sums.numel(),
        words,
        pages.to(torch.int64).contiguous(),
        sums,
        data.shape[0],
        rows,
        words.shape[-1],
        BLOCK=block(words.shape[-1]),
        WEIGHTED=weighted,
        debug=debug,
    )
    return sums


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _page_sum(  # type: ignore[no-untyped-def]
    words_ptr,
    pages_ptr,
    sums_ptr,
    pages_total,
    rows,
    width,
    BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DEBUG: tl.constexpr,
):
    """One program a row of a page; products and sums wrap around on purpose."""
    program = tl.program_id(0)
    page = tl.load(pages_ptr + program // rows)
    if DEBUG:
        tl.device_assert((page >= 0) & (page < pages_total), "a page beyond the memory")
    first = (page * rows + program % rows) * width
    total = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        word = tl.load(words_ptr + first + at, mask=at < width, other=0)
        if WEIGHTED:
            word = word * (2 * at + 1).to(tl.int64)
        total += word
    tl.store(sums_ptr + program, tl.sum(total, axis=0))
