"""The digest of a history: equal digests, equal runs; and where two of them part."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.chaos.case import Case
from tocsin.chaos.store import occurrence_document

_LETTERS_MOST = 160


def history_document(case: Case) -> dict[str, Any]:
    """What happened, JSON-safe: requests as clients saw them, events, occurrences."""
    document = {
        "warmup": [dataclasses.asdict(record) for record in case.warmup],
        "history": [dataclasses.asdict(record) for record in case.records],
        "events": [dataclasses.asdict(event) for event in case.events],
        "occurrences": [occurrence_document(one) for one in case.occurrences],
        "aborted": case.aborted,
    }
    plain: dict[str, Any] = json.loads(_canonical(document))
    return plain


def history_digest(case: Case) -> str:
    """SHA-256, hexadecimal, of the canonical JSON of `history_document`."""
    return hashlib.sha256(_canonical(history_document(case)).encode()).hexdigest()


def first_difference(one: Any, other: Any, place: str = "") -> str:
    """Where two documents part first, in words; empty when they are equal."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            if key not in one or key not in other:
                return f"{place}.{key} is in one of them only".lstrip(".")
            found = first_difference(one[key], other[key], f"{place}.{key}".lstrip("."))
            if found:
                return found
        return ""
    if _is_list(one) and _is_list(other):
        for i, (mine, others) in enumerate(zip(one, other, strict=False)):
            found = first_difference(mine, others, f"{place}[{i}]")
            if found:
                return found
        if len(one) != len(other):
            return f"{place} has {len(one)} entries, the other {len(other)}"
        return ""
    if one == other or (one != one and other != other):
        return ""
    return f"{place} is {_shown(one)}, in the other {_shown(other)}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _LETTERS_MOST else f"{text[:_LETTERS_MOST]}…"


def _canonical(document: Any) -> str:
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_plain
    )


def _plain(value: Any) -> Any:
    """As the store writes it: sets sorted, the rest as text."""
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
