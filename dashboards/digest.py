"""The weekly digest: what failed by operator and check, against the week before, with examples.

Counts come from the journal's five-minute rows, which count every failure, also those without a
line of their own. A line that no row covers (its writer was killed, or the row is still open)
counts once.
"""

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

NUMERICAL = "numerical."
EXAMPLES_MAX = 3
_ROUNDING_S = 0.002
"""Times in the journal are whole milliseconds."""

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """One failure that can be made to happen again."""

    failure_id: str
    when_s: float
    replica: str
    cause: str

    @property
    def command(self) -> str:
        """The line to paste."""
        return f"tocsin reproduce {self.failure_id} --run"


@dataclass(frozen=True, slots=True)
class Entry:
    """All failures of one check at one operator within the period.

    Attributes:
        before: failures in the period before; None where the journal does not reach back so far.
        suppressed: those among `count` that have no line of their own.
    """

    operator: str
    check: str
    count: int
    before: int | None
    suppressed: int
    first_s: float
    last_s: float
    examples: tuple[Example, ...]

    @property
    def trend(self) -> str:
        """In words: new, gone up or down, or not known."""
        if self.before is None:
            return "unknown"
        if not self.before:
            return "new"
        return f"{(self.count - self.before) / self.before:+.0%}"


@dataclass(frozen=True, slots=True)
class Digest:
    """What happened between two times."""

    since_s: float
    until_s: float
    entries: tuple[Entry, ...]

    @property
    def archived(self) -> tuple[Entry, ...]:
        """P2: numerical failures, of which nobody was told at the time."""
        return tuple(entry for entry in self.entries if entry.check.startswith(NUMERICAL))

    @property
    def told(self) -> tuple[Entry, ...]:
        """All others: they were tickets or pages when they happened."""
        return tuple(entry for entry in self.entries if not entry.check.startswith(NUMERICAL))


@dataclass(slots=True)
class _Tally:
    count: int = 0
    before: int = 0
    suppressed: int = 0
    first_s: float = float("inf")
    last_s: float = float("-inf")
    examples: list[Example] = field(default_factory=list)

    def span(self, first_s: float, last_s: float) -> None:
        self.first_s, self.last_s = min(self.first_s, first_s), max(self.last_s, last_s)


def make_digest(writers: Iterable[Iterable[Record]], since_s: float, until_s: float) -> Digest:
    """Add the journals up.

    Args:
        writers: for each writer its records, merged rows included, in any order.
        since_s, until_s: the period, Unix time; the one before is as long.
    """
    tallies: dict[tuple[str, str], _Tally] = {}
    before_s = since_s - (until_s - since_s)
    oldest_s = float("inf")
    for records in writers:
        rows, lines = _split(records)
        for row in rows:
            first_s, last_s = _time_s(row["since"]), _time_s(row["until"])
            oldest_s = min(oldest_s, first_s)
            tally = tallies.setdefault(_key(row), _Tally())
            if since_s <= last_s < until_s:
                tally.count += int(row["count"])
                tally.suppressed += int(row["suppressed"])
                tally.span(first_s, last_s)
            elif before_s <= last_s < since_s:
                tally.before += int(row["count"])
        covered = _covered(rows)
        for line in lines:
            when_s = _time_s(line["ts"])
            oldest_s = min(oldest_s, when_s)
            tally = tallies.setdefault(_key(line), _Tally())
            counts = not any(first <= when_s <= last for first, last in covered.get(_key(line), ()))
            if since_s <= when_s < until_s:
                tally.count += counts
                tally.span(when_s, when_s)
                tally.examples.append(_example(line, when_s))
            elif before_s <= when_s < since_s:
                tally.before += counts
    reaches_back = oldest_s <= since_s
    entries = [
        _entry(key, tally, tally.before if reaches_back else None)
        for key, tally in tallies.items()
        if tally.count
    ]
    entries.sort(key=lambda entry: (-entry.count, entry.operator, entry.check))
    return Digest(since_s, until_s, tuple(entries))


def markdown(digest: Digest) -> str:
    """The digest for a ticket or a chat."""
    lines = [f"# {_title(digest)}", "", _words(digest), ""]
    for heading, entries in _sections(digest):
        lines += [f"## {heading}", ""]
        if not entries:
            lines += ["No failure was recorded. 无失败记录。", ""]
            continue
        lines += [
            f"| {' | '.join(_HEADS[:-1])} |",
            "|---|---|---:|---:|---:|---|---|",
        ]
        lines += [f"| {' | '.join(_cells(entry))} |" for entry in entries]
        lines.append("")
        for entry in entries:
            lines += [f"- {_said(entry, example)}" for example in entry.examples]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def page(digest: Digest) -> str:
    """The digest as one self-contained HTML page."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>{html.escape(_title(digest))}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(_title(digest))}</h1><p>{html.escape(_words(digest))}</p>",
    ]
    for heading, entries in _sections(digest):
        parts.append(f"<h2>{html.escape(heading)}</h2>")
        if not entries:
            parts.append("<p>No failure was recorded. 无失败记录。</p>")
            continue
        heads = "".join(f"<th>{head}</th>" for head in _HEADS)
        parts.append(f"<table><tr>{heads}</tr>")
        for entry in entries:
            cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(entry))
            commands = "<br>".join(
                f"<code>{html.escape(example.command)}</code>" for example in entry.examples
            )
            parts.append(f"<tr>{cells}<td>{commands}</td></tr>")
        parts.append("</table>")
    return "\n".join([*parts, "</body></html>", ""])


_HEADS = (
    "operator 算子",
    "check 检查",
    "count 次数",
    "trend 趋势",
    "without a line 未写入",
    "first 首次",
    "last 末次",
    "reproduce 复现",
)
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em}"
    "table{border-collapse:collapse;width:100%}th,td{border:1px solid #bbb;padding:.3em .6em;"
    "text-align:left;vertical-align:top}th{background:#eee}code{font-size:90%}"
)


def _split(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Merged rows and lines; what is neither (torn, or of a newer version) is passed over."""
    rows: list[Record] = []
    lines: list[Record] = []
    for record in records:
        if record.get("row") == "aggregate":
            counts = (record.get("count"), record.get("suppressed"))
            if all(isinstance(one, int) for one in counts) and _has_times(record, "since", "until"):
                rows.append(record)
        elif record.get("failure_id") and _has_times(record, "ts"):
            lines.append(record)
    return rows, lines


def _has_times(record: Record, *names: str) -> bool:
    try:
        for name in names:
            _time_s(record.get(name))
    except (ValueError, OverflowError):
        return False
    return True


def _covered(rows: list[Record]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Times within which the rows have counted already."""
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        span = (_time_s(row["since"]) - _ROUNDING_S, _time_s(row["until"]) + _ROUNDING_S)
        spans.setdefault(_key(row), []).append(span)
    return spans


def _key(record: Record) -> tuple[str, str]:
    return str(record.get("operator", "")), str(record.get("code", ""))


def _example(line: Record, when_s: float) -> Example:
    return Example(
        str(line["failure_id"]), when_s, str(line.get("replica", "")), str(line.get("cause", ""))
    )


def _entry(key: tuple[str, str], tally: _Tally, before: int | None) -> Entry:
    newest = sorted(tally.examples, key=lambda example: -example.when_s)[:EXAMPLES_MAX]
    return Entry(
        operator=key[0],
        check=key[1],
        count=tally.count,
        before=before,
        suppressed=tally.suppressed,
        first_s=tally.first_s,
        last_s=tally.last_s,
        examples=tuple(newest),
    )


def _sections(digest: Digest) -> tuple[tuple[str, tuple[Entry, ...]], ...]:
    return (
        ("P2: numerical warnings, archived 数值告警(已归档)", digest.archived),
        ("For the record: what was a ticket or a page 已处理的 P0/P1", digest.told),
    )


def _said(entry: Entry, example: Example) -> str:
    return (
        f"`{example.command}`: {entry.check} at {entry.operator}, {_stamp(example.when_s)}, "
        f"replica {example.replica or '?'}, {example.cause or 'cause not known'}"
    )


def _title(digest: Digest) -> str:
    days = f"{_stamp(digest.since_s)[:10]} – {_stamp(digest.until_s)[:10]}"
    return f"Tocsin digest 每周摘要 {days}"


def _words(digest: Digest) -> str:
    archived = sum(entry.count for entry in digest.archived)
    told = sum(entry.count for entry in digest.told)
    return (
        f"{archived} numerical failures went to the archive, {told} others were tickets or pages. "
        f"数值失败 {archived} 次(已归档),其它失败 {told} 次。"
    )


def _cells(entry: Entry) -> tuple[str, ...]:
    return (
        entry.operator,
        entry.check,
        str(entry.count),
        entry.trend,
        str(entry.suppressed),
        _stamp(entry.first_s),
        _stamp(entry.last_s),
    )


def _stamp(when_s: float) -> str:
    return datetime.fromtimestamp(when_s, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _time_s(text: object) -> float:
    return datetime.fromisoformat(str(text)).timestamp()
