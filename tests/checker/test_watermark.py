"""Free-memory watermarks: entered below the mark, left above it with a margin, told once."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from tocsin.checker.settings import CheckerSettings
from tocsin.checker.watermark import Level, Watermark, free_memory
from tocsin.core.calls import DeviceMemoryCall

GIB = 1 << 30


def test_levels_follow_the_readings_with_hysteresis() -> None:
    """Proves both marks, the nearest miss of each, and the way back."""
    told: list[tuple[Level, Level]] = []
    watermark = Watermark(2 * GIB, GIB, 1.25, lambda before, after: told.append((before, after)))
    levels = [
        watermark.observe(free)
        for free in (
            2 * GIB,  # the mark itself is ample
            2 * GIB - 1,
            int(2.4 * GIB),  # not yet above the margin
            GIB - 1,
            int(1.2 * GIB),  # still essential
            int(1.3 * GIB),  # left the lower mark
            int(2.5 * GIB),  # left both
        )
    ]
    assert levels == [
        Level.AMPLE,
        Level.DEGRADE,
        Level.DEGRADE,
        Level.ESSENTIAL,
        Level.ESSENTIAL,
        Level.DEGRADE,
        Level.AMPLE,
    ]
    assert told == [
        (Level.AMPLE, Level.DEGRADE),
        (Level.DEGRADE, Level.ESSENTIAL),
        (Level.ESSENTIAL, Level.DEGRADE),
        (Level.DEGRADE, Level.AMPLE),
    ]


def test_it_hears_an_engines_readings() -> None:
    """Proves the listener."""
    watermark = Watermark(2 * GIB, GIB)
    watermark.hear(DeviceMemoryCall(free_bytes=5, total_bytes=8 * GIB))
    assert (watermark.level, watermark.free_bytes) == (Level.ESSENTIAL, 5)


def test_the_host_is_read_without_a_package() -> None:
    """Proves a plausible reading of this machine."""
    free_bytes, total_bytes = free_memory("cpu")
    assert 0 < free_bytes <= total_bytes
    assert total_bytes > 1 << 28


def test_the_limit_of_a_control_group_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a container's limit is honoured, and its page cache counted as free."""
    files = {
        "/proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n",
        "/sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
        "/sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
        "/sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {GIB // 2}\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda self: files[str(self)])
    assert free_memory("cpu") == (GIB + GIB // 2, 4 * GIB)
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert free_memory("cpu") == (8 * GIB, 16 * GIB)


def test_settings_refuse_what_makes_no_sense() -> None:
    """Proves that a wrong file ends in words, not in a strange run."""
    assert CheckerSettings().degrade_free_bytes == 2 * GIB
    for wrong in (
        {"essential_free_bytes": 3 * GIB},
        {"failures_max": 0},
        {"cooldown_s": 0},
        {"colour": "red"},
        {"profile": "loud"},
        {"recover_factor": 0.9},
    ):
        with pytest.raises(ValidationError):
            CheckerSettings.model_validate(wrong)
