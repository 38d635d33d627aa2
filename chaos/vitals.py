"""Readings beside the load: what the health pages say, and what each replica's process holds."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tocsin.core.clock import Clock
from tocsin.core.history import Event, EventKind
from tocsin.core.system import OBSERVED, ReplicaInfo, System, TellsHealth

_EVERY_S = 1.0
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, slots=True)
class Vitals:
    """Reads what the system offers beyond its duty, and hands it on as events.

    Attributes:
        take: where the events go.
    """

    system: System
    clock: Clock
    take: Callable[[Iterable[Event]], None]

    def offered(self) -> list[str]:
        """Names of `core.system.OBSERVED` that this system tells; kept with the facts of the run.

        A property that finds nothing of what is offered is unknown, not vacuous.
        """
        named = set(getattr(self.system, "observes", ())) & OBSERVED
        if isinstance(self.system, TellsHealth):
            named.add("health")
        return sorted(named)

    async def mind_health(self) -> None:
        """Read the health pages once a second until cancelled; one that breaks gave no answer."""
        system = self.system
        if not isinstance(system, TellsHealth):
            return
        while True:
            try:
                reading = asdict(await asyncio.to_thread(system.health))
            except Exception as error:  # noqa: BLE001 - a reading must never end a run
                reading = {"health_ok": None, "checker_ok": None, "error": str(error)}
            self.take([Event(EventKind.HEALTH, self.clock.now_ns(), "client", data=reading)])
            await asyncio.sleep(_EVERY_S)

    def weigh(self, replicas: Iterable[ReplicaInfo], when: str) -> None:
        """Note what each living replica holds, as far as anybody can tell.

        Args:
            when: `before` the first fault, or `after` the last heal, at rest.
        """
        for one in replicas:
            found = held(one.pid) or one.stats.get("resources")
            if one.alive and found:
                data = {"when": when, "pid": one.pid, **found}
                now_ns = self.clock.now_ns()
                self.take([Event(EventKind.RESOURCES, now_ns, one.replica, one.step, data=data)])


def held(pid: int) -> dict[str, Any] | None:
    """What a process of this machine holds (proc(5)); None when that cannot be read.

    Returns:
        rss_bytes resident memory, of which shm_bytes shared; fds open files; threads.
    """
    if pid <= 0:
        return None
    folder = Path(f"/proc/{pid}")
    try:
        status = (folder / "status").read_text(encoding="ascii", errors="replace")
        files = sum(1 for _ in (folder / "fd").iterdir())
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return {
            "rss_bytes": int(fields["VmRSS"].split()[0]) * 1024,
            "shm_bytes": int(fields["RssShmem"].split()[0]) * 1024,
            "threads": int(fields["Threads"]),
            "fds": files,
        }
    except (OSError, KeyError, ValueError):
        return None  # it has ended, is somebody else's, or this is no Linux
