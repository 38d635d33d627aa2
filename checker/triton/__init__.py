"""Checks as fused Triton kernels: RMSNorm, RoPE, sums of KV pages, the verdict's reduction.

For GPUs, where a check of one pass costs one launch; each computes what the Python check of the
same name computes. Under `TRITON_INTERPRET=1` they run on a CPU, slowly, which is how they are
tested. The package `triton` comes with CUDA builds of PyTorch, elsewhere with the extra `triton`.
"""

import importlib.util
import os
from functools import cache

import torch

from tocsin.core.errors import EnvironmentFault


@cache
def reason() -> str:
    """Why the kernels cannot run here; empty where they can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed; pip install 'tocsin[triton]'"
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        return "there is no CUDA device; set TRITON_INTERPRET=1 before triton is imported"
    return ""


def available() -> bool:
    """Whether the kernels can run here."""
    return not reason()


def demand() -> None:
    """Nothing where the kernels can run.

    Raises:
        EnvironmentFault: they cannot, and why.
    """
    if why := reason():
        raise EnvironmentFault(f"triton: {why}")
