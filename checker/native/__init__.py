"""The checks' arithmetic in C++: one call for all layers, where a compiler could build it.

`available()` builds and loads the operators at its first call; until it has said True there is no
`torch.ops.tocsin.*`, and the checks run in Python. `reason()` says why, for status and log.
"""

import logging
import os
import threading

import torch
from torch import Tensor

from tocsin.checker.native import build, fakes
from tocsin.core.errors import EnvironmentFault

DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
SWITCH = "TOCSIN_NATIVE"

_log = logging.getLogger("tocsin.checker.native")
_reason: str | None = None
_loading = threading.Lock()


def available() -> bool:
    """Whether the operators are there; builds them, once, where a compiler is."""
    global _reason
    if _reason is None:
        with _loading:
            if _reason is None:
                _reason = _load()
                if _reason:
                    _log.warning("the checks run in Python, which costs more: %s", _reason)
    return not _reason


def loaded() -> bool:
    """Whether the operators are there already; builds nothing."""
    return _reason == ""


def reason() -> str:
    """Why the operators are not there; empty when they are."""
    available()
    return _reason or ""


def takes(*tensors: Tensor) -> bool:
    """Whether the operators can read these: dense, on the CPU, of one of three dtypes."""
    return all(
        tensor.device.type == "cpu" and tensor.dtype in DTYPES and tensor.layout is torch.strided
        for tensor in tensors
    )


def block_norms(features_N: Tensor, block_size: int) -> Tensor:
    """[G] float32 Euclidean norms of a bias in the blocks of a linear checksum."""
    parts = torch.split(features_N.detach().float(), block_size)
    return torch.stack([torch.linalg.vector_norm(part) for part in parts])


def _load() -> str:
    """Empty when the operators were loaded, else why not."""
    if os.environ.get(SWITCH, "1") == "0":
        return f"{SWITCH}=0 switches the native operators off"
    if _loaded():
        return ""  # a second copy would end the process
    try:
        path = build.build()
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except EnvironmentFault as error:
        return str(error)
    except OSError as error:
        return f"native operators: {path} could not be loaded ({error}); remove it and try again"
    fakes.register()
    return ""


def _loaded() -> bool:
    return hasattr(torch.ops.tocsin, "verdict")
