"""Ctrl-C in two steps: the first asks the run over there to heal and end, the second leaves."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class LeftError(KeyboardInterrupt):
    """Asked to leave at once; what runs over there goes on ending by itself."""


class Interrupts:
    """As a context manager: counts SIGINT and SIGTERM instead of dying of them."""

    def __init__(self) -> None:
        """Nobody asked for anything yet."""
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}
        self._held = self._waits = False

    def __enter__(self) -> "Interrupts":
        """Take over both signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give them back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._held and self.asked and not self._waits:
            self._waits = True  # a third one does not wait
            return
        if self.asked:
            raise LeftError
        self.asked = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """The second one waits for the end of this: a request that must not be cut in two.

        Raises:
            LeftError: at its end, where there was one.
        """
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._waits:
            raise LeftError


Say = Callable[[str], None]
"""Shows one line to the person."""
