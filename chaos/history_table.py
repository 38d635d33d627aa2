"""The table of whole requests: one row each, its scalar fields as columns, its tokens as lists."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from tocsin.core.history import Chunk, Outcome, RequestRecord
from tocsin.core.system import LoadRequest

_CHUNK = ("t_ns", "index", "token", "text")
_INTS = ("max_new_tokens", "http_status", "usage_tokens", "terminals")
_LISTS = ("degraded", "attempts")
_SCALARS = tuple(
    field.name
    for field in dataclasses.fields(RequestRecord)
    if field.name not in ("chunks", "outcome", *_LISTS)
)


def _kind(name: str) -> pa.DataType:
    if name in ("stream", "replayed"):
        return pa.bool_()
    return pa.int64() if name.startswith("t_") or name in _INTS else pa.string()


SCHEMA = pa.schema(
    [
        ("phase", pa.string()),
        *((name, _kind(name)) for name in _SCALARS),
        ("outcome", pa.string()),
        *((name, pa.list_(pa.string())) for name in _LISTS),
        *(
            (f"chunk_{name}", pa.list_(pa.string() if name == "text" else pa.int64()))
            for name in _CHUNK
        ),
        ("request", pa.string()),
    ]
)
"""`phase` is `warmup` or `load`; `request` is what was sent, as JSON, `null` where not kept."""


def history_table(
    phased: Iterable[tuple[str, RequestRecord]], requests: Mapping[str, LoadRequest]
) -> pa.Table:
    """Records as rows, in their order."""
    rows = list(phased)
    columns: dict[str, list[Any]] = {"phase": [phase for phase, _ in rows]}
    for name in _SCALARS:
        columns[name] = [getattr(record, name) for _, record in rows]
    columns["outcome"] = [str(record.outcome) for _, record in rows]
    for name in _LISTS:
        columns[name] = [list(getattr(record, name)) for _, record in rows]
    for name in _CHUNK:
        columns[f"chunk_{name}"] = [
            [getattr(chunk, name) for chunk in record.chunks] for _, record in rows
        ]
    columns["request"] = [_request_text(requests.get(record.request_id)) for _, record in rows]
    return pa.table(columns, schema=SCHEMA)


def read_request(row: Mapping[str, Any]) -> LoadRequest:
    """What was sent, of a row whose `request` is not `null`."""
    return LoadRequest(**json.loads(row["request"]))


def read_record(row: Mapping[str, Any]) -> RequestRecord:
    """The record that a row was made of."""
    names = {field.name for field in dataclasses.fields(RequestRecord)}
    fields = {name: value for name, value in row.items() if name in names}
    columns = [row[f"chunk_{name}"] for name in _CHUNK]
    fields["chunks"] = [Chunk(*values) for values in zip(*columns, strict=True)]
    fields["outcome"] = Outcome(row["outcome"])
    fields["degraded"] = tuple(row["degraded"])
    fields["attempts"] = tuple(row["attempts"])
    return RequestRecord(**fields)


def _request_text(request: LoadRequest | None) -> str:
    return json.dumps(dataclasses.asdict(request) if request else None, default=str)
