"""When a run stops by itself: conditions of the spec, no data, no time left, a person's wish."""

from collections.abc import Iterable
from pathlib import Path

from tocsin.chaos.spec import AbortSpec, SafetySpec
from tocsin.core.history import Outcome, RequestRecord

_MEMINFO = Path("/proc/meminfo")
_NO_DATA_WINDOW_S = 10.0


class Safety:
    """Watches a run from its records; asked a few times a second."""

    def __init__(self, spec: SafetySpec, start_ns: int, meminfo: Path = _MEMINFO) -> None:
        """The clock of `max_duration` begins at `start_ns`."""
        self._spec = spec
        self._start_ns = start_ns
        self._meminfo = meminfo

    def why_stop(self, records: Iterable[RequestRecord], now_ns: int) -> str:
        """Why the run must stop now; empty: it may go on."""
        elapsed_s = (now_ns - self._start_ns) / 1e9
        if elapsed_s > self._spec.max_duration_s:
            return f"safety.max_duration of {self._spec.max_duration_s:g} s is over"
        known = list(records)
        for i, condition in enumerate(self._spec.abort):
            reason = self._condition(condition, known, now_ns)
            if reason:
                return f"safety.abort[{i}]: {reason}"
        if elapsed_s > 2 * _NO_DATA_WINDOW_S and not _data(known, now_ns, 2 * _NO_DATA_WINDOW_S):
            return f"no token and no end of a request for {2 * _NO_DATA_WINDOW_S:g} s: no data"
        return ""

    def _condition(self, one: AbortSpec, records: list[RequestRecord], now_ns: int) -> str:
        if one.metric == "host_mem_free":
            free = self._free_bytes()
            if free is None:
                return ""  # not a Linux host: the watermarks of the replicas still hold
            if free < one.limit:
                return f"{free / 2**30:.2f} GiB of host memory are free, {one.when!r}"
            return ""
        if now_ns - self._start_ns < one.window_s * 1e9:
            return ""
        since_ns = now_ns - int(one.window_s * 1e9)
        ended = [r for r in records if not r.malformed and r.t_end_ns >= since_ns and r.t_end_ns]
        counted = [r for r in ended if r.outcome is not Outcome.CANCELLED]
        if not counted:
            if now_ns - self._start_ns < 2 * one.window_s * 1e9 or _data(
                records, now_ns, 2 * one.window_s
            ):
                return ""
            return f"no data for two windows of {one.window_s:g} s, {one.when!r}"
        share = sum(r.outcome is Outcome.OK for r in counted) / len(counted)
        return f"ok_ratio is {share:.2f}, {one.when!r}" if share < one.limit else ""

    def _free_bytes(self) -> int | None:
        try:
            lines = self._meminfo.read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return int(found[0]) * 1024 if found else None


def _data(records: list[RequestRecord], now_ns: int, window_s: float) -> bool:
    """Whether any token or any end arrived in the window that ends now."""
    since_ns = now_ns - int(window_s * 1e9)
    return any(
        record.t_end_ns >= since_ns or (record.chunks and record.chunks[-1].t_ns >= since_ns)
        for record in records
    )
