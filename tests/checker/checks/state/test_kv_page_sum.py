"""`state.kv_page_sum`: pages hold what was written into them."""

import pytest
import torch

from tests.checker.calls import DTYPES, generator, kv_read, kv_update
from tests.checker.changes import flip
from tocsin.checker.checks.state.kv_page_sum import kv_page_sum
from tocsin.core.calls import KVUpdateCall


def test_names_the_rows_that_read_the_page() -> None:
    """A shared page concerns every row that holds it, a private one its own row."""
    call = kv_read(generator(), (3, 1, 2), shared=1)
    call.sums[call.pages == 1, 4] += 1
    assert torch.isinf(kv_page_sum(call)).tolist() == [True, True, True]
    call = kv_read(generator(), (3, 1, 2))
    call.sums[-1, 0] ^= 1 << 40
    assert torch.isinf(kv_page_sum(call)).tolist() == [False, False, True]


def test_rows_without_pages_are_silent() -> None:
    """An idle slot reads nothing, and a step may read nothing at all."""
    call = kv_read(generator(), (2, 0, 1))
    assert kv_page_sum(call).tolist() == [0, 0, 0]
    assert kv_page_sum(kv_read(generator(), (0,))).numel() == 0


def test_an_entry_of_a_row_that_does_not_exist_concerns_everybody() -> None:
    """Whom it belongs to cannot be said, so nobody is told that all is well."""
    call = kv_read(generator(), (2, 2))
    call.entry_rows[0] = 7
    assert torch.isinf(kv_page_sum(call)).tolist() == [True, True]


def test_without_known_rows_every_entry_speaks_for_itself() -> None:
    """Outside an engine step the ratio has one number an entry."""
    call = kv_read(generator(), (2, 2))
    call.rows = None
    call.sums[1] += 1
    assert torch.isinf(kv_page_sum(call)).tolist() == [False, True, False, False]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_bit_of_a_written_token_is_seen(dtype: torch.dtype) -> None:
    """The slot must hold the very bits that were computed, down to the last mantissa bit."""
    for bit in range(torch.finfo(dtype).bits):
        for cache in ("key_cache", "value_cache"):
            call: KVUpdateCall = kv_update(generator(bit), dtype, (3, 0, 9, 4), 1)
            slot = int(call.slot_mapping[2])
            flip(getattr(call, cache), bit, slot * 16 + bit % 16)
            assert torch.isinf(kv_page_sum(call)).tolist() == [False, False, True, False]


def test_what_padding_would_have_written_is_nobodys_business() -> None:
    """A slot of -1 writes nothing, so nothing needs to be there."""
    call = kv_update(generator(), torch.float32, (2, 5), 5, (3, 0))
    call.new_key[0] = 123.0
    assert bool((kv_page_sum(call) == 0).all())


def test_a_cache_of_another_dtype_takes_rounded_rows() -> None:
    """float32 rows in a bfloat16 cache: compared as they are stored."""
    call = kv_update(generator(), torch.bfloat16, (3, 2), 1)
    call.new_key, call.new_value = call.new_key.float(), call.new_value.float()
    assert bool((kv_page_sum(call) == 0).all())
    call.new_key[0, 0, 0] += 1.0
    assert torch.isinf(kv_page_sum(call)).tolist() == [True, False]
