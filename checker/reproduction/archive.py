"""Where recorded failures are: snapshot folders and journal lines, by id or the latest one."""

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.checker.snapshot import DOCUMENT, load_document, numbers
from tocsin.core.errors import ContractError, SpecError
from tocsin.core.terms import Operator

_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_BELOW = ("", "snapshots", "journal/snapshots", "repro/snapshots")
_STORES = ("*", "*/*")
_JOURNALS = ("*.jsonl*", "journal/*.jsonl*", "logs/failures/*.jsonl*", "../*.jsonl*")
_LOGS_OF_RUN = ("../../logs/failures/*.jsonl*",)

Where = Path | str | Sequence[Path | str] | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded failure.

    Attributes:
        folder: of its snapshot.
        number: of the call in it.
        facts: the journal's line, where it was found, and the snapshot's document.
    """

    failure_id: str
    folder: Path
    number: int
    facts: Mapping[str, Any]


def places(where: Where = None) -> list[Path]:
    """Folders to look into: those given, or the journal, this node's, and the store's runs.

    Raises:
        SpecError: a given folder does not exist.
    """
    if where is not None:
        given = [where] if isinstance(where, str | Path) else list(where)
        for one in given:
            if not Path(one).is_dir():
                raise SpecError(
                    f"reproduce: {one} is not a folder, expected a node folder, a journal, a "
                    "chaos run or a snapshot; name one that is"
                )
        return [Path(one) for one in given]
    state = os.environ.get("TOCSIN_STATE")
    own = Path(tempfile.gettempdir()) / f"tocsin-{os.getuid()}"
    # `node`, and `node-<pid>` of clusters that ran beside another one.
    nodes = [Path(state)] if state else sorted(own.glob("node*"))
    journal = os.environ.get("TOCSIN_JOURNAL")
    chosen = [Path(journal)] if journal else []
    found = [path if path.is_dir() else path.parent for path in chosen]
    return [*found, *nodes, Path("store")]


def find(wanted: str, where: Where = None) -> Recorded:
    """A recorded failure.

    Args:
        wanted: a failure id, a beginning of one, `latest`, or `latest:<operator or check>`.

    Raises:
        SpecError: there is none, or only its numbers were kept.
    """
    roots = places(where)
    folders = {path.name: path for path in _snapshots(roots)}
    word, _, operator = wanted.partition(":")
    if word == "latest":
        folder = _latest(folders, operator, roots)
    elif operator or not _ULID.fullmatch(word.upper().ljust(26, "0")):
        raise SpecError(
            f"reproduce: found id {wanted!r}, expected 26 letters and digits as in the alert, "
            "latest, or latest:<operator>; copy it from the alert or the journal"
        )
    else:
        folder = _by_id(word.upper(), folders, roots)
    number = _number(folder, operator)
    document = load_document(folder, number)
    failure_id = str(document.get("failure_id"))
    if not _ULID.fullmatch(failure_id):  # it becomes a folder's name
        failure_id = folder.name
    if document.get("full") is False or document.get("not_stored"):
        raise SpecError(
            f"reproduce: failure {failure_id} was recorded without all of its tensors, expected a "
            "full snapshot; take the first failure of this operator and check: "
            f"latest:{document.get('operator', '')}"
        )
    line = _line(failure_id, (*roots, folder.parent))
    return Recorded(
        failure_id, folder, number, {**line, **document, "number": number, "impact": _impact(line)}
    )


def snapshots_of(run_dir: Path) -> list[Path]:
    """Snapshot folders of one run or node, first failure first."""
    found = {path.name: path for path in _snapshots([run_dir])}
    return [found[name] for name in sorted(found)]


def _snapshots(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        if (root / DOCUMENT).is_file():
            yield root
        bases = [root, *(one for pattern in _STORES for one in root.glob(pattern))]
        for base in bases:
            if not base.is_dir() or base.is_symlink():
                continue
            for below in _BELOW:
                folder = base / below if below else base
                for document in folder.glob(f"*/{DOCUMENT}"):
                    # A reproduction keeps a copy of what it was made from: that is no failure.
                    if document.parent.name != "recorded":
                        yield document.parent


def _by_id(word: str, folders: Mapping[str, Path], roots: Sequence[Path]) -> Path:
    found = [name for name in folders if name.startswith(word)]
    if len(found) == 1:
        return folders[found[0]]
    if len(found) > 1:
        raise SpecError(
            f"reproduce: {word} is the beginning of {len(found)} failures, expected one; "
            "write more of it"
        )
    looked = ", ".join(map(str, roots))
    if _line(word, roots):
        raise SpecError(
            f"reproduce: failure {word} is in the journal and has no snapshot, expected one of "
            "those recorded in full (the first of each operator and check in five minutes); "
            "take latest:<operator>"
        )
    raise SpecError(
        f"reproduce: found no failure {word} in {looked}, expected its snapshot; "
        "name the folder with --folder"
    )


def _latest(folders: Mapping[str, Path], wanted: str, roots: Sequence[Path]) -> Path:
    for name in sorted(folders, reverse=True):
        if not wanted or _number(folders[name], wanted, strict=True):
            return folders[name]
    known = ", ".join(Operator)
    if wanted and wanted not in set(Operator) and "." not in wanted:
        raise SpecError(
            f"reproduce: found operator {wanted!r}, expected one of {known}; correct the name"
        )
    of = f" of {wanted}" if wanted else ""
    looked = ", ".join(map(str, roots))
    raise SpecError(
        f"reproduce: found no recorded failure{of} in {looked}, expected at least one; "
        "name the folder with --folder, or run where the journal is"
    )


def _number(folder: Path, wanted: str, *, strict: bool = False) -> int:
    """Which call of a failure: the first, or the first of an operator or check; 0 where none is."""
    known = numbers(folder)
    for number in known:
        try:
            document = load_document(folder, number)
        except ContractError:
            if strict:
                continue  # a damaged one hides none of the others
            raise
        if not wanted or wanted in (document.get("operator"), document.get("check")):
            return number
    return 0 if strict else (known or (1,))[0]


def _line(failure_id: str, roots: Iterable[Path]) -> dict[str, Any]:
    """The journal's line of a failure; empty where it is not found."""
    for root in roots:
        bases = [root, *(one for pattern in _STORES for one in root.glob(pattern))]
        for base in bases:
            for pattern in (*_JOURNALS, *_LOGS_OF_RUN):
                for path in sorted(base.glob(pattern)):
                    found = _in_file(path, failure_id)
                    if found:
                        return found
    return {}


def _in_file(path: Path, failure_id: str) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}  # compressed, or gone in the meantime: the snapshot says enough
    if failure_id not in text:
        return {}
    for line in text.split("\n"):
        if failure_id in line:
            try:
                record: dict[str, Any] = json.loads(line)
            except ValueError:
                continue  # the last line of a process that was killed
            if str(record.get("failure_id", "")).startswith(failure_id):
                return record
    return {}


def _impact(line: Mapping[str, Any]) -> str:
    return str(line.get("business_impact") or "")
