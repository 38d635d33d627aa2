"""A full disk costs log lines, never the thread that logs; and a process that has to end ends."""

import logging
import subprocess
import sys
from typing import IO

import pytest

from tocsin.ray_jobs.replica_process import never_raise


class _Full(logging.Handler):
    """A file on a disk that is full."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write("too much")
        except OSError:
            self.handleError(record)

    @property
    def stream(self) -> IO[str]:
        raise OSError(27, "File too large")


class _Logged:
    """What Ray Serve makes of `sys.stderr`: whatever is written there is logged."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def write(self, text: str) -> None:
        self._logger.error(text)

    def flush(self) -> None:
        """Nothing waits."""


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    made = logging.getLogger("tests.full_disk")
    monkeypatch.setattr(made, "propagate", False)
    monkeypatch.setattr(made, "handlers", [_Full()])
    monkeypatch.setattr(logging, "raiseExceptions", True)
    return made


def test_a_line_that_the_disk_does_not_take_is_lost_alone(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the switch the same line ends whoever logs it."""
    monkeypatch.setattr(sys, "stderr", _Logged(logger))
    with pytest.raises(RecursionError):
        logger.error("one line")
    never_raise()
    logger.error("one line")


def test_a_process_that_cannot_serve_ends_whatever_its_threads_do() -> None:
    """Not at once: what is on its way leaves first, and it says why."""
    script = (
        "import time; from tocsin.ray_jobs.replica_process import end_soon; "
        "end_soon('worker a: no memory', 0.2); print('still here', flush=True); time.sleep(120)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert done.stdout == "still here\n"
    assert "worker a: no memory; this process ends" in done.stderr
