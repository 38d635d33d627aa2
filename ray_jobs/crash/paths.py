"""The seven crash paths: a fault is in force, something dies or raises, and nothing stays armed.

The Chaos Toolkit leaves its fault in place on four of six such paths (docs/chaos.md). Each path
here is walked with a real engine in a process of its own, and what stands there afterwards is
read in that process.
"""

import multiprocessing
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, NoReturn

from tocsin.chaos import wal
from tocsin.chaos.heal import heal_all, heal_logs
from tocsin.chaos.run import run
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import parse_experiment
from tocsin.core.clock import ManualClock
from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.crash.victim import Armed, VictimSystem, serve

_LOOK_S = 0.05
_SPOILED = ("replicas", "events", "orders")
"""The readings that a run takes again and again."""


@dataclass(frozen=True, slots=True)
class Walked:
    """What became of one path.

    Attributes:
        in_force: the fault had fired and its damage stood when the crash came; if not, the path
            shows nothing.
        left: what was still armed or broken at the end; empty: nothing.
        gone_after_s: from the crash until all was clean; None: it never was.
        told: how the controller ended, and what it left for people.
    """

    path: str
    in_force: bool
    left: str
    gone_after_s: float | None
    told: str


@dataclass(frozen=True, slots=True)
class Terms:
    """How long things may take.

    Attributes:
        ttl_s: lease of the fault.
        patience_s: how long anything is waited for, on a machine that is busy.
    """

    ttl_s: float = 2.0
    patience_s: float = 60.0


@dataclass(slots=True)
class Walker:
    """Walks the paths one after the other, on one victim as long as it lives.

    Attributes:
        folder: of the stores, a folder for each path, and of the socket.
    """

    folder: Path
    terms: Terms = field(default_factory=Terms)
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    _context: ForkServerContext = field(init=False)
    _victim: ForkServerProcess | None = None
    _socket: str = ""
    _killed_in_force: bool = False

    def __post_init__(self) -> None:
        """Imports are made once, in the process that all others are forked from."""
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        # A path of a socket has 107 letters at most, wherever the store is.
        self._socket = str(Path(tempfile.mkdtemp(prefix="tocsin-")) / "victim")

    def walk(self) -> Iterator[Walked]:
        """All seven, as they end."""
        try:
            yield self.controller_killed()
            yield self.controller_signalled("controller: SIGTERM", signal.SIGTERM)
            yield self.controller_signalled("controller: SIGINT", signal.SIGINT)
            yield self.worker_killed()
            yield self.spoiled("a probe raises", "probe")
            yield self.spoiled("an action raises", "action")
            yield self.log_truncated()
        finally:
            self.close()

    def close(self) -> None:
        """End the victim."""
        if self._victim is not None and self._victim.is_alive():
            self._victim.kill()
            self._victim.join()
        self._victim = None
        shutil.rmtree(Path(self._socket).parent, ignore_errors=True)

    def controller_killed(self) -> Walked:
        """SIGKILL of the run: nobody renews the lease, so the fault takes itself away."""
        with self.attacked("controller-sigkill") as (controller, _):
            # With this on disk the log that is cut further down has all kinds of records.
            self._wait(lambda: self._logged("controller-sigkill", "fired"), "")
            before = self._look() or Armed((), ())
            self._killed_in_force = bool(before.changed)
            controller.kill()
            end, gone_s = self.until_clean()
            controller.join()
            said: list[str] = []
            code = heal_all(self._store("controller-sigkill"), None, say=said.append)
            return Walked(
                "controller: SIGKILL",
                bool(before.changed),
                end,
                gone_s,
                f"heal --all ends with {code}: {said[-1] if said else 'nothing'}",
            )

    def controller_signalled(self, path: str, number: signal.Signals) -> Walked:
        """SIGTERM or SIGINT of the run: it heals, writes its verdict and ends with 4."""
        name = f"controller-{number.name.lower()}"
        with self.attacked(name) as (controller, before):
            os.kill(controller.pid or 0, number)
            end, gone_s = self.until_clean()
            return Walked(path, bool(before.changed), end, gone_s, self._ended(controller, name))

    def worker_killed(self) -> Walked:
        """SIGKILL of the serving process: its successor is clean, and the run is told so."""
        name = "worker-sigkill"
        with self.attacked(name) as (controller, before):
            began_s = time.monotonic()
            self._begin_victim()
            end, gone_s = self.until_clean(began_s)
            told = self._ended(controller, name)
            # Until the controller's end: one that would arm its successor anew is found.
            left = self._look()
            return Walked("worker: SIGKILL", bool(before.changed), end or _left(left), gone_s, told)

    def spoiled(self, path: str, what: str) -> Walked:
        """Something of the run raises once the fault is in force."""
        with self.attacked(what, spoil=what) as (controller, before):
            end, gone_s = self.until_clean()
            return Walked(path, bool(before.changed), end, gone_s, self._ended(controller, what))

    def log_truncated(self) -> Walked:
        """The heal log of a killed run, cut at every byte: no fault is overlooked for it."""
        (path,) = self._store("controller-sigkill").glob(f"*/*/{wal.NAME}")
        # As the kill left it: without what `heal --all` has written down since.
        records = [one for one in wal.read(path).records if one.get("by") != "heal"]
        cuts, overlooked = overlooked_cuts(records, self.folder / "truncated")
        return Walked(
            "log: cut at any byte",
            self._killed_in_force,
            f"overlooked when cut at {overlooked[:5]}" if overlooked else "",
            0.0,
            f"{cuts} cuts, {len(overlooked)} of them made heal --all overlook the fault",
        )

    @contextmanager
    def attacked(self, name: str, spoil: str = "") -> Iterator[tuple[ForkServerProcess, Armed]]:
        """A controller at work whose fault is in force; it has ended, or is ended, afterwards."""
        if self._victim is None or not self._victim.is_alive():
            self._begin_victim()
        spec = experiment(self.terms, self._prompts(), name)
        arguments = (self._socket, self._key, spec, self._store(name), spoil)
        controller = self._context.Process(target=control, args=arguments)
        controller.start()
        try:
            yield controller, self._until_in_force(controller)
        finally:
            if controller.is_alive():
                controller.kill()
            controller.join()

    def _store(self, name: str) -> Path:
        return self.folder / name

    def _logged(self, name: str, kind: str) -> bool:
        """Whether the heal log of a path has a record of a kind."""
        return any(
            record.get("type") == kind
            for path in self._store(name).glob(f"*/*/{wal.NAME}")
            for record in wal.read(path).records
        )

    def _prompts(self) -> Path:
        """One prompt is enough, and its golden answer is soon known."""
        path = self.folder / "prompts.json"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text('[{"id": "count", "text": "Count to three."}]', encoding="utf-8")
        return path

    def _begin_victim(self) -> None:
        """Kill the victim that there is, and have its successor serve."""
        if self._victim is not None:
            self._victim.kill()
            self._victim.join()
        arguments = (self._socket, self._key, experiment(self.terms, self._prompts(), "victim"))
        self._victim = self._context.Process(target=serve, args=arguments, daemon=True)
        self._victim.start()
        self._wait(lambda: self._look() is not None, "the victim came up")

    def _look(self) -> Armed | None:
        visitor = VictimSystem(self._socket, self._key)
        try:
            return visitor.look()
        except EnvironmentFault:
            return None
        finally:
            visitor.close()

    def _until_in_force(self, controller: ForkServerProcess) -> Armed:
        """What stands once the fault has done its damage; what stands at the end of patience."""
        found: list[Armed] = [Armed((), ())]

        def stands() -> bool:
            found[0] = self._look() or found[0]
            return bool(found[0].changed) or not controller.is_alive()

        self._wait(stands, "")
        return found[0]

    def until_clean(self, began_s: float | None = None) -> tuple[str, float | None]:
        """What is left at last, and how long it took to be nothing.

        Args:
            began_s: when the crash came (monotonic); None: now.
        """
        began_s = time.monotonic() if began_s is None else began_s
        found: list[Armed | None] = [None]

        def clean() -> bool:
            found[0] = self._look()
            return found[0] is not None and found[0].clean

        if self._wait(clean, ""):
            return "", time.monotonic() - began_s
        return _left(found[0]), None

    def _ended(self, controller: ForkServerProcess, name: str) -> str:
        """Exit code of the controller and the files that it left."""
        controller.join(self.terms.patience_s)
        if controller.exitcode is None:
            return "the controller did not end"
        found = {path.name for path in self._store(name).glob("*/*/*")}
        names = [one for one in ("verdict.json", "journal.json", "report.html") if one in found]
        return f"it ends with {controller.exitcode} and leaves {', '.join(names) or 'no verdict'}"

    def _wait(self, condition: Callable[[], bool], what: str) -> bool:
        """Whether it came true in time.

        Raises:
            EnvironmentFault: it did not, and `what` says that nothing goes on without it.
        """
        deadline_s = time.monotonic() + self.terms.patience_s
        while not condition():
            if time.monotonic() >= deadline_s:
                if what:
                    raise EnvironmentFault(
                        f"crash paths: waited {self.terms.patience_s:g} s in vain until {what}; "
                        "give it more --patience"
                    )
                return False
            time.sleep(_LOOK_S)
        return True


def experiment(terms: Terms, prompts: Path, name: str) -> Experiment:
    """A flipped weight bit in each of two replicas, with checks off: nobody else repairs it.

    Args:
        name: of the path; a victim remembers occurrences, so each path has ids of its own.
    """
    faults = [
        {
            "id": f"bit-{replica}-{name}",
            "kind": "weight.bitflip",
            "target": {"replica": replica},
            "when": {"clock": "decode_step", "at": [tick]},
            "expect": {"detect": "optional", "within": "10m"},
        }
        for replica, tick in ((0, 2), (1, 20))
    ]
    return parse_experiment(
        {
            "apiVersion": "chaos/v1",
            "kind": "Experiment",
            "name": "crash-path",
            "seed": 11,
            "system": {
                "model": "tiny",
                "replicas": 2,
                "slots": 4,
                "pages": 64,
                "max_length": 128,
                "profile": "off",
            },
            "workload": {
                "prompts": str(prompts),
                "concurrency": 4,
                "requests": 40,
                "max_new_tokens": 4,
                "abort_ratio": 0.0,
            },
            "steady_state": {"warmup": 1, "window": "100ms", "good_windows": 1},
            "faults": faults,
            "checks": [{"id": "lifecycle.exactly_one_terminal"}],
            "safety": {
                "scope": "isolated",
                "max_concurrent_faults": 2,
                "max_targets": 1.0,
                "max_duration": f"{3 * terms.patience_s}s",
                "ttl": f"{terms.ttl_s}s",
            },
        }
    )


def control(address: str, key: bytes, spec: Experiment, store: Path, spoil: str) -> NoReturn:
    """Run the experiment against a victim; the main function of a controller's process."""
    system = VictimSystem(address, key)
    if spoil == "probe":
        system.before = partial(_probe_raises, system)
    elif spoil == "action":
        system.after = partial(_action_raises, system, [])
    code = run(spec, system, store)
    system.close()
    raise SystemExit(code)


def overlooked_cuts(records: Sequence[Mapping[str, Any]], folder: Path) -> tuple[int, list[int]]:
    """Cut a heal log at every byte and heal by what is left of it.

    The intent is synced before the fault is ordered, so a log without it is of a time at which
    nothing was armed. With it, whatever else is lost, the fault must be named.

    Args:
        records: of a run that was killed while one fault was in force.
        folder: for the logs.

    Returns:
        How many cuts were made, and those after which the fault was overlooked or made up.
    """
    lines = [wal.encode(one) for one in records]
    first = next(i for i, one in enumerate(records) if one.get("type") == "intent")
    # The line's end may be lost: its checksum says that it is whole.
    needed = sum(map(len, lines[: first + 1])) - 1
    name, log = str(records[first]["occurrence"]), b"".join(lines)
    folder.mkdir(parents=True, exist_ok=True)
    path, wrong = folder / wal.NAME, []
    for cut in range(len(log) + 1):
        path.write_bytes(log[:cut])
        said: list[str] = []
        later = ManualClock(int((time.time() + 3600.0) * 1e9))
        code = heal_logs([path], None, clock=later, say=said.append)
        if code != 0 or any(name in line for line in said) != (cut >= needed):
            wrong.append(cut)
    return len(log) + 1, wrong


def _probe_raises(system: VictimSystem, name: str) -> None:
    """Every reading of the system raises, from the moment in which a fault has done damage."""
    if name in _SPOILED and _damaged(system):
        raise RuntimeError(f"{name}: spoiled on purpose")


def _action_raises(system: VictimSystem, given: list[str], name: str) -> None:
    """The second order gets through, and breaks the run, while the first one's damage stands."""
    if name != "arm":
        return
    given.append(name)
    while len(given) == 2 and not _damaged(system):
        time.sleep(_LOOK_S)
    if len(given) == 2:
        raise RuntimeError("arm: spoiled on purpose, after the order got through")


def _damaged(system: VictimSystem) -> bool:
    visitor = VictimSystem(system.address, system.key)
    try:
        return bool(visitor.look().changed)
    finally:
        visitor.close()


def _left(found: Armed | None) -> str:
    if found is None:
        return "the serving process does not answer"
    return "" if found.clean else found.words


def left_armed(walked: list[Walked]) -> list[Walked]:
    """The paths on which something stayed."""
    return [one for one in walked if one.left]


def worst_exit(walked: list[Walked]) -> int:
    """0: nothing stayed armed; 5: something did; 3: on some path no fault was in force."""
    if left_armed(walked):
        return 5
    return 0 if all(one.in_force for one in walked) else 3
