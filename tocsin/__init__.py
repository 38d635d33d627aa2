"""Tocsin makes silent faults in LLM inference loud, contained and repaired, and proves it."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tocsin.checker.attach.torch_ops import checking
    from tocsin.checker.decorator import with_fault_check
    from tocsin.checker.guard import Guard, attach
    from tocsin.checker.inspect import inspect
    from tocsin.checker.reproduce import reproduce_from_log
    from tocsin.core.errors import CheckFailed

_LAZY = {
    "CheckFailed": "tocsin.core.errors",
    "Guard": "tocsin.checker.guard",
    "attach": "tocsin.checker.guard",
    "checking": "tocsin.checker.attach.torch_ops",
    "inspect": "tocsin.checker.inspect",
    "reproduce_from_log": "tocsin.checker.reproduce",
    "with_fault_check": "tocsin.checker.decorator",
}
"""Name → the module that has it: `import tocsin` alone loads neither torch nor a part."""

__all__ = [
    "CheckFailed",
    "Guard",
    "attach",
    "checking",
    "inspect",
    "reproduce_from_log",
    "with_fault_check",
]


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tocsin' has no attribute {name!r}; known are {__all__}")
    return getattr(importlib.import_module(_LAZY[name]), name)
