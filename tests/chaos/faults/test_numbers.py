"""Faults of what an operator computes: which numbers change, and that no others do."""

from typing import Any

import pytest
import torch

from tests.chaos.faults.conftest import EPS, KEYS
from tocsin.core.calls import (
    AttentionCall,
    LinearCall,
    LogitsCall,
    ResidualCall,
    RMSNormCall,
    RopeCall,
)

LIVE = (0, 2)
POSITIONS, LENGTHS = (6, 0, 1), (7, 1, 2)


def _calls(worker: Any, kind: type) -> list[Any]:
    return [call for call in worker.calls if isinstance(call, kind)]


def _victim(worker: Any) -> int:
    """The row of the one request that the evidence names."""
    (request,) = worker.status().evidence.requests
    return int(worker.request_ids.index(request))


@pytest.mark.parametrize("offset", [7, -3])
def test_a_jump_turns_one_row_to_another_position_and_keeps_its_lengths(
    worker: Any, offset: int
) -> None:
    """cos² + sin² stays 1: only who knows the position can tell."""
    worker.arm("rope.pos_jump", offset=offset)
    worker.decode()
    first, second = _calls(worker, RopeCall)
    row = _victim(worker)
    inv_freq = worker.model.rotary_emb.inv_freq
    for at, position in enumerate(POSITIONS):
        angle = (position + (offset if at == row else 0)) * inv_freq
        torch.testing.assert_close(first.cos[at, 0], torch.cat((angle, angle)).cos())
        torch.testing.assert_close(first.sin[at, 0], torch.cat((angle, angle)).sin())
    assert second.cos is first.cos


def test_a_jump_of_nothing_is_refused(worker: Any) -> None:
    """It would fire without evidence for ever."""
    worker.arm("rope.pos_jump", offset=0)
    worker.decode()
    assert "offset is 0" in worker.status().error


@pytest.mark.parametrize("eps", [1.0, 100.0])
def test_another_epsilon_shrinks_one_row_of_the_named_norm(worker: Any, eps: float) -> None:
    """By what the formula gives, and no other row."""
    worker.arm("rmsnorm.eps", eps=eps, module="input_layernorm", depth=1)
    worker.decode()
    row = _victim(worker)
    for call in _calls(worker, RMSNormCall):
        named = call.module == "layers.1.input_layernorm"
        mean = call.x.square().mean(dim=-1, keepdim=True)
        used = torch.full((3, 1, 1), EPS)
        used[row] = eps if named else EPS
        right = call.x * (mean + used).rsqrt() * call.weight.detach()
        torch.testing.assert_close(call.output, right)


@pytest.mark.parametrize("eps", [-1.0, float("nan")])
def test_an_epsilon_that_is_none_is_refused(worker: Any, eps: float) -> None:
    """Below zero there is no root of it."""
    worker.arm("rmsnorm.eps", eps=eps)
    worker.decode()
    assert "expected at least 0" in worker.status().error


def test_an_epsilon_of_nothing_is_noticed_by_a_row_of_nothing_only(worker: Any) -> None:
    """The rows of this worker are of size 1: the last bits change at most."""
    worker.arm("rmsnorm.eps", eps=0.0, depth=0)
    worker.decode()
    call = next(one for one in _calls(worker, RMSNormCall) if "post_attention" in one.module)
    right = torch.nn.functional.rms_norm(call.x, (call.x.shape[-1],), call.weight.detach(), EPS)
    torch.testing.assert_close(call.output, right)


def test_a_flipped_scale_keeps_its_size(worker: Any) -> None:
    """One channel of one norm changes its sign; the RMS of every output is what it was."""
    worker.arm("rmsnorm.scale_flip", depth=0)
    worker.decode()
    weights = {name: one for name, one in worker.model.named_parameters() if "norm" in name}
    wrong = {name: one.detach().tolist().count(-1.0) for name, one in weights.items()}
    assert wrong.pop("layers.0.input_layernorm.weight") == 1
    assert set(wrong.values()) == {0}
    assert all(one.detach().abs().eq(1).all() for one in weights.values())


def test_a_norm_of_an_unknown_name_is_refused_in_words(worker: Any) -> None:
    """A matrix of that name is no norm."""
    worker.arm("rmsnorm.scale_flip", module="mlp.down_proj")
    worker.decode()
    assert "no norm is named" in worker.status().error


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_no_number_stands_in_one_feature_of_one_live_row(worker: Any, value: str) -> None:
    """Of the residual stream, at the depth that was named."""
    worker.arm("act.nan", value=value, depth=1)
    worker.decode()
    first, second = _calls(worker, ResidualCall)
    assert first.output.isfinite().all()
    (place,) = (~second.output.isfinite()).nonzero().tolist()
    assert place[0] in LIVE
    # The linear's output is what was added: it is another tensor, and stays right.
    assert all(call.output.isfinite().all() for call in _calls(worker, LinearCall))


def test_a_flipped_logit_was_positive_and_wins(worker: Any) -> None:
    """So that the flip enlarges it, and its token is the one that is chosen."""
    worker.arm("logits.bitflip")
    worker.decode()
    logits = worker.call(LogitsCall).logits
    row = _victim(worker)
    token = int(worker.status().evidence.place.split()[3])
    assert int(logits[row, 0].argmax()) == token
    assert float(logits[row, 0, token]) > 1e30
    assert int((logits.abs() > 100).sum()) == 1


def test_swapped_logits_are_the_same_numbers(worker: Any) -> None:
    """Two tokens change places: the set of logits of the row is what it was."""
    torch.manual_seed(0)
    worker.decode()
    clean = worker.call(LogitsCall).logits.clone()
    torch.manual_seed(0)
    worker.arm("logits.top1_swap")
    worker.decode()
    logits, row = worker.call(LogitsCall).logits, _victim(worker)
    torch.testing.assert_close(logits.sort(-1).values, clean.sort(-1).values, rtol=0, atol=0)
    changed = (logits != clean).nonzero().tolist()
    best, second = torch.topk(clean[row, 0], 2).indices.tolist()
    assert sorted(changed) == sorted([[row, 0, best], [row, 0, second]])
    assert int(logits[row, 0].argmax()) == second


@pytest.mark.parametrize(("keys", "rows"), [(1, {0, 2}), (2, {0}), (-1, {0, 2}), (-5, {2})])
def test_a_shifted_mask_misplaces_the_end_of_one_rows_keys(
    worker: Any, keys: int, rows: set[int]
) -> None:
    """At least one key stays, none is shown that was not gathered; the launch gets a new mask."""
    worker.arm("attn.mask_shift", keys=keys, depth=0)
    worker.decode()
    first, second = _calls(worker, AttentionCall)
    row = _victim(worker)
    expected = [n - (keys if at == row else 0) for at, n in enumerate(LENGTHS)]
    assert row in rows
    assert first.mask.flatten(1).sum(1).tolist() == expected
    assert second.mask.flatten(1).sum(1).tolist() == list(LENGTHS)


def test_a_shift_that_leaves_no_row_a_key_never_fires(worker: Any) -> None:
    """A row without keys is another fault."""
    worker.arm("attn.mask_shift", keys=KEYS)
    worker.decode()
    assert worker.status().state == "armed"


def test_a_mask_with_holes_hides_keys_among_a_rows_own_and_never_the_newest(worker: Any) -> None:
    """Every second one before it; the other rows see what they saw."""
    worker.arm("batch.mask_mismatch", depth=0)
    worker.decode()
    call, clean = _calls(worker, AttentionCall)
    row = _victim(worker)
    seen = call.mask[row].flatten()
    assert not (seen & ~clean.mask[row].flatten()).any()
    assert seen[LENGTHS[row] - 1]
    assert not seen[LENGTHS[row] - 2]
    assert int(seen.sum()) == LENGTHS[row] - LENGTHS[row] // 2
    others = [one for one in range(3) if one != row]
    assert torch.equal(call.mask[others], clean.mask[others])


def test_a_mask_that_is_too_short_lacks_the_last_key_of_all(worker: Any) -> None:
    """Its shape is what is wrong, and every request of the launch suffers."""
    worker.arm("batch.mask_mismatch", kind="length", depth=1)
    worker.decode()
    assert worker.status().evidence.requests == ("a", "b")
    assert _calls(worker, AttentionCall)[1].mask.shape[-1] == KEYS - 1


@pytest.mark.parametrize(("kind", "value"), [("inf", float("inf")), ("blind", float("-inf"))])
def test_scores_of_one_row_are_made_impossible(worker: Any, kind: str, value: float) -> None:
    """One +inf among the keys that it may see, or -inf at all of them."""
    worker.arm("attn.softmax_inf", kind=kind, depth=1)
    worker.decode()
    clean, call = _calls(worker, AttentionCall)
    row = _victim(worker)
    assert clean.mask.dtype is torch.bool
    seen = call.mask[row].flatten()[: LENGTHS[row]]
    assert int((seen == value).sum()) == (1 if kind == "inf" else LENGTHS[row])
    assert not torch.softmax(call.mask[row].flatten(), 0).isfinite().all()
    others = [one for one in range(3) if one != row]
    assert torch.equal(call.mask[others].isneginf(), ~clean.mask[others])


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_scribble_lies_in_a_gathered_row_and_not_in_the_pages(worker: Any, name: str) -> None:
    """The copy that the kernel reads, at a key that its row may see."""
    worker.arm("attn.workspace_clobber", tensor=name, bytes=8, depth=0)
    worker.decode()
    call, row = _calls(worker, AttentionCall)[0], _victim(worker)
    struck = (getattr(call, name) > 1e10).nonzero().tolist()
    assert len(struck) == 2
    assert {place[0] for place in struck} == {row}
    assert all(place[2] < LENGTHS[row] for place in struck)
    assert worker.pages.verify(range(12)) == ()


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("attn.softmax_inf", {"kind": "x"}),
        ("attn.mask_shift", {"keys": 0}),
        ("batch.mask_mismatch", {"kind": "x"}),
    ],
)
def test_a_setting_that_means_nothing_is_refused(
    worker: Any, kind: str, params: dict[str, Any]
) -> None:
    """In words, before anything is changed."""
    worker.arm(kind, **params)
    worker.decode()
    assert worker.status().state == "disarmed"
    assert "expected" in worker.status().error
