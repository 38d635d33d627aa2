"""A file as lines of a log: every line says what it is, so that other lines may stand between."""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tocsin.core.errors import TocsinError

FORMAT = 1
WIDTH = 2048
"""Letters of base64 in a line: with its head it is written in one piece (PIPE_BUF is 4,096)."""

_BYTES_MAX = 1 << 30
"""No log is kept that holds more."""
_WORD = "tocsin-archive"
_NOBODY = "-"
_LINE = re.compile(rf"{_WORD} ([0-9a-f]{{8}}|{_NOBODY}) (BEGIN|END|NONE|[0-9]{{1,7}})(?: (.*))?")
_BASE64 = re.compile(r"[A-Za-z0-9+/=]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class TornArchiveError(TocsinError):
    """The log does not hold the whole archive; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the BEGIN line says of the archive.

    Attributes:
        name: `<experiment>/<run>`.
        lines: of data, numbered from 1.
        exit_code: of the run.
        left_out: paths that did not fit and their bytes, the largest first.
        left_out_count: how many there are; `left_out` may be shorter.
        tocsin: version that wrote it.
    """

    name: str
    bytes: int
    sha256: str
    lines: int
    exit_code: int
    left_out: tuple[tuple[str, int], ...] = ()
    left_out_count: int = 0
    tocsin: str = ""


@dataclass(frozen=True, slots=True)
class NoArchive:
    """A run that ended before it had a folder.

    Attributes:
        dry_run: it was only planned: nothing was to be injected.
    """

    exit_code: int
    dry_run: bool = False
    tocsin: str = ""


def framed(data: bytes, header: Header) -> Iterator[str]:
    """The lines of an archive, without line ends."""
    text = base64.b64encode(data).decode("ascii")
    mark = f"{_WORD} {header.sha256[:8]}"
    left_out = [list(one) for one in header.left_out]
    yield f"{mark} BEGIN " + json.dumps(
        {
            "format": FORMAT,
            "name": header.name,
            "bytes": header.bytes,
            "sha256": header.sha256,
            "lines": header.lines,
            "width": WIDTH,
            "exit_code": header.exit_code,
            "left_out": left_out,
            "left_out_count": header.left_out_count,
            "tocsin": header.tocsin,
        }
    )
    for number in range(header.lines):
        yield f"{mark} {number + 1} {text[number * WIDTH : (number + 1) * WIDTH]}"
    yield f"{mark} END"


def no_archive_line(none: NoArchive) -> str:
    """The line that stands where the archive would."""
    return f"{_WORD} {_NOBODY} NONE " + json.dumps(
        {
            "format": FORMAT,
            "exit_code": none.exit_code,
            "dry_run": none.dry_run,
            "tocsin": none.tocsin,
        }
    )


def lines_of(size_bytes: int) -> int:
    """How many lines of data an archive takes."""
    letters = -(-size_bytes // 3) * 4
    return -(-letters // WIDTH)


@dataclass(slots=True)
class FrameReader:
    """Takes the archive out of a log, line by line; the last archive in a log is the one.

    Attributes:
        header: of the archive; None: no BEGIN line was seen.
        none: what was said in its place.
        ended: the END line was seen.
        foreign: format of an archive that this version does not know; 0: there was none.
    """

    header: Header | None = None
    none: NoArchive | None = None
    ended: bool = False
    foreign: int = 0
    _mark: str = ""
    _pieces: dict[int, str] = field(default_factory=dict)
    _early: dict[str, dict[int, str]] = field(default_factory=dict)

    def is_ours(self, line: str) -> bool:
        """Take a line; whether it belongs to the archive, so that nobody need see it."""
        found = _LINE.search(line)
        if found is None:
            return False
        mark, kind, rest = found.group(1), found.group(2), found.group(3) or ""
        if kind == "BEGIN":
            self._begin(mark, rest)
        elif kind == "NONE":
            self.none = _none(rest)
        elif kind == "END":
            self.ended = self.ended or (bool(mark) and mark == self._mark)
        elif number := int(kind):
            piece = _BASE64.match(rest)
            held = self._pieces if mark == self._mark else self._early.setdefault(mark, {})
            # A line may come twice, once whole and once cut: the longer one is the whole one.
            text = piece.group(0)[:WIDTH] if piece else ""
            held[number] = max(held.get(number, ""), text, key=len)
        return True

    def data(self) -> bytes:
        """The archive's bytes.

        Raises:
            TornArchiveError: it is not whole.
        """
        return self.whole()[1]

    def whole(self) -> tuple[Header, bytes]:
        """The archive, and what it says of itself.

        Raises:
            TornArchiveError: it is not whole.
        """
        header = self.header
        if self.foreign:
            raise TornArchiveError(
                f"archive: found format {self.foreign}, this tocsin reads format {FORMAT}; "
                "install the version that wrote it"
            )
        if header is None:
            raise TornArchiveError(
                "archive: the log holds no BEGIN line of an archive, expected the whole log of a "
                "run with --print-archive; fetch it again"
            )
        missing = [n for n in range(1, header.lines + 1) if n not in self._pieces]
        if missing:
            raise TornArchiveError(
                f"archive: {len(missing)} of {header.lines} lines are missing from the log, the "
                f"first is line {missing[0]}; fetch the log again, or the folder from where it ran"
            )
        try:
            data = base64.b64decode(
                "".join(self._pieces[n] for n in range(1, header.lines + 1)), validate=True
            )
        except binascii.Error as error:
            raise TornArchiveError(f"archive: a line of the log is damaged ({error})") from None
        if len(data) != header.bytes:
            raise TornArchiveError(
                f"archive: found {len(data)} bytes, expected {header.bytes}: a line was cut"
            )
        if hashlib.sha256(data).hexdigest() != header.sha256:
            raise TornArchiveError(
                f"archive: its SHA-256 is not {header.sha256[:12]}…: a line of the log was changed"
            )
        return header, data

    def _begin(self, mark: str, rest: str) -> None:
        found = _document(rest).get("format")
        if isinstance(found, int) and found != FORMAT:
            self.foreign = found
            return
        header = _header(rest)
        if header is None or header.sha256[:8] != mark:
            return  # cut: the data lines alone say nothing of what they are
        if mark != self._mark:
            self._pieces = self._early.pop(mark, {})
            self.ended = False
        self.header, self._mark, self.none, self.foreign = header, mark, None, 0


def _header(text: str) -> Header | None:
    document = _document(text)
    try:
        header = Header(
            name=str(document["name"]),
            bytes=int(document["bytes"]),
            sha256=str(document["sha256"]),
            lines=int(document["lines"]),
            exit_code=int(document["exit_code"]),
            left_out=tuple((str(path), int(size)) for path, size in document.get("left_out", ())),
            left_out_count=int(document.get("left_out_count", 0)),
            tocsin=str(document.get("tocsin", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError):  # Infinity is JSON to Python
        return None
    fits = 0 <= header.bytes <= _BYTES_MAX and header.lines == lines_of(header.bytes)
    return header if fits and _DIGEST.fullmatch(header.sha256) else None


def _none(text: str) -> NoArchive | None:
    document = _document(text)
    try:
        return NoArchive(
            int(document["exit_code"]),
            bool(document.get("dry_run", False)),
            str(document.get("tocsin", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _document(text: str) -> Mapping[str, Any]:
    """The JSON object that a text begins with; whatever a log adds behind it is not looked at."""
    try:
        found, _ = json.JSONDecoder().raw_decode(text.strip())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
