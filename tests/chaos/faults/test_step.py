"""Faults of one step or of the model: activations, weights, tables, launches, batches, memory."""

from typing import Any

import pytest
import torch

from tocsin.core.calls import (
    BatchCall,
    DeviceMemoryCall,
    LinearCall,
    ResidualCall,
    VarlenAttentionCall,
)


def test_an_activation_flips_in_one_output_of_one_live_row(worker: Any) -> None:
    """The record's output is the tensor that the model goes on with; x and weight stay right."""
    worker.arm("act.bitflip", depth=1)
    worker.decode()
    first, second = (call for call in worker.calls if isinstance(call, LinearCall))
    for call, expected in ((first, 0), (second, 1)):
        right = torch.nn.functional.linear(call.x, call.weight)
        wrong = (right != call.output).nonzero().tolist()
        assert len(wrong) == expected
    assert wrong[0][0] in (0, 2)
    assert worker.status().evidence.requests == (worker.request_ids[wrong[0][0]],)


def test_an_activation_flips_in_the_residual_stream_too(worker: Any) -> None:
    """`operator` residual leaves the linears alone."""
    worker.arm("act.bitflip", operator="residual", depth=0, bit=31)
    worker.decode()
    call = worker.call(ResidualCall)
    assert int((call.output != call.x + call.delta).sum()) == 1
    linear = worker.call(LinearCall)
    assert torch.equal(linear.output, torch.nn.functional.linear(linear.x, linear.weight))


def test_a_module_that_does_not_exist_never_fires(worker: Any) -> None:
    """The driver then calls the run invalid; nothing is flipped elsewhere instead."""
    worker.arm("act.bitflip", module="no_such_proj")
    worker.decode()
    assert worker.status().state == "armed"


def test_a_weight_of_an_unknown_module_is_refused_in_words(worker: Any) -> None:
    """The reason is in the order's status."""
    worker.arm("weight.bitflip", module="no_such_proj")
    worker.decode()
    assert worker.status().state == "disarmed"
    assert "no weight is named" in worker.status().error


def test_one_element_of_one_weight_changes(worker: Any) -> None:
    """The others stay as they were."""
    before = {name: one.detach().clone() for name, one in worker.model.named_parameters()}
    worker.arm("weight.bitflip", depth=1)
    worker.decode()
    after = dict(worker.model.named_parameters())
    changed = {
        name: count for name in before if (count := int((before[name] != after[name]).sum()))
    }
    assert changed == {"layers.1.mlp.down_proj.weight": 1}


def test_the_live_frequency_table_changes_and_its_spare_copy_does_not(worker: Any) -> None:
    """Transformers keeps original_inv_freq beside inv_freq; the model rotates by the latter."""
    rotary = worker.model.rotary_emb
    worker.arm("rope.table", entry=1, factor=0.25)
    worker.decode()
    assert torch.equal(rotary.inv_freq * torch.tensor([1.0, 4.0]), rotary.original_inv_freq)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("last", "ends at the total"),
        ("decreasing", "does not decrease"),
        ("int64", "is int32"),
        ("max_seqlen", "longest row is true"),
    ],
)
def test_each_kind_of_metadata_fault_breaks_its_rule(worker: Any, kind: str, rule: str) -> None:
    """The array and the maximum that a kernel would read."""
    worker.decode()
    assert _broken_rules(worker.call(VarlenAttentionCall)) == set()
    worker.arm("attn.cu_seqlens", kind=kind)
    worker.decode()
    assert rule in _broken_rules(worker.call(VarlenAttentionCall))


def _broken_rules(call: VarlenAttentionCall) -> set[str]:
    lengths = call.cu_seqlens_k.diff()
    rules = {
        "is int32": call.cu_seqlens_k.dtype is torch.int32,
        "does not decrease": bool((lengths >= 0).all()),
        "ends at the total": int(call.cu_seqlens_k[-1]) == call.total_k,
        "longest row is true": int(lengths.max()) == call.max_seqlen_k,
    }
    return {rule for rule, holds in rules.items() if not holds}


def test_metadata_of_a_later_launch_is_right_again(worker: Any) -> None:
    """The fault lasts for one launch."""
    worker.arm("attn.cu_seqlens")
    worker.decode()
    worker.decode()
    assert worker.call(VarlenAttentionCall).cu_seqlens_k.tolist() == [0, 7, 8, 10]


@pytest.mark.parametrize(
    ("kind", "in_vocabulary"), [("out_of_range", False), ("placeholder", False), ("foreign", True)]
)
def test_a_token_below_the_api_is_not_the_ledgers(
    worker: Any, kind: str, in_vocabulary: bool
) -> None:
    """One live row's input differs from what was committed."""
    worker.arm("batch.oob_token", kind=kind)
    worker.decode()
    call = worker.call(BatchCall)
    wrong = (call.input_ids != call.input_ids_expected).nonzero().flatten().tolist()
    assert len(wrong) == 1
    assert wrong[0] in (0, 2)
    assert (0 <= int(call.input_ids[wrong[0]]) < call.vocab_size) is in_vocabulary


@pytest.mark.parametrize("kind", ["attn.cu_seqlens", "batch.oob_token"])
def test_an_unknown_kind_is_refused_in_words(worker: Any, kind: str) -> None:
    """The status lists the known ones."""
    worker.arm(kind, kind="sideways")
    worker.decode()
    assert worker.status().state == "disarmed"
    assert "'sideways', expected" in worker.status().error


def test_low_memory_is_read_a_few_times_and_then_the_truth_again(worker: Any) -> None:
    """Readings are simulated, and the evidence says so."""
    worker.arm("host.mem_pressure", free_bytes=1000, times=2)
    readings = []
    for _ in range(3):
        worker.decode()
        readings.append(worker.call(DeviceMemoryCall).free_bytes)
    assert readings == [1000, 1000, 8 << 30]
    evidence = worker.armoury.statuses()[0].evidence
    assert "simulated" in evidence.place
    assert evidence.before == f"{8 << 30} bytes free"


def test_memory_that_is_already_lower_is_not_raised(worker: Any) -> None:
    """Then the fault has changed nothing, and does not claim that it fired."""
    worker.arm("host.mem_pressure", free_bytes=1 << 40)
    worker.decode()
    assert worker.call(DeviceMemoryCall).free_bytes == 8 << 30
    assert worker.armoury.statuses()[0].state == "armed"
