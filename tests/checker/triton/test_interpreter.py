"""The kernels' tests run wherever triton is installed, whatever was imported before them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tocsin.checker import triton as kernels

KERNELS = Path(__file__).with_name("test_kernels.py")


def interprets_here() -> bool:
    """Whether triton's own functions are interpreted in this process."""
    module = sys.modules.get("triton.language")
    return module is not None and hasattr(module.sum, "rewriter")


@pytest.mark.slow
def test_the_kernels_are_tested_on_every_machine_with_triton() -> None:
    """Proves that test_kernels.py ran here, or runs in a process that begins with the interpreter.

    A module that imported triton first would otherwise leave the file skipped for good.
    """
    if not kernels.available() and "not installed" in kernels.reason():
        pytest.skip(f"Triton kernels: {kernels.reason()}")
    if torch.cuda.is_available() or interprets_here():
        return
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(KERNELS)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=KERNELS.parents[3],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert " passed" in run.stdout


def test_without_gpu_and_interpreter_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves the words that a person reads where the kernels cannot run."""
    kernels.reason.cache_clear()
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert "no CUDA device" in kernels.reason()
    assert not kernels.available()
    kernels.reason.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'tocsin[triton]'" in kernels.reason()
    kernels.reason.cache_clear()
