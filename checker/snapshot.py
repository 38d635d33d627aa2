"""One operator call as a folder: its tensors in `call.safetensors`, all the rest in `call.json`.

Tensors come back with their dtype, shape and strides, on the CPU; views of one memory are stored
each for itself. A folder appears whole or not at all.
"""

import dataclasses
import importlib.util
import json
import math
import os
import shutil
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tocsin.core import calls
from tocsin.core.calls import Call
from tocsin.core.errors import ContractError, EnvironmentFault

TENSORS = "call.safetensors"
DOCUMENT = "call.json"
REQUEST = "request.json"

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def can_save() -> bool:
    """Whether the library that writes tensors is there."""
    return importlib.util.find_spec("safetensors") is not None


def save_call(
    call: Call,
    folder: Path,
    about: Mapping[str, Any] | None = None,
    *,
    extra: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Write one call; see `save_calls`.

    Args:
        about: what else the document shall say: failure_id, check, ratio, thresholds, …

    Returns:
        The document as written to `call.json`.
    """
    return save_calls(folder, ((call, about or {}),), extra)[0]


def save_calls(
    folder: Path,
    exhibits: Sequence[tuple[Call, Mapping[str, Any]]],
    extra: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Write the calls of one failure, the first failing one as `call.json`, then `call-2.json`, …

    Args:
        folder: a snapshot that is there already is replaced.
        exhibits: calls on any device, each with what its document shall say beside.
        extra: further JSON documents by file name, for example `request.json`.

    Returns:
        The documents as written.

    Raises:
        EnvironmentFault: safetensors is not installed.
        OSError: the disk does not take it; nothing is left behind.
    """
    _need_safetensors()
    from safetensors.torch import save

    work = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    documents: list[dict[str, Any]] = []
    try:
        work.mkdir(parents=True, exist_ok=True)
        for number, (call, about) in enumerate(exhibits, start=1):
            tensors: dict[str, Tensor] = {}
            document = {
                **about,
                "record": type(call).__name__,
                "operator": str(call.operator),
                "module": call.module,
                "depth": call.depth,
                **_split(call, tensors),
            }
            (work / _named(TENSORS, number)).write_bytes(save(tensors))
            (work / _named(DOCUMENT, number)).write_text(_dumps(document), encoding="utf-8")
            documents.append(document)
        for name, content in (extra or {}).items():
            (work / name).write_text(_dumps(content), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return documents


def load_call(folder: Path, number: int = 1) -> Call:
    """The call of a snapshot folder, as it was, on the CPU.

    Raises:
        ContractError: the folder holds no call of that number, not one of these records, or one
            that is damaged.
        EnvironmentFault: safetensors is not installed.
    """
    document = load_document(folder, number)
    _need_safetensors()
    tensors = _load_tensors(folder / _named(TENSORS, number))
    record = records().get(str(document.get("record")))
    if record is None:
        raise ContractError(
            f"snapshot: {folder / DOCUMENT} is of record {document.get('record')!r}, known are "
            f"{', '.join(records())}; read it with the version that wrote it"
        )
    try:
        values = _values(record, document, tensors)
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        # What torch raises for a wrong shape is a RuntimeError.
        raise _damaged(folder / _named(DOCUMENT, number), error) from error
    try:
        return record(**values)
    except TypeError as error:
        raise ContractError(
            f"snapshot: {folder / DOCUMENT} lacks fields of {record.__name__} ({error}); "
            f"not stored were {document.get('not_stored') or 'none'}"
        ) from error


def load_document(folder: Path, number: int = 1) -> dict[str, Any]:
    """What `call.json` says.

    Raises:
        ContractError: there is no such file, or it is damaged.
    """
    path = folder / _named(DOCUMENT, number)
    if not path.is_file():
        raise ContractError(
            f"snapshot: {path} was not found, expected the snapshot of a failure; "
            "look into the journal's field `snapshot`"
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no UTF-8
        raise _damaged(path, error) from error
    if not isinstance(document, dict):
        raise _damaged(path, f"it holds a {type(document).__name__}")
    return document


def numbers(folder: Path) -> tuple[int, ...]:
    """Numbers of the calls in a folder: 1 is the first failing one."""
    found = [number for number in range(1, 17) if (folder / _named(DOCUMENT, number)).is_file()]
    return tuple(found)


@cache
def records() -> Mapping[str, type[Call]]:
    """Every record class of `tocsin.core.calls` by name."""
    found = (one for one in vars(calls).values() if isinstance(one, type))
    return types.MappingProxyType(
        {one.__name__: one for one in found if issubclass(one, Call) and one is not Call}
    )


def tensor_fields(call: Call) -> dict[str, Tensor]:
    """The tensors of a call by field; those of a sequence by `field.0`, `field.1`, …"""
    found: dict[str, Tensor] = {}
    for field in dataclasses.fields(call):
        value = getattr(call, field.name)
        if isinstance(value, Tensor):
            found[field.name] = value
        elif _is_sequence_of_tensors(value):
            found.update({f"{field.name}.{index}": one for index, one in enumerate(value)})
    return found


def with_tensors(call: Call, tensors: Mapping[str, Tensor]) -> Call:
    """A copy of the call with other tensors under the names of `tensor_fields`."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(call):
        value = getattr(call, field.name)
        if _is_sequence_of_tensors(value):
            changes[field.name] = tuple(
                tensors.get(f"{field.name}.{index}", one) for index, one in enumerate(value)
            )
        elif field.name in tensors:
            changes[field.name] = tensors[field.name]
    return dataclasses.replace(call, **changes)


def _split(call: Call, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Scalars and forms of a call; its tensors go into `tensors`."""
    scalars: dict[str, Any] = {}
    forms: dict[str, Any] = {}
    not_stored: dict[str, str] = {}
    elements = 0
    for field in dataclasses.fields(call):
        name, value = field.name, getattr(call, field.name)
        several = _is_sequence_of_tensors(value)
        if several or isinstance(value, Tensor):
            parts = list(value) if several else [value]
            packed = [_packed(part) for part in parts]
            if any(part is None for part in packed):
                not_stored[name] = f"{parts[0].dtype} on {parts[0].device}, {parts[0].layout}"
                continue
            names = [f"{name}.{index}" for index in range(len(parts))] if several else [name]
            tensors.update(
                {key: part for key, part in zip(names, packed, strict=True) if part is not None}
            )
            elements += sum(part.numel() for part in parts)
            forms[name] = {"parts": list(map(_form, parts))} if several else _form(value)
        else:
            plain = _plain(value)
            if plain is None and value is not None:
                not_stored[name] = type(value).__name__
            else:
                scalars[name] = plain
    return {
        "scalars": scalars,
        "tensors": forms,
        "elements": elements,
        "not_stored": not_stored,
    }


def _form(tensor: Tensor) -> dict[str, Any]:
    form: dict[str, Any] = {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
    }
    if not tensor.is_contiguous():
        form["stride"] = list(tensor.stride())
    return form


def _packed(tensor: Tensor) -> Tensor | None:
    """Values in a memory of their own; axes of stride 0 are stored once; None: cannot be."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    if tensor.dtype.is_complex:
        return None
    packed = tensor.detach()
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            packed = packed.narrow(axis, 0, 1)
    # A fresh memory even where nothing needs to move: safetensors refuses shared storage.
    return packed.to("cpu").clone(memory_format=torch.contiguous_format)


def _load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors by name.

    Raises:
        ContractError: the file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not path.is_file():
        raise ContractError(
            f"snapshot: {path} was not found, expected the tensors of the call; copy the whole "
            "folder of the snapshot, or take another failure of this operator"
        )
    try:
        return load(path.read_bytes())
    except (SafetensorError, ValueError) as error:
        raise _damaged(path, error) from error


def _values(
    record: type[Call], document: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """The fields of a record as a document and its tensors have them."""
    forms: Mapping[str, Mapping[str, Any]] = document["tensors"]
    scalars: Mapping[str, Any] = document["scalars"]
    kinds = _kinds(record)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        if field.name in scalars:
            values[field.name] = _scalar(scalars[field.name], kinds[field.name])
        elif field.name in forms:
            values[field.name] = _joined(field.name, forms[field.name], tensors)
    return values


def _damaged(path: Path, found: object) -> ContractError:
    words = str(found).partition("\n")[0][:120]
    why = f"no entry {words}" if isinstance(found, KeyError) else words
    return ContractError(
        f"snapshot: {path} is damaged ({why}), expected what was written when the failure was "
        "recorded; copy it again, or take another failure of this operator"
    )


def _joined(name: str, form: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    if "parts" in form:
        return tuple(
            _unpacked(one, tensors[f"{name}.{index}"]) for index, one in enumerate(form["parts"])
        )
    return _unpacked(form, tensors[name])


def _unpacked(form: Mapping[str, Any], stored: Tensor) -> Tensor:
    """The stored values under the shape and strides that they had."""
    shape, stride = form["shape"], form.get("stride")
    if stride is None:
        return stored.reshape(shape)
    once = [1 if step == 0 else size for step, size in zip(stride, shape, strict=True)]
    if _overlaps(once, stride):
        return stored.expand(shape)
    memory = torch.empty_strided(once, stride, dtype=stored.dtype).copy_(stored)
    return memory.as_strided(shape, stride)


def _overlaps(shape: list[int], stride: list[int]) -> bool:
    """Whether two elements may share a place: such strides cannot be written to."""
    reach = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1:
            if step < reach:
                return True
            reach = step * (size - 1) + reach
    return False


def _plain(value: Any) -> Any:
    """A JSON value; None where there is none (and for None)."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _text(value)
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return None


def _scalar(value: Any, kinds: frozenset[Any]) -> Any:
    """A JSON value as the field wants it."""
    if isinstance(value, str) and float in kinds and str not in kinds:
        return _NOT_FINITE.get(value, value)
    if isinstance(value, list) and tuple in kinds:
        return tuple(value)
    return value


def _kinds(record: type[Call]) -> Mapping[str, frozenset[Any]]:
    """The types that each field of a record may have."""
    kinds = {}
    for name, hint in typing.get_type_hints(record).items():
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds[name] = frozenset(typing.get_origin(member) or member for member in members)
    return kinds


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _dumps(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _is_sequence_of_tensors(value: Any) -> bool:
    return (
        isinstance(value, tuple | list)
        and bool(value)
        and all(isinstance(one, Tensor) for one in value)
    )


def _named(name: str, number: int) -> str:
    """`call.json`, `call-2.json`, …"""
    stem, _, suffix = name.partition(".")
    return name if number == 1 else f"{stem}-{number}.{suffix}"


def _need_safetensors() -> None:
    if not can_save():
        raise EnvironmentFault(
            "snapshot: the package safetensors was not found, expected for full snapshots; "
            "pip install safetensors"
        )
