"""How a run leaves the machine it was made on: printed at the end of its log, or published."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tocsin.chaos import wal
from tocsin.chaos.store import VERDICT
from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.commands.edge import EXIT_INVALID, exit_code_of
from tocsin.ray_jobs.remote.archive import pack, tocsin_version
from tocsin.ray_jobs.remote.frame import NoArchive, framed, no_archive_line
from tocsin.ray_jobs.remote.publish import check_publish, publish

CALLER = "TOCSIN_CALLER"
"""Variable with the caller's version of tocsin."""


@dataclass(slots=True)
class Delivery:
    """Around a run, as a context manager: whatever it ends in, the caller hears of it.

    Attributes:
        store: of the runs.
        prints: end standard output with the archive, or with a line that says that there is none.
        limit_bytes: most bytes of the archive.
        publish_url: where a copy goes; empty: nowhere.
        experiment: name of the experiment, once it is known.
    """

    store: Path
    prints: bool
    limit_bytes: int
    publish_url: str = ""
    experiment: str = ""
    write: Callable[[str], None] | None = None
    _before: frozenset[str] = field(default_factory=frozenset)
    _done: bool = False

    def __enter__(self) -> "Delivery":
        """Refuse what could not be delivered, before minutes are spent on it.

        Raises:
            EnvironmentFault: the caller is of another version, or the URL of no known kind.
        """
        try:
            check_caller(os.environ.get(CALLER, ""), tocsin_version())
            if self.publish_url:
                check_publish(self.publish_url)
        except EnvironmentFault as error:
            self._say_none(exit_code_of(error))
            raise
        return self

    def begin(self, experiment: str) -> None:
        """The run is about to begin; the runs that are there now are not it."""
        self.experiment = experiment
        self._before = frozenset(path.name for path in self._folders())

    def finish(self, code: int) -> int:
        """Deliver the run.

        Returns:
            The exit code of the command: a run that passed and was not published is no pass.
        """
        run_dir = self._run_dir()
        if run_dir is None:
            self._say_none(code)
            return code
        if self.publish_url:
            try:
                where = publish(run_dir, self.publish_url)
                sys.stderr.write(f"tocsin: published at {where}\n")
            except EnvironmentFault as error:
                sys.stderr.write(f"tocsin: {error}\n")
                code = code or EXIT_INVALID
        if self.prints:
            packed = pack(run_dir, code, self.limit_bytes)
            sys.stderr.flush()
            for line in framed(packed.data, packed.header):
                self._say(line)
        self._done = True
        return code

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say that there is no archive, where nothing was said yet."""
        if not self._done:
            self._say_none(exit_code_of(error))

    def _say_none(self, code: int) -> None:
        self._done = True
        if self.prints:
            none = NoArchive(code, dry_run=code == 0, tocsin=tocsin_version())
            self._say(no_archive_line(none))

    def _say(self, line: str) -> None:
        """One write a line: what other processes write into the same log cannot cut it."""
        if self.write is not None:
            self.write(line)
            return
        sys.stdout.flush()
        data = line.encode("ascii") + b"\n"
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]

    def _run_dir(self) -> Path | None:
        """The folder that this process made since `begin`, if it holds a verdict."""
        for path in reversed(self._folders()):
            ours = path.name not in self._before and _maker(path) == os.getpid()
            if ours and (path / VERDICT).is_file():
                return path
        return None

    def _folders(self) -> list[Path]:
        parent = self.store / self.experiment
        if not self.experiment or not parent.is_dir():
            return []
        return sorted(path for path in parent.iterdir() if path.is_dir())


def check_caller(caller: str, here: str) -> None:
    """Make sure that a caller on another machine means what this version understands.

    Raises:
        EnvironmentFault: major or minor version differ.
    """
    if caller and here and caller.split(".")[:2] != here.split(".")[:2]:
        raise EnvironmentFault(
            f"chaos run: the cluster has tocsin {here}, the caller is tocsin {caller}, expected "
            "the same major and minor version: experiments and reports may differ; install "
            f"tocsin {here} on the caller's side, or an image of {caller} on the cluster"
        )


def _maker(run_dir: Path) -> int:
    """Process id of the run that made a folder; 0: unknown."""
    try:
        with (run_dir / wal.NAME).open("rb") as log:
            record = wal.decode(log.readline().rstrip(b"\n")) or {}
    except OSError:
        return 0
    return int(record.get("pid", 0))
