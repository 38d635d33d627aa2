"""`numerical.attention_scores`: the scores add up to what the keys as written give."""

import pytest
import torch

from tests.checker.calls import DTYPES, as_written, attention, generator, normal, paged_tail
from tests.checker.changes import flip
from tocsin.checker.checks.numerical.attention_scores import attention_scores
from tocsin.core.calls import AttentionCall


def alarms(call: AttentionCall) -> bool:
    return not bool((attention_scores(call) <= 1).all())


def decoding(dtype: torch.dtype, keys: int = 32, size: int = 16, seed: int = 0) -> AttentionCall:
    """Three rows of different lengths, the last one full."""
    mask = paged_tail((keys // 4, keys // 2, keys - 1), keys)
    g = generator(seed)
    return as_written(attention(g, dtype, (1, keys), rows=3, mask=mask, size=size))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_of_a_key_down_to_the_mantissa_is_seen(dtype: torch.dtype) -> None:
    """Sign, each exponent bit, and the first bits of the mantissa: the sums are of float64."""
    bits = {torch.float16: 8, torch.bfloat16: 12, torch.float32: 14}[dtype]
    for bit in range(bits):
        call = decoding(dtype, seed=bit)
        row = call.k[2, 0, 9]
        flip(row, bit, int((row.abs() * call.q[2, :2, 0].abs().amin(0)).argmax()))
        assert alarms(call), bit


@pytest.mark.parametrize("keys", [16, 256, 4096])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_rows_and_repeated_keys_are_quiet(dtype: torch.dtype, keys: int) -> None:
    """Equal keys round alike, and one feature that dwarfs the others makes large sums."""
    call = attention(generator(), dtype, (1, keys), rows=2, heads=(4, 2), size=64)
    call.k[1] = call.k[1, :, :1]
    call.k[..., 7] += 60
    ratio = attention_scores(as_written(call))
    assert float(ratio.amax()) < 0.5


@pytest.mark.parametrize("keys", [64, 2048])
def test_an_ordinary_key_is_not_lost_among_many(keys: int) -> None:
    """One key of thousands that turns around is far above the limit."""
    call = decoding(torch.bfloat16, keys, 64)
    call.k[2, 1, keys // 3].neg_()
    assert float(attention_scores(call)[2]) > 5


def test_names_the_row() -> None:
    """The row whose page changed alarms, its neighbours do not."""
    call = decoding(torch.float32)
    call.k[1, :, 3] = call.k[0, :, 3]
    assert (attention_scores(call) > 1).tolist() == [False, True, False]


def test_what_the_mask_hides_may_hold_anything() -> None:
    """NaN, infinity and another request's keys behind the mask are not this check's."""
    call = decoding(torch.float32)
    call.k[0, :, 20], call.k[0, :, 21], call.k[1, :, 30] = torch.nan, torch.inf, call.k[2, :, 0]
    assert not alarms(call)


@pytest.mark.parametrize("position", [3, 8, 9], ids=["inside", "last", "beyond"])
def test_a_key_more_or_less_is_seen(position: int) -> None:
    """The mask is held to the write as well: row 0 has nine keys."""
    call = decoding(torch.bfloat16)
    assert call.mask is not None
    call.mask = call.mask.clone()
    call.mask[0, ..., position] = position > 8
    assert (attention_scores(call) > 1).tolist() == [True, False, False]


def test_a_mask_for_each_head_counts_for_each_head() -> None:
    """One head that leaves a key out is one head's alarm; the form is that of any mask."""
    call = decoding(torch.float32)
    assert call.mask is not None
    call.mask = call.mask.expand(3, 4, 1, 32).clone()
    assert not alarms(call)
    call.mask[1, 3, 0, 2] = False
    assert (attention_scores(call) > 1).tolist() == [False, True, False]


def test_scale_and_cap_do_not_matter() -> None:
    """Both sides are scaled; the cap comes after what is summed."""
    for scale, softcap in ((1.0, None), (0.01, None), (None, 5.0)):
        call = as_written(attention(generator(), torch.float32, (1, 24), softcap=softcap))
        call.scale = scale
        assert not alarms(call)
        call.k[0, 0, 2].neg_()
        assert alarms(call)


def test_says_nothing_without_the_sums_of_the_write() -> None:
    """Stand-alone calls and chunks of a prompt have none: the other checks of attention stay."""
    assert attention_scores(attention(generator(), torch.float32, causal=True)).numel() == 0
    assert attention_scores(attention(generator(), torch.float32, (1, 8))).numel() == 0


@pytest.mark.parametrize("huge", [1e6, 1e19, 3e38])
def test_no_key_widens_the_limit(huge: float) -> None:
    """The largest key counts as it was written, whatever has exploded beside the first since."""
    call = decoding(torch.float32)
    call.k[2, :, 4].neg_()
    call.k[2, 0, 5, 3] = huge
    assert alarms(call)
    call.k[2, 0, 5, 3], call.k[2, 0, 6, 3] = huge, -huge
    assert alarms(call)


@pytest.mark.parametrize("value", [-1.0, torch.nan, torch.inf, 3e38])
def test_a_reach_that_is_none_alarms(value: float) -> None:
    """The one size that the limit is made of cannot be turned against it."""
    call = decoding(torch.float32)
    assert call.key_reach is not None
    call.key_reach[1, 0] = value
    assert alarms(call)


def test_an_idle_row_is_quiet_while_the_null_page_is_zero() -> None:
    """It looks at one key of zeros, with sums of zero."""
    call = decoding(torch.float32)
    assert call.key_sums is not None
    assert call.key_reach is not None
    call.k[0] = 0
    call.key_sums[0], call.key_reach[0] = 0.0, 0.0
    assert not alarms(call)
    call.k[0, 0, 0, 0] = 1.0
    assert alarms(call)


def test_compiles_into_one_graph_with_the_sums() -> None:
    """No branch on a value."""
    call = decoding(torch.float32)
    assert call.key_sums is not None

    def ratio(q: torch.Tensor, k: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        return attention_scores.ratio(
            AttentionCall(
                q=q,
                k=k,
                v=call.v,
                mask=call.mask,
                key_sums=sums,
                key_reach=call.key_reach,
                value_sums=call.value_sums,
                value_norms=call.value_norms,
                value_low=call.value_low,
                value_high=call.value_high,
            )
        )

    torch._dynamo.reset()
    compiled = torch.compile(ratio, fullgraph=True, backend="eager")
    given = (call.q, call.k, call.key_sums)
    assert torch.equal(compiled(*given), ratio(*given))


def test_sums_of_two_queries_a_row_are_no_form() -> None:
    """Each query of a chunk sees other keys: the sums of all of them would say nothing."""
    call = decoding(torch.float32)
    call.q = normal(generator(), torch.float32, 3, 4, 2, 16)
    assert torch.isinf(attention_scores(call)).all()
