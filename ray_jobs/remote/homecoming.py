"""The caller's end of a remote run: lines are shown, the archive unpacked, the code returned."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.chaos.verdict import EXIT_ABORTED, EXIT_INVALID, EXIT_UNKNOWN
from tocsin.ray_jobs.remote.frame import FrameReader, TornArchiveError
from tocsin.ray_jobs.remote.interrupts import Say
from tocsin.ray_jobs.remote.unpack import report_in, unpack

_LAST_LINES = 3
_LETTERS_MOST = 200
_NAMED_MOST = 5


@dataclass(slots=True)
class Follower:
    """Takes a remote run's log line by line; what is not the archive is shown.

    Attributes:
        show: shows one line of the run.
        shown: how many lines were.
    """

    show: Say
    reader: FrameReader = field(default_factory=FrameReader)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    shown: int = 0

    def __call__(self, line: str) -> None:
        """Take a line without its end."""
        if self.reader.is_ours(line):
            return
        self.shown += 1
        self.show(line)
        if line.strip():
            self.last.append(line.strip()[:_LETTERS_MOST])


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is, and what a person types to look at it.

    Attributes:
        origin: in words, for the run's `origin.json`: `Ray job raysubmit_… at http://…`.
        look: a command that shows the log.
        whole: how else the whole report is had.
    """

    origin: str
    look: str
    whole: str


def brought_home(
    follower: Follower,
    place: Place,
    store: Path,
    *,
    say: Say,
    died: str,
    again: Callable[[], Iterable[str]],
    may_be_dry: bool = False,
) -> int:
    """Unpack what a remote run printed; say what is missing, and where it is.

    Args:
        died: how the remote process ended, for the case that it left nothing.
        again: reads the whole log once more; a stream may have lost what the log still holds.
        may_be_dry: a run that only planned is what was asked for.

    Returns:
        The exit code of the run; 2 when it died without one.

    Raises:
        EnvironmentFault: the store cannot be written.
    """
    reader = follower.reader
    try:
        data = reader.data()
    except TornArchiveError:
        reader = FrameReader()
        for line in again():
            reader.is_ours(line)
        if reader.header is None and reader.none is None:
            reader = follower.reader
    header = reader.header
    if header is None:
        if reader.none is not None and not reader.foreign:
            none = reader.none
            return _ended_without(none.exit_code, none.dry_run and not may_be_dry, say)
        last = " | ".join(follower.last) or "none"
        say(f"tocsin: chaos run: {died} and left no report; its last lines: {last}; {place.look}")
        return EXIT_UNKNOWN
    try:
        data = reader.data()
        run_dir = unpack(data, header, store, place.origin)
    except TornArchiveError as error:
        say(
            f"tocsin: {error}; the run ended with exit code {header.exit_code}, its report did "
            f"not get here; {place.whole}"
        )
        return header.exit_code or EXIT_INVALID
    if header.left_out_count:
        say(_left_out(header.left_out, header.left_out_count, place))
    say(f"tocsin: report: {report_in(run_dir)}")
    return header.exit_code


def _ended_without(code: int, only_planned: bool, say: Say) -> int:
    """A run that had no folder: refused, misspelt, stopped early, or only planned."""
    if code == 0 and only_planned:
        say(
            "tocsin: chaos run: it was only planned over there (its policy says dry run), nothing "
            "was injected and nothing is proved; arm it, or ask for --dry-run"
        )
        return EXIT_ABORTED
    return code


def _left_out(left_out: tuple[tuple[str, int], ...], count: int, place: Place) -> str:
    named = ", ".join(f"{path} ({_size(size)})" for path, size in left_out[:_NAMED_MOST])
    more = f" and {count - _NAMED_MOST} more" if count > _NAMED_MOST else ""
    return f"tocsin: left out of the archive to keep it small: {named}{more}; {place.whole}"


def _size(size_bytes: int) -> str:
    if size_bytes >= 1 << 20:
        return f"{size_bytes / (1 << 20):.1f} MiB"
    return f"{max(1, size_bytes >> 10)} KiB"
