"""Judges each property in a process of its own, with a limit of memory and of time.

A small process is started once, reads the case, plants the sins, and forks one child a property:
it has one thread, so its fork is safe, and the children share the case without a copy. A child
that dies, hangs or runs out of memory is `unknown` for its own property; so are those that were
still to come when the small process itself dies. The run that asks keeps its own memory.
"""

import contextlib
import gc
import io
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Any

from tocsin.chaos.case import Case, PropertyVerdict
from tocsin.chaos.contract import Property
from tocsin.chaos.examine import PATIENCE_S, Examined, examine_all, examine_one, unknown
from tocsin.chaos.selftest import Planted, objections, plant

TINY_TOKENS = 1000
"""Below this a run is judged in less time (0.1 s) than a process takes to start (0.9 s)."""
_LEAVE_S = 5.0
_OUT_OF_MEMORY = 77
_KILLED_OUT_OF_MEMORY = "it was killed, most likely because the machine ran out of memory"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one property may use.

    Attributes:
        memory_bytes: address space beyond that of the process with the case in it.
        patience_s: time until it is killed.
        at_once: children that may run at the same time.
    """

    memory_bytes: int = 2 * 2**30
    patience_s: float = PATIENCE_S
    at_once: int = 2


def examine_as_fits(case: Case, units: Mapping[str, Property]) -> Mapping[str, Examined]:
    """Apart, or in this process when the history is so small that starting one costs more."""
    tokens = sum(len(record.chunks) for record in case.records)
    return examine_all(case, units) if tokens < TINY_TOKENS else examine_apart(case, units)


def examine_apart(
    case: Case, units: Mapping[str, Property], limits: Limits | None = None
) -> dict[str, Examined]:
    """Examine each property in a process of its own.

    Args:
        units: properties by id; each must be found in the module that declares it.
        limits: None: the default ones.
    """
    allowed = limits or Limits()
    command = [sys.executable, "-m", "tocsin.chaos.judge_apart"]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
    except OSError:
        return examine_all(case, units, allowed.patience_s)  # no room for one: judged here
    wanted = [(name, unit.module) for name, unit in units.items()]
    found: dict[str, Examined] = {}
    with process:
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin or sys.stdin.buffer as to:
                pickle.dump((sys.path, allowed, wanted), to, pickle.HIGHEST_PROTOCOL)
                pickle.dump(case, to, pickle.HIGHEST_PROTOCOL)
            if process.stdout is not None:
                found.update(_results(process.stdout))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVE_S)
        finally:
            process.kill()
    why = f"the process that judges ended before it ({_ending(process.returncode)})"
    return {name: found.get(name) or Examined(unknown(name, why)) for name in units}


def _results(stream: IO[bytes]) -> Iterator[tuple[str, Examined]]:
    """What the process tells, one property at a time, until its end or its death."""
    while True:
        try:
            name, examined = pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            return
        yield name, examined


def serve(stdin: IO[bytes], stdout: IO[bytes]) -> None:
    """The small process: read the case, fork a child a property, pass on what they tell."""
    path, limits, wanted = pickle.load(stdin)
    sys.path[:] = path
    for _, module in wanted:
        with contextlib.suppress(Exception):  # once, here; the child of that property says why
            import_module(module)
    case: Case = pickle.load(stdin)
    planted = plant(case)
    gc.freeze()  # nothing of the case is touched by a collection, so it stays shared
    waiting = list(wanted)
    running: list[_Child] = []
    while waiting or running:
        while waiting and len(running) < limits.at_once:
            name, module = waiting.pop(0)
            running.append(_start(name, module, case, planted, limits))
        for child in _finished(running):
            running.remove(child)
            pickle.dump((child.name, child.result()), stdout, pickle.HIGHEST_PROTOCOL)
            stdout.flush()


@dataclass(slots=True)
class _Child:
    """One property under way.

    Attributes:
        told: what it has written so far: its objections, then its verdict.
    """

    name: str
    pid: int
    pipe: int
    deadline_s: float
    limits: Limits
    told: bytes = b""
    late: bool = False
    code: int | None = None

    def read(self) -> bool:
        """Take in what has come; whether that was its end."""
        piece = os.read(self.pipe, 1 << 20)
        self.told += piece
        return not piece

    def reap(self) -> None:
        """Its exit code; it is killed if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL if self.late else 0)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.pipe)

    def result(self) -> Examined:
        """What it told, or why it could not."""
        parts = _parts(self.told)
        counts: Mapping[str, int] = next((one for one in parts if isinstance(one, dict)), {})
        for one in parts:
            if isinstance(one, PropertyVerdict):
                return Examined(one, counts)
        if self.late:
            why = f"the property did not end in {self.limits.patience_s:g} s"
        else:
            why = f"the property's process died: {_ending(self.code)}"
        return Examined(unknown(self.name, why), counts)


def _finished(running: Sequence[_Child]) -> list[_Child]:
    """Children that have ended, or were ended because their time was over."""
    first_s = min(child.deadline_s for child in running) - time.monotonic()
    ready, _, _ = select.select([child.pipe for child in running], [], [], max(0.0, first_s))
    done = [child for child in running if child.pipe in ready and child.read()]
    for child in running:
        if child not in done and time.monotonic() >= child.deadline_s:
            child.late = True
            done.append(child)
    for child in done:
        child.reap()
    return done


def _start(name: str, module: str, case: Case, planted: Planted, limits: Limits) -> _Child:
    """Fork the child of one property."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Child(name, pid, reading, time.monotonic() + limits.patience_s, limits)
    code = 1
    try:
        os.close(reading)
        _limit(limits)
        with open(writing, "wb") as pipe:
            _examine(name, module, case, planted, pipe)
        code = 0
    except MemoryError:
        code = _OUT_OF_MEMORY
    finally:
        os._exit(code)


def _examine(name: str, module: str, case: Case, planted: Planted, pipe: IO[bytes]) -> None:
    """The child: its objections first, because the small copy seldom kills, then its verdict."""
    try:
        unit = _found(name, module)
        pickle.dump(objections(planted, unit), pipe, pickle.HIGHEST_PROTOCOL)
        pipe.flush()
        verdict = examine_one(case, unit)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a process edge: told to the run
        verdict = unknown(name, f"the property broke: {type(error).__name__}: {error}")
    pickle.dump(verdict, pipe, pickle.HIGHEST_PROTOCOL)


def _found(name: str, module: str) -> Property:
    declared = vars(import_module(module)).values()
    return next(one for one in declared if isinstance(one, Property) and one.id == name)


def _limit(limits: Limits) -> None:
    """From now on this process may use so much more address space, and so much time."""
    signal.setitimer(signal.ITIMER_REAL, limits.patience_s + 1.0)  # also if its parent is gone
    with contextlib.suppress(OSError, ValueError):  # a system without it, or with a lower limit
        with open("/proc/self/statm", encoding="ascii") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        most = used + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _parts(told: bytes) -> list[Any]:
    """The objects that a child has written whole."""
    parts: list[Any] = []
    stream = io.BytesIO(told)
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            parts.append(pickle.load(stream))
    return parts


def _ending(code: int | None) -> str:
    """An exit code in words."""
    if code == _OUT_OF_MEMORY:
        return "it ran out of the memory that a property may use"
    if code == -signal.SIGKILL:
        return _KILLED_OUT_OF_MEMORY
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def main() -> None:
    """Serve the run that started this process; what a property prints goes to stderr."""
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, stdout)


if __name__ == "__main__":
    main()
