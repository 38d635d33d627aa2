"""Letters on disk: those on their way, and the dead ones, so that no kill loses an alert."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from tocsin.core.errors import CapacityError
from tocsin.dashboards.relay.letter import Letter

DEAD_LETTERS = "dead-letters.jsonl"


class Spool:
    """A folder: `spool/<id>.json` for each letter on its way, `dead-letters.jsonl` for the rest."""

    def __init__(self, folder: Path) -> None:
        """Make the folder; what it holds names failures and hosts, so it is private."""
        self._folder = folder
        self._spool = folder / "spool"
        self._dead = folder / DEAD_LETTERS
        self._spool.mkdir(parents=True, mode=0o700, exist_ok=True)

    def keep(self, letter: Letter) -> None:
        """Write a letter down before anybody is told that it was taken.

        Raises:
            CapacityError: the disk does not take it.
        """
        path = self._path(letter)
        try:
            fresh = path.with_suffix(".new")
            fresh.write_text(letter.model_dump_json(by_alias=True), encoding="utf-8")
            fresh.replace(path)
        except OSError as error:
            raise CapacityError(
                f"relay: {path.parent} takes no letter ({error.strerror}), expected room on the "
                "disk; free some: Alertmanager sends the alert again"
            ) from error

    def drop(self, letter: Letter) -> None:
        """The letter has arrived."""
        self._path(letter).unlink(missing_ok=True)

    def waiting(self) -> list[Letter]:
        """Letters that an earlier process left, oldest first; what is not readable stays there."""
        found = []
        for path in sorted(self._spool.glob("*.json")):
            with contextlib.suppress(OSError, ValidationError):
                found.append(Letter.model_validate_json(path.read_bytes()))
        return found

    def bury(self, letter: Letter) -> None:
        """Add to the dead letters; raises nothing: without a disk it stays in the spool."""
        with contextlib.suppress(OSError):
            with self._locked(), self._dead.open("a", encoding="utf-8") as file:
                file.write(letter.model_dump_json(by_alias=True) + "\n")
                file.flush()
                os.fsync(file.fileno())
            self.drop(letter)

    def dead(self) -> list[Letter]:
        """The dead letters, oldest first."""
        return [letter for _, letter in self._lines() if letter is not None]

    def dig_up(self, wanted: Callable[[Letter], bool]) -> list[Letter]:
        """Take letters out of the dead ones and keep them as on their way, with attempts at 0."""
        taken: list[Letter] = []
        with self._locked():
            stay = []
            for line, letter in self._lines():
                if letter is not None and wanted(letter):
                    taken.append(letter.model_copy(update={"attempts": 0, "error": ""}))
                else:
                    stay.append(line)
            for letter in taken:
                self.keep(letter)
            fresh = self._dead.with_suffix(".new")
            fresh.write_bytes(b"".join(line + b"\n" for line in stay))
            fresh.replace(self._dead)
        return taken

    def _lines(self) -> list[tuple[bytes, Letter | None]]:
        """Each line and its letter, None where it is not one: such a line is never thrown away."""
        if not self._dead.exists():
            return []
        found: list[tuple[bytes, Letter | None]] = []
        # Bytes, cut at line feeds alone: a text may hold other ends of lines, a torn one anything.
        for line in filter(None, self._dead.read_bytes().split(b"\n")):
            try:
                found.append((line, Letter.model_validate_json(line)))
            except ValidationError:
                found.append((line, None))
        return found

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time: `tocsin alerts redeliver` runs beside the relay."""
        with (self._folder / f"{DEAD_LETTERS}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _path(self, letter: Letter) -> Path:
        return self._spool / f"{letter.id}.json"
