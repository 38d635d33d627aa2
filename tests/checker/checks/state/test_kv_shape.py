"""`state.kv_shape`: keys and values fit each other and the query heads."""

import pytest
import torch

from tests.checker.calls import attention, generator, kv_update, varlen
from tocsin.checker.checks.state.kv_shape import kv_shape


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1), (9, 3)], ids=str)
def test_any_whole_number_of_query_heads_may_share_a_key_head(heads: tuple[int, int]) -> None:
    """Multi-head, grouped and multi-query attention are all legal."""
    assert kv_shape(attention(generator(), torch.float32, heads=heads)).item() == 0


def test_heads_that_do_not_divide_alarm() -> None:
    """Four query heads cannot share three key heads."""
    call = attention(generator(), torch.float32, heads=(4, 2))
    call.k, call.v = call.k.repeat(1, 2, 1, 1)[:, :3], call.v.repeat(1, 2, 1, 1)[:, :3]
    assert kv_shape(call).item() == float("inf")


def test_values_of_another_layout_alarm() -> None:
    """ai-dynamo/dynamo#14416: [heads, tokens] read as [tokens, heads]."""
    call = kv_update(generator(), torch.float32, (5, 5), 2)
    assert kv_shape(call).item() == 0
    call.value_cache = call.value_cache.transpose(1, 2)
    assert kv_shape(call).item() == float("inf")


def test_metadata_alone_says_nothing_about_shapes() -> None:
    """Before a launch the tensors may not be there yet."""
    call = varlen(generator(), torch.float32, (2,), (3,), "none")
    assert kv_shape(call).numel() == 0
