"""Any value as strict JSON."""

import json
import math
from typing import Any


def plain_json(value: Any) -> Any:
    """The value with NaN and infinities as text, tuples as lists, keys as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value) if isinstance(value, str) else value
    return str(value)


def line_of(record: dict[str, Any]) -> bytes:
    """One line of the journal."""
    text = json.dumps(plain_json(record), ensure_ascii=False, allow_nan=False)
    # A lone surrogate in a text must not cost the line.
    return text.encode("utf-8", "backslashreplace") + b"\n"
