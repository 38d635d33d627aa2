"""`tocsin.inspect`: the checks of one operator call, without a model and without an engine.

The name of this module is the name of its function; nothing may put this folder on `sys.path`.
"""

import dataclasses
import math
import operator as arithmetic
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from tocsin.checker.checks.semantic.structured_output import why_not
from tocsin.checker.contract import Check, checks_for
from tocsin.checker.finding import make_finding
from tocsin.checker.ratios import field_names
from tocsin.checker.structure import problem
from tocsin.core import calls
from tocsin.core.calls import Call, StructuredOutputCall, VarlenAttentionCall
from tocsin.core.errors import ContractError
from tocsin.core.terms import Layer, Operator
from tocsin.core.verdict import Finding, Verdict

RECORDS: Final[Mapping[Operator, type[Call]]] = types.MappingProxyType(
    {
        record.operator: record
        for record in (
            calls.TokenizerOutputCall,
            calls.EmbeddingCall,
            calls.RopeCall,
            calls.RMSNormCall,
            calls.LinearCall,
            calls.SwiGLUCall,
            calls.AttentionCall,
            calls.VarlenAttentionCall,
            calls.KVUpdateCall,
            calls.LogitsCall,
            calls.LogitProcessorCall,
            calls.SamplerCall,
            calls.AllReduceCall,
            calls.StructuredOutputCall,
        )
    }
)
"""The operators that can be looked at alone, with their records."""


def inspect(operator: str, /, **fields: Any) -> Verdict:
    """Run every check of one operator on one call.

    Checks that compare with an output run only when it is given. Lists and numbers become
    tensors where the field is one. A malformed tensor is a finding, not an error.

    Args:
        operator: one of the first fourteen of `tocsin.core.terms.Operator`.
        fields: the fields of the operator's record in `tocsin/core/calls.py`.

    Returns:
        The worst finding of each check that alarmed, numerical layer first, with its rows.

    Raises:
        ContractError: (a ValueError) an unknown operator, an unknown or missing field.
    """
    return judge(build(operator, fields))


def judge(call: Call, layers: tuple[str, ...] | None = None) -> Verdict:
    """Run the checks of a call that stands by itself; reads the ratios back at once."""
    findings: list[Finding] = []
    run = 0
    with torch.no_grad():
        for unit in checks_for(call.operator, layers):
            ratio = unit(call)
            if ratio.numel() == 0:  # nothing to check here: not run
                continue
            run += 1
            found = _finding(unit, call, ratio)
            if found is not None:
                findings.append(found)
    return Verdict(tuple(findings), run)


def build(operator: str, fields: Mapping[str, Any]) -> Call:
    """The record of one call.

    Raises:
        ContractError: an unknown operator, an unknown or missing field, a field of a wrong kind.
    """
    record = record_of(operator)
    kinds = fields_of(record)
    unknown = sorted(set(fields) - set(kinds))
    if unknown:
        raise ContractError(
            f"{operator}: found field {', '.join(unknown)}, known are {', '.join(kinds)}; "
            "correct the name"
        )
    given = {name: value for name, value in fields.items() if value is not None}
    missing = [name for name in required(record) if name not in given]
    if record is VarlenAttentionCall and not given.keys() & {"qkv", "total_q", "total_k"}:
        missing += [name for name in ("q", "k", "v") if name not in given]
    if missing:
        raise ContractError(
            f"{operator}: found no {', '.join(missing)}, expected at least "
            f"{', '.join(required(record))}; pass what is missing"
        )
    values = {name: _converted(operator, name, kinds[name], given[name]) for name in given}
    call = record(**_batched(record, values))
    return dataclasses.replace(call, rows=_rows(call))


def record_of(operator: str) -> type[Call]:
    """The record of an operator that can be looked at alone.

    Raises:
        ContractError: it is none of those.
    """
    known = {str(name): record for name, record in RECORDS.items()}
    record = known.get(str(operator))
    if record is None:
        raise ContractError(
            f"inspect: found operator {operator!r}, known are {', '.join(known)}; correct the name"
        )
    return record


def fields_of(record: type[Call]) -> Mapping[str, frozenset[Any]]:
    """Names of a record's fields with the types that each may have."""
    return _KINDS[record]


def required(record: type[Call]) -> tuple[str, ...]:
    """Fields without a default."""
    fields = dataclasses.fields(record)
    return tuple(
        field.name
        for field in fields
        if field.name in _KINDS[record] and field.default is dataclasses.MISSING
    )


def _kinds(record: type[Call]) -> Mapping[str, frozenset[Any]]:
    hints = typing.get_type_hints(record)
    kinds = {}
    for name in field_names(record):
        members = typing.get_args(hints[name])
        union = isinstance(hints[name], types.UnionType)
        members = members if union else (hints[name],)
        kinds[name] = frozenset(typing.get_origin(member) or member for member in members)
    return types.MappingProxyType(kinds)


_KINDS: Final = {record: _kinds(record) for record in RECORDS.values()}


def _converted(operator: str, name: str, kinds: frozenset[Any], value: Any) -> Any:
    """A value as its field wants it; what cannot become a tensor stays, and is a finding."""
    if Tensor in kinds and not (isinstance(value, int | float) and kinds & {int, float}):
        if isinstance(value, list | tuple) and value and all(isinstance(v, Tensor) for v in value):
            return torch.stack(tuple(value)) if len({v.shape for v in value}) == 1 else value
        try:
            return value if isinstance(value, Tensor) else torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            return value
    try:
        if kinds & {bool}:
            return bool(value)
        if int in kinds and float not in kinds:
            return arithmetic.index(value)
        if float in kinds:
            return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ContractError(
            f"{operator}: {name} is {value!r}, expected a number; correct the argument"
        ) from error
    wanted = next(
        (kind for kind in (str, dict) if kind in {typing.get_origin(k) or k for k in kinds}), None
    )
    if wanted is not None and not isinstance(value, wanted):
        raise ContractError(
            f"{operator}: {name} is a {type(value).__name__}, expected a {wanted.__name__}; "
            "correct the argument"
        )
    return value


_TRAILING: Final[Mapping[type[Call], Mapping[str, int]]] = {
    calls.AttentionCall: {"q": 3, "k": 3, "v": 3, "output": 3, "lse": 2},
    calls.RopeCall: {
        "q": 3, "k": 3, "cos": 2, "sin": 2, "position_ids": 1, "q_out": 3, "k_out": 3,
    },
    calls.SamplerCall: {"probs": 1, "token_ids": 0},
    calls.TokenizerOutputCall: {"input_ids": 1, "attention_mask": 1, "position_ids": 1},
}  # fmt: skip
"""Axes that a tensor has after those of the batch, where a check wants exactly one batch axis."""


def _batched(record: type[Call], values: dict[str, Any]) -> dict[str, Any]:
    """The values with any number of batch axes, none included, made one."""
    for name, trailing in _TRAILING.get(record, {}).items():
        value = values.get(name)
        if isinstance(value, Tensor) and value.ndim >= trailing:
            lead = value.ndim - trailing
            values[name] = value.reshape(math.prod(value.shape[:lead]), *value.shape[lead:])
    return values


def _rows(call: Call) -> int | None:
    """Number of rows to which the tokens are reduced: the first axis, if it is not the last."""
    if isinstance(call, VarlenAttentionCall):
        return None
    if isinstance(call, calls.KVUpdateCall):
        table = call.block_table
        return table.shape[0] if isinstance(table, Tensor) and table.ndim else None
    for name in ("input_ids", "q", "x", "gate", "logits", "before", "probs", "output"):
        tensor = getattr(call, name, None)
        if isinstance(tensor, Tensor):
            return tensor.shape[0] if tensor.ndim > 1 else None
    return None


def _finding(unit: Check, call: Call, ratio: Tensor) -> Finding | None:
    """The worst of a ratio's alarms; None when there is none."""
    flat = ratio.detach().reshape(-1).to("cpu", torch.float32)
    if call.rows and flat.numel() > call.rows and flat.numel() % call.rows == 0:
        flat = flat.reshape(call.rows, -1).amax(dim=1)
    over = ~(flat <= 1.0)
    if not bool(over.any()):
        return None
    whole = flat.numel() == 1 and (call.rows or 1) != 1
    rows = () if whole or flat.numel() == 1 else tuple(torch.nonzero(over).flatten().tolist())
    return make_finding(
        unit,
        call.operator,
        float(flat.amax()),
        rows,
        module=call.module,
        depth=call.depth,
        detail=_detail(unit, call),
    )


def _detail(unit: Check, call: Call) -> str:
    """What is wrong in words, where the form of the call or the text of an answer says it."""
    if isinstance(call, StructuredOutputCall):
        return why_not(call.text, call.json_schema)
    if unit.layer is Layer.MEMORY or unit.layer is Layer.STATE:
        return problem(call)
    return ""
