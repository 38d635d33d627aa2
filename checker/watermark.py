"""Free-memory watermarks: degrade below them, recover above them with a margin."""

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

import torch

from tocsin.core.calls import Call, DeviceMemoryCall

REASON = "memory watermark"


class Level(IntEnum):
    """How tight memory is."""

    AMPLE = 0
    DEGRADE = 1  # the lighter attention backend
    ESSENTIAL = 2  # and only the essential checks


class Watermark:
    """Turns readings of free memory into a level, with hysteresis.

    Attributes:
        level: after the last reading.
        free_bytes: the last reading, -1 before the first.
    """

    def __init__(
        self,
        degrade_free_bytes: int,
        essential_free_bytes: int,
        recover_factor: float = 1.25,
        changed: Callable[[Level, Level], None] | None = None,
    ) -> None:
        """Start out ample.

        Args:
            degrade_free_bytes, essential_free_bytes: the two marks.
            recover_factor: a mark is left only above this multiple of it.
            changed: told (before, after) at each change of level.
        """
        self._marks = {Level.DEGRADE: degrade_free_bytes, Level.ESSENTIAL: essential_free_bytes}
        self._recover_factor = recover_factor
        self._changed = changed
        self.level = Level.AMPLE
        self.free_bytes = -1

    def mark(
        self, degrade_free_bytes: int, essential_free_bytes: int, recover_factor: float
    ) -> None:
        """Other marks from now on; the last reading is judged by them at once."""
        self._marks = {Level.DEGRADE: degrade_free_bytes, Level.ESSENTIAL: essential_free_bytes}
        self._recover_factor = recover_factor
        if self.free_bytes >= 0:
            self.observe(self.free_bytes)

    def observe(self, free_bytes: int) -> Level:
        """Take one reading; returns the level that now holds."""
        self.free_bytes = free_bytes
        after = Level.AMPLE
        for level, mark in self._marks.items():
            # A level that holds already is left later than it was entered.
            held = self.level >= level
            if free_bytes < mark * (self._recover_factor if held else 1.0):
                after = level
        before, self.level = self.level, after
        if before is not after and self._changed is not None:
            self._changed(before, after)
        return after

    def hear(self, call: Call) -> None:
        """The same, from the record of an engine's reading (a listener for the seam)."""
        if isinstance(call, DeviceMemoryCall):
            self.observe(call.free_bytes)


def free_memory(device: torch.device | str = "cpu") -> tuple[int, int]:
    """Free and total bytes of a device; the host honours the limit of its control group.

    Never call it on the hot path: on CUDA it asks the driver.
    """
    device = torch.device(device)
    if device.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        return int(free_bytes), int(total_bytes)
    free_bytes, total_bytes = _meminfo(Path("/proc/meminfo").read_text())
    limit_bytes = _number(Path("/sys/fs/cgroup/memory.max"))
    used_bytes = _number(Path("/sys/fs/cgroup/memory.current"))
    if limit_bytes is not None and used_bytes is not None and limit_bytes < total_bytes:
        # Page cache counts as used in the group but is given back on demand.
        cached_bytes = _stat(Path("/sys/fs/cgroup/memory.stat"), "inactive_file")
        group_free = limit_bytes - used_bytes + cached_bytes
        return max(0, min(free_bytes, group_free)), limit_bytes
    return free_bytes, total_bytes


def _meminfo(text: str) -> tuple[int, int]:
    """MemAvailable and MemTotal of /proc/meminfo in bytes."""
    fields = {
        line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines() if ":" in line
    }
    return fields["MemAvailable"], fields["MemTotal"]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _stat(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key + " ")), 0)
