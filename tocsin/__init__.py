"""Tocsin makes silent faults in LLM inference loud, contained and repaired, and proves it."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tocsin.checker.guard import Guard, attach

_LAZY = {
    "Guard": "tocsin.checker.guard",
    "attach": "tocsin.checker.guard",
}
"""Name → the module that has it: `import tocsin` alone loads neither torch nor a part."""

__all__ = ["Guard", "attach"]


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tocsin' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
