"""`state.slot_mapping`: every token has its own slot, on its own row's page."""

import torch

from tests.checker.calls import generator, kv_update
from tocsin.checker.checks.state.slot_mapping import slot_mapping


def alarmed(call: object) -> list[int]:
    ratio = slot_mapping(call)  # type: ignore[arg-type]
    return torch.isinf(ratio).nonzero().flatten().tolist()


def test_two_tokens_on_one_slot_both_alarm() -> None:
    """Either of them may be the one that is lost."""
    call = kv_update(generator(), torch.float32, (6, 3), 1)
    call.slot_mapping[1] = call.slot_mapping[0]
    assert alarmed(call) == [0, 1]


def test_padding_may_stand_on_either_side_and_never_inside() -> None:
    """-1 writes nothing: legal outside a row's tokens only."""
    for side in ("left", "right"):
        assert alarmed(kv_update(generator(), torch.float32, (2, 5), 5, (3, 0), side)) == []
    call = kv_update(generator(), torch.float32, (5,), 5)
    call.slot_mapping[2] = -1
    assert alarmed(call) == [2]


def test_a_row_with_a_length_must_write_something() -> None:
    """Its token would be lost and the next step would read a hole."""
    call = kv_update(generator(), torch.float32, (6, 0, 3), 1)
    assert alarmed(call) == []
    call.slot_mapping[2] = -1
    assert alarmed(call) == [2]


def test_owners_are_optional() -> None:
    """Without tags the table alone decides."""
    call = kv_update(generator(), torch.float32, (6, 3), 1)
    page = call.block_table[0, 1]
    assert call.owners is not None
    call.owners[page] = 1
    assert alarmed(call) == [0]
    call.owners = None
    assert alarmed(call) == []


def test_rows_may_be_packed_in_any_numbers() -> None:
    """Three tokens of one row and one of another, told apart by token_rows."""
    call = kv_update(generator(), torch.float32, (4, 4), 3)
    for name in ("new_key", "new_value", "slot_mapping", "position_ids"):
        setattr(call, name, getattr(call, name)[:4])
    call.token_rows = torch.tensor([0, 0, 0, 1])
    assert alarmed(call) == []
    call.token_rows = torch.tensor([0, 0, 1, 1])
    assert alarmed(call) == [2]


def test_later_depths_have_the_same_metadata_and_are_not_looked_at() -> None:
    """Nothing to check there: zero elements, which is not counted as a run."""
    call = kv_update(generator(), torch.float32, (6, 3), 1)
    call.depth = 0
    assert slot_mapping(call).numel() == 2
    call.depth = 1
    assert slot_mapping(call).numel() == 0
