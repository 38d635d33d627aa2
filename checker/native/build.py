"""Builds the operators once for this machine: found compiler, locked, whole or not at all."""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from tocsin.core.errors import EnvironmentFault

SOURCE = Path(__file__).parent / "source"
MAIN = "operators.cpp"
BUILD_S_MAX = 300.0
COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fPIC",
    "-shared",
    "-fno-math-errno",  # a square root is an instruction, not a call
    "-fno-trapping-math",
    "-Wno-psabi",
    # AVX-512 is left out until the sources' paths for it have run somewhere: AVX2 is tested.
    *(("-mno-avx512f",) if platform.machine() in ("x86_64", "AMD64") else ()),
)


def compiler() -> str | None:
    """`$CXX`, else the first compiler on the path; None where there is none."""
    chosen = os.environ.get("CXX", "").split()
    for name in (*chosen[:1], *COMPILERS):
        if found := shutil.which(name):
            return found
    return None


def key() -> str:
    """Names a build: sources, flags, torch, and what this processor can do."""
    found = hashlib.sha256()
    for path in sources():
        found.update(path.name.encode() + path.read_bytes())
    for fact in (torch.__version__, *FLAGS, platform.machine(), _processor()):
        found.update(fact.encode() + b"\0")
    return found.hexdigest()[:16]


def sources() -> tuple[Path, ...]:
    """Every file that goes into the library, in a fixed order."""
    return tuple(sorted(SOURCE.glob("*.cpp")) + sorted(SOURCE.glob("*.h")))


def folder() -> Path:
    """Where builds are kept: `$TOCSIN_CACHE`, else `~/.cache/tocsin`."""
    return Path(os.environ.get("TOCSIN_CACHE", "~/.cache/tocsin")).expanduser() / "native"


def library() -> Path:
    """Path of this machine's build, whether it is there yet or not."""
    return folder() / f"operators-{key()}.so"


def build() -> Path:
    """The library, built if it is not there; several processes may ask at the same time.

    Raises:
        EnvironmentFault: no compiler, no place to write, or the compiler failed.
    """
    target = library()
    if target.is_file():
        return target
    tool = compiler()
    if tool is None:
        raise EnvironmentFault(
            f"native operators: none of {', '.join(COMPILERS)} is on the path, expected a C++20 "
            "compiler; install one (Debian: g++), the checks run in Python until then"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_suffix(".lock")):
            if not target.is_file():
                _compile(tool, target)
    except OSError as error:
        raise EnvironmentFault(
            f"native operators: {target.parent} could not be written ({error}); "
            "free some space or set TOCSIN_CACHE to another folder"
        ) from error
    return target


def command(tool: str, target: Path) -> list[str]:
    """How the compiler is called: headers and libraries of torch, nothing else."""
    root = Path(torch.__file__).parent
    include = root / "include"
    headers = [f"-isystem{include}", f"-isystem{include / 'torch/csrc/api/include'}"]
    libraries = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
    return [tool, *FLAGS, *headers, str(SOURCE / MAIN), "-o", str(target), *libraries]


def _compile(tool: str, target: Path) -> None:
    """Into a temporary file beside the target, then renamed."""
    work = Path(tempfile.mkdtemp(prefix=f".{target.stem}-", dir=target.parent))
    try:
        made = work / target.name
        _run(command(tool, made))
        made.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(words: Sequence[str]) -> None:
    """Call the compiler and say what it said if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_S_MAX)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"native operators: {words[0]} ran for {BUILD_S_MAX:.0f} s, expected less than a "
            "minute; the checks run in Python, try again on a quieter machine"
        ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise EnvironmentFault(
            f"native operators: {words[0]} returned {done.returncode} ({lines[0][:300]}); "
            "expected g++ 12 or clang 15 or newer with torch's headers; the checks run in Python"
        )


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, so a killed one leaves none."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _processor() -> str:
    """Model and instruction sets, as the operating system tells them."""
    with contextlib.suppress(OSError):
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        wanted = ("model name", "flags", "Features", "CPU part")
        lines = [line for line in told.split("\n\n")[0].splitlines() if line.startswith(wanted)]
        return "\n".join(lines)
    return platform.processor()
