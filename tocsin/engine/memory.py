"""Free memory of the device, read at most twice a second."""

from dataclasses import dataclass
from pathlib import Path

import torch

from tocsin.core.calls import DeviceMemoryCall
from tocsin.core.clock import Clock

_INTERVAL_NS = 500_000_000


@dataclass(slots=True)
class MemoryReader:
    """Makes a reading for each step; between two real ones it repeats the last."""

    device: torch.device
    clock: Clock
    _read_ns: int | None = None
    _free_bytes: int = 0
    _total_bytes: int = 0

    def reading(self) -> DeviceMemoryCall:
        """A record of its own for each caller: what a fault writes into it stays there."""
        now_ns = self.clock.now_ns()
        if self._read_ns is None or now_ns - self._read_ns >= _INTERVAL_NS:
            self._free_bytes, self._total_bytes = self._read()
            self._read_ns = now_ns
        return DeviceMemoryCall(
            free_bytes=self._free_bytes, total_bytes=self._total_bytes, device=str(self.device)
        )

    def _read(self) -> tuple[int, int]:
        if self.device.type == "cuda":
            free_bytes, total_bytes = torch.cuda.mem_get_info(self.device)
            return int(free_bytes), int(total_bytes)
        facts = dict(
            line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if line
        )
        free_kib, total_kib = (int(facts[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
        return free_kib << 10, total_kib << 10
