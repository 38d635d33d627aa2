"""A snapshot gives back the very call: every record, every dtype, views, and what is not finite."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tocsin.checker.snapshot import (
    load_call,
    load_document,
    numbers,
    records,
    save_call,
    save_calls,
    tensor_fields,
    with_tensors,
)
from tocsin.core import calls
from tocsin.core.calls import (
    AllReduceCall,
    AttentionCall,
    BatchCall,
    Call,
    KVReadCall,
    LinearCall,
    SamplerCall,
    StructuredOutputCall,
)
from tocsin.core.errors import ContractError, EnvironmentFault

torch.set_num_threads(1)

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.bool,
)


def same(one: Call, other: Call) -> bool:
    """Whether two records hold the same bits."""
    if type(one) is not type(other):
        return False
    return all(
        _equal(getattr(one, field.name), getattr(other, field.name))
        for field in dataclasses.fields(one)
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and (one.stride() == other.stride() or (one.is_contiguous() and other.is_contiguous()))
            and torch.equal(_bits(one), _bits(other))
        )
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


@st.composite
def any_call(draw: st.DrawFn) -> Call:
    """Any record with fields of any of its types."""
    record = draw(st.sampled_from(sorted(records().values(), key=lambda one: one.__name__)))
    values: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        hint = str(field.type) if not isinstance(field.type, type) else field.type.__name__
        choices: list[st.SearchStrategy[Any]] = []
        if "Tensor" in hint:
            choices.append(_tensors())
        if "None" in hint:
            choices.append(st.none())
        if hint.startswith("float"):
            choices.append(st.floats())
        if hint.startswith("int") or hint in ("bool",):
            choices.append(st.booleans() if hint == "bool" else st.integers(-5, 1 << 40))
        if hint == "str":
            choices.append(st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
        if "tuple" in hint:
            choices.append(st.lists(st.text("ab", max_size=3), max_size=3).map(tuple))
        if "dict" in hint:
            choices.append(st.just({"type": "object", "$ref": "#", "enum": [1, None, "é"]}))
        values[field.name] = draw(st.one_of(choices))
    return record(**values)


@st.composite
def _tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.randn(shape, generator=generator) * 5
    if values.numel() and dtype.is_floating_point:
        values.view(-1)[0] = draw(st.sampled_from([0.0, math.nan, math.inf, -math.inf]))
    tensor = values.to(dtype)
    how = draw(st.sampled_from(["plain", "transposed", "strided", "expanded"]))
    if how == "transposed" and tensor.ndim > 1:
        return tensor.transpose(0, -1)
    if how == "strided" and tensor.ndim:
        return torch.cat((tensor, tensor))[::2]
    if how == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    return tensor


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(call=any_call())
def test_every_record_comes_back_as_it_was(
    call: Call, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Proves that any call of any record, dtype, shape and stride survives the disk."""
    folder = tmp_path_factory.mktemp("snap") / "ONE"
    save_call(call, folder)
    back = load_call(folder)
    assert same(call, back), (call, back)


def test_the_records_are_those_of_the_core() -> None:
    """Proves that a new record class is known without being listed."""
    assert {"LinearCall", "KVReadCall", "BatchCall", "WeightCall"} <= set(records())
    assert records()["LinearCall"] is calls.LinearCall
    assert "Call" not in records()


def test_views_of_one_memory_are_stored_each_for_itself(tmp_path: Path) -> None:
    """Proves that storage-sharing fields are no error and share nothing afterwards."""
    memory = torch.arange(48.0).reshape(2, 2, 3, 4)
    call = AttentionCall(q=memory, k=memory, v=memory[:, :, 1:], output=memory[..., :4])
    save_call(call, tmp_path / "ONE")
    back = load_call(tmp_path / "ONE")
    assert isinstance(back, AttentionCall)
    assert same(call, back)
    assert back.q.untyped_storage().data_ptr() != back.k.untyped_storage().data_ptr()


def test_a_broadcast_axis_is_stored_once(tmp_path: Path) -> None:
    """Proves that a mask expanded over a thousand heads does not fill the disk."""
    mask = torch.ones(1, 8).expand(1000, 8)
    q = torch.ones(1, 1, 1, 4)
    save_call(AttentionCall(q=q, k=q, v=q, mask=mask), tmp_path / "ONE")
    assert (tmp_path / "ONE" / "call.safetensors").stat().st_size < 2000
    back = load_call(tmp_path / "ONE")
    assert isinstance(back, AttentionCall)
    assert back.mask is not None
    assert back.mask.shape == (1000, 8)


def test_sequences_of_tensors_and_mixed_scalars_come_back(tmp_path: Path) -> None:
    """Proves the fields that are a sequence, or a number in one call and a tensor in another."""
    partials: Any = (torch.ones(2), torch.zeros(3, dtype=torch.bfloat16))
    save_call(AllReduceCall(partials=partials, output=torch.ones(2)), tmp_path / "A")
    assert same(AllReduceCall(partials=partials, output=torch.ones(2)), load_call(tmp_path / "A"))
    call = SamplerCall(probs=torch.ones(2, 3), temperature=torch.ones(2), top_p=math.inf, top_k=3)
    save_call(call, tmp_path / "S")
    assert same(call, load_call(tmp_path / "S"))
    text = StructuredOutputCall(text='{"a": "NaN"}', json_schema={"$ref": "#", "const": "NaN"})
    save_call(text, tmp_path / "T")
    assert same(text, load_call(tmp_path / "T"))


def test_the_document_says_what_a_person_asks(tmp_path: Path) -> None:
    """Proves that call.json is strict JSON with forms, scalars and what the caller added."""
    call = LinearCall(
        module="layers.3.mlp.up", depth=3, rows=2, x=torch.ones(2, 4), weight=torch.ones(8, 4).T.T
    )
    about = {"failure_id": "F", "check": "numerical.linear_checksum", "ratio": "NaN"}
    save_call(call, tmp_path / "F", about, extra={"request.json": {"seed": 7}})
    text = (tmp_path / "F" / "call.json").read_text()
    document = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert document == load_document(tmp_path / "F")
    assert document["record"] == "LinearCall"
    assert (document["module"], document["depth"], document["operator"]) == (
        "layers.3.mlp.up",
        3,
        "linear",
    )
    assert document["tensors"]["x"] == {"shape": [2, 4], "dtype": "float32", "device": "cpu"}
    assert document["elements"] == 40
    assert document["scalars"]["rows"] == 2
    assert document["failure_id"] == "F"
    assert json.loads((tmp_path / "F" / "request.json").read_text()) == {"seed": 7}


def test_a_failure_may_have_several_calls(tmp_path: Path) -> None:
    """Proves that further calls stand beside the first, each with its own words."""
    first = LinearCall(x=torch.ones(1, 2), weight=torch.ones(2, 2))
    second = BatchCall(
        input_ids=torch.tensor([1]),
        input_ids_expected=torch.tensor([2]),
        position_ids=torch.tensor([0]),
        position_ids_expected=torch.tensor([0]),
        vocab_size=9,
        request_ids=("a", ""),
    )
    save_calls(tmp_path / "F", [(first, {"check": "a"}), (second, {"check": "b"})])
    assert numbers(tmp_path / "F") == (1, 2)
    assert same(first, load_call(tmp_path / "F"))
    assert same(second, load_call(tmp_path / "F", 2))
    assert load_document(tmp_path / "F", 2)["check"] == "b"
    assert [one.name for one in tmp_path.iterdir()] == ["F"]


def test_a_disk_that_takes_nothing_leaves_no_half_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that a folder appears whole or not at all."""

    def full(*args: Any, **kwargs: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        save_call(LinearCall(x=torch.ones(1, 2), weight=torch.ones(2, 2)), tmp_path / "F")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_stored_is_named(tmp_path: Path) -> None:
    """Proves that a sparse tensor is told, and that the call then says why it cannot be read."""
    call = LinearCall(x=torch.ones(1, 2), weight=torch.eye(2).to_sparse())
    document = save_call(call, tmp_path / "F")
    assert "sparse" in document["not_stored"]["weight"]
    with pytest.raises(ContractError, match=r"lacks fields of LinearCall.*sparse"):
        load_call(tmp_path / "F")


def test_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves the words for a missing folder, an unknown record and a missing library."""
    with pytest.raises(ContractError, match="was not found, expected the snapshot of a failure"):
        load_call(tmp_path / "none")
    call = LinearCall(x=torch.ones(1, 2), weight=torch.ones(2, 2))
    save_call(call, tmp_path / "F")
    path = tmp_path / "F" / "call.json"
    path.write_text(path.read_text().replace('"LinearCall"', '"OldCall"'))
    with pytest.raises(ContractError, match="is of record 'OldCall', known are"):
        load_call(tmp_path / "F")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match="pip install safetensors"):
        save_call(call, tmp_path / "G")


@pytest.mark.parametrize("name", ["call.json", "call.safetensors"])
@pytest.mark.parametrize("left", [None, 0, 1, 60, -1])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, left: int | None) -> None:
    """Proves that one line names the file that is gone, empty, or cut at any byte."""
    folder = tmp_path / "F"
    save_call(LinearCall(x=torch.ones(1, 2), weight=torch.ones(2, 2)), folder)
    whole = (folder / name).read_bytes()
    (folder / name).unlink()
    if left is not None:
        # The last byte of the document is its line feed: without the brace, too, it is cut.
        (folder / name).write_bytes(whole[: left if left >= 0 else left - 1])
    with pytest.raises(ContractError, match=rf"{name} (was not found|is damaged).*expected") as one:
        load_call(folder)
    assert "\n" not in str(one.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"tensors": None},
        {"scalars": 5},
        {"tensors": {"x": {"shape": [7, 7]}, "weight": {"shape": [2, 2]}}},
        {"tensors": {"x": {"shape": [1, 2], "stride": [1]}}},
        {"tensors": {"x": {"shape": "wide"}}},
        {"tensors": {"other": {"shape": [1]}, "x": {"parts": [{"shape": [1]}]}}},
    ],
)
def test_a_document_that_does_not_fit_its_tensors_is_named(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Proves that wrong shapes and strides are one line, not an error of torch."""
    folder = tmp_path / "F"
    save_call(LinearCall(x=torch.ones(1, 2), weight=torch.ones(2, 2)), folder)
    path = folder / "call.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ContractError, match=r"call\.json is damaged"):
        load_call(folder)
    path.write_text("[]")
    with pytest.raises(ContractError, match="it holds a list"):
        load_call(folder)


def test_tensors_can_be_exchanged_by_name() -> None:
    """Proves the two halves that a capture and a shrinker need: names to tensors, and back."""
    partials: Any = (torch.ones(2), torch.zeros(2))
    call = AllReduceCall(partials=partials, output=torch.ones(2))
    assert list(tensor_fields(call)) == ["partials.0", "partials.1", "output"]
    moved = with_tensors(call, {"partials.1": torch.full((2,), 5.0)})
    assert isinstance(moved, AllReduceCall)
    assert torch.equal(moved.partials[1], torch.full((2,), 5.0))
    assert torch.equal(call.partials[1], torch.zeros(2))
    assert KVReadCall.operator in {record.operator for record in records().values()}
