"""One clock for a cluster: what other hosts stamp is translated into the board's monotonic time.

`time.monotonic_ns` counts from the boot of its host, so that two hosts differ by hours. The board
hears when a message was sent and when it arrived; the smallest difference of late is the offset
plus the shortest way, and by it everything of that host is translated. Processes of one host read
one clock, and there nothing is changed.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ray

KEPT_NS = 120_000_000_000
"""How long a smallest delay counts. Crystals drift apart by at most 100 ppm: 12 ms in this time."""
SLICES = 12
_ONE_CLOCK_NS = 600_000_000_000
"""Two processes that name one boot and differ by more than a message takes have two clocks."""
_ASKED = 7
_ASK_S = 5.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Stamp = Mapping[str, Any]
"""What a sender says of its clock: `boot` and `sent_ns`."""


@cache
def boot_id() -> str:
    """Names the boot of this host: processes that have the same one read the same clock."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def stamp() -> dict[str, Any]:
    """This process's clock at the moment at which it sends something."""
    return {"boot": boot_id(), "sent_ns": time.monotonic_ns()}


class OffsetEstimate:
    """The receiver's clock minus the sender's, from one-way messages alone.

    Each message says: offset + delay = arrived - sent. The smallest of the last two minutes is
    kept: it is never less than the offset, and more only by the shortest delay. So an event is
    never put before the moment at which it was, nor after the one at which it was heard.
    """

    def __init__(self, kept_ns: int = KEPT_NS) -> None:
        """Nothing was heard yet."""
        self._slice_ns = kept_ns // SLICES
        self._smallest: deque[tuple[int, int]] = deque(maxlen=SLICES)

    def hear(self, sent_ns: int, arrived_ns: int) -> None:
        """A message was sent at one time of the sender and came at one of the receiver."""
        slice_, differs_ns = arrived_ns // self._slice_ns, arrived_ns - sent_ns
        if self._smallest and self._smallest[-1][0] == slice_:
            differs_ns = min(differs_ns, self._smallest.pop()[1])
        self._smallest.append((slice_, differs_ns))
        while self._smallest[0][0] <= slice_ - SLICES:
            self._smallest.popleft()  # a sender that was silent for long has drifted

    @property
    def offset_ns(self) -> int:
        """The estimate; 0 before anything was heard."""
        return min((differs_ns for _, differs_ns in self._smallest), default=0)


class Translator:
    """Translates what other hosts stamped; one estimate a host, for all its processes.

    Args:
        boot: of the receiver's own host.
        now_ns: the receiver's clock.
    """

    def __init__(
        self, boot: str | None = None, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """No host is known yet."""
        self._boot = boot_id() if boot is None else boot
        self._now_ns = now_ns
        self._estimates: dict[str, OffsetEstimate] = {}

    def offset_ns(self, stamp: Stamp | None) -> int:
        """What must be added to a sender's times; a message without a stamp is of this host."""
        if not stamp:
            return 0
        boot, sent_ns, now_ns = str(stamp["boot"]), int(stamp["sent_ns"]), self._now_ns()
        if boot and boot == self._boot and 0 <= now_ns - sent_ns < _ONE_CLOCK_NS:
            return 0
        estimate = self._estimates.setdefault(boot, OffsetEstimate())
        estimate.hear(sent_ns, now_ns)
        return estimate.offset_ns

    def event(self, event: dict[str, Any], offset_ns: int) -> dict[str, Any]:
        """An event on the receiver's clock."""
        if not offset_ns:
            return event
        data = event["data"]
        if "occurrence" in data:  # an order's status is in it, with times of its own
            data = self.status(data, offset_ns)
        return {**event, "t_ns": event["t_ns"] + offset_ns, "data": data}

    def status(self, status: dict[str, Any], offset_ns: int) -> dict[str, Any]:
        """An order's status on the receiver's clock; 0 stays "not yet"."""
        times = {
            name: status[name] + offset_ns for name in ("fired_ns", "healed_ns") if status.get(name)
        }
        return {**status, **times} if offset_ns else status


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How the board's clock stands to this process's.

    Attributes:
        offset_ns: the board's minus ours: what the board says happened at `t` was here at
            `t - offset_ns`.
        error_ns: by how much that can be wrong: half of the round trip.
    """

    offset_ns: int = 0
    error_ns: int = 0

    def here_ns(self, board_ns: int) -> int:
        """A time of the board on this process's clock; 0 stays "never"."""
        return board_ns - self.offset_ns if board_ns else 0


def board_clock(board: Any) -> ClockOffset:
    """Ask the board for its time a few times and believe the shortest round trip.

    Args:
        board: handle of the board's actor.
    """
    return measured(lambda: ray.get(board.clock.remote(), timeout=_ASK_S))


def measured(
    ask: Callable[[], Stamp],
    *,
    boot: str | None = None,
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> ClockOffset:
    """The offset of whoever answers `ask` with its stamp; exactly 0 on one host."""
    own, best = boot_id() if boot is None else boot, ClockOffset(0, 1 << 62)
    for _ in range(_ASKED):
        asked_ns = now_ns()
        answer = ask()
        got_ns, there_ns = now_ns(), int(answer["sent_ns"])
        if own and answer["boot"] == own and asked_ns <= there_ns <= got_ns:
            return ClockOffset()
        error_ns = (got_ns - asked_ns + 1) // 2
        if error_ns < best.error_ns:
            best = ClockOffset(there_ns - (asked_ns + got_ns) // 2, error_ns)
    return best
