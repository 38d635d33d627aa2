"""A small evaluator of PromQL and of alerting rules, so that rule logic is tested without promtool.

It knows only what the rules use, and refuses everything else. It follows Prometheus 2.42: closed
ranges, five minutes of lookback, `increase()` extrapolated to the edges of the range. Live tests
show that promtool says the same of the same cases.
"""

import math
import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import promql_parser as parser

Labels = tuple[tuple[str, str], ...]
Vector = dict[Labels, float]
LOOKBACK_S = 300.0


@dataclass(slots=True)
class Series:
    """One series: its samples in the order of their times."""

    labels: Labels
    times_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def at(self, now_s: float) -> float | None:
        """The newest sample that is not too old."""
        last = bisect_right(self.times_s, now_s) - 1
        if last < 0 or self.times_s[last] <= now_s - LOOKBACK_S:
            return None
        return self.values[last]

    def within(self, since_s: float, now_s: float) -> list[tuple[float, float]]:
        """The samples of a range, both ends included."""
        span = slice(bisect_left(self.times_s, since_s), bisect_right(self.times_s, now_s))
        return list(zip(self.times_s[span], self.values[span], strict=True))


def seconds(text: str) -> float:
    """`1h30m` in seconds."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"(\d+)(ms|[smhd])", text))


def series(selector: str, values: str, interval_s: float) -> Series:
    """One series in promtool's notation: `a`, `_`, `axn` (n more), `a+bxn`, `_xn` (n gaps)."""
    parsed = parser.parse(selector)
    labels = {matcher.name: matcher.value for matcher in parsed.matchers.matchers}
    made = Series(_key({"__name__": parsed.name, **labels}))
    at = 0
    for word in values.split():
        found = re.fullmatch(r"(_|-?[\d.]+)(?:([+-][\d.]+))?(?:x(\d+))?", word)
        assert found is not None, word
        start, step, more = found[1], float(found[2] or 0), int(found[3] or 0)
        count = more if start == "_" and found[3] else more + 1
        for number in range(count):
            if start != "_":
                made.times_s.append(at * interval_s)
                made.values.append(float(start) + number * step)
            at += 1
    return made


def evaluate(expr: str, known: Iterable[Series], now_s: float) -> Vector:
    """The instant vector of an expression."""
    found = _value(parser.parse(expr), list(known), now_s)
    assert isinstance(found, dict), f"{expr}: is a number, expected a vector"
    return found


def firing(
    expr: str,
    hold: str,
    keep_firing: str,
    known: list[Series],
    at_s: float,
    step_s: float,
    recordings: Iterable[tuple[str, str]] = (),
    own: Mapping[str, str] | None = None,
) -> Vector:
    """Alerts that fire at a time: labels of the expression → value, as a rule group finds them.

    With `own`, the rule's labels, it also finds what it said itself a step before, as `ALERTS`.
    """
    recorded: dict[Labels, Series] = {}
    since_s: dict[Labels, float] = {}
    fires: dict[Labels, tuple[float, float]] = {}
    steps = int(at_s // step_s)
    for number in range(steps + 1):
        now_s = number * step_s
        for name, source in recordings:
            for labels, value in evaluate(source, known, now_s).items():
                key = _key({**dict(labels), "__name__": name})
                one = recorded.setdefault(key, Series(key))
                one.times_s.append(now_s)
                one.values.append(value)
        said = [
            Series(_key({**dict(labels), **own, "__name__": "ALERTS"}), [now_s - step_s], [1.0])
            for labels in (since_s.keys() | fires.keys() if own else ())
            if own
        ]
        found = evaluate(expr, [*known, *recorded.values(), *said], now_s)
        true = {_nameless(labels): value for labels, value in found.items()}
        for labels, value in true.items():
            since_s.setdefault(labels, now_s)
            if now_s - since_s[labels] >= seconds(hold):
                fires[labels] = (now_s, value)
        for labels in list(since_s):
            if labels not in true:
                del since_s[labels]
        for labels, (last_s, _) in list(fires.items()):
            if labels not in true and now_s - last_s >= seconds(keep_firing):
                del fires[labels]
    return {labels: value for labels, (_, value) in fires.items()}


def _key(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted((name, value) for name, value in labels.items() if value))


def _nameless(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != "__name__")


def _value(node: Any, known: list[Series], now_s: float) -> Vector | float:
    kind = type(node).__name__
    if kind == "NumberLiteral":
        return float(node.val)
    if kind == "ParenExpr":
        return _value(node.expr, known, now_s)
    if kind == "VectorSelector":
        at_s = now_s - _offset_s(node)
        found = {one.labels: one.at(at_s) for one in known if _matches(node, one)}
        return {labels: value for labels, value in found.items() if value is not None}
    if kind == "AggregateExpr":
        return _aggregate(node, known, now_s)
    if kind == "BinaryExpr":
        return _binary(node, _value(node.lhs, known, now_s), _value(node.rhs, known, now_s))
    if kind == "Call":
        return _call(node, known, now_s)
    raise NotImplementedError(kind)


def _offset_s(selector: Any) -> float:
    return float(selector.offset.total_seconds()) if selector.offset else 0.0


def _matches(selector: Any, one: Series) -> bool:
    labels = dict(one.labels)
    if selector.name and labels["__name__"] != selector.name:
        return False
    tests: dict[str, Callable[[str, str], bool]] = {
        "MatchOp.Equal": lambda has, wanted: has == wanted,
        "MatchOp.NotEqual": lambda has, wanted: has != wanted,
        "MatchOp.Re": lambda has, wanted: re.fullmatch(wanted, has) is not None,
        "MatchOp.NotRe": lambda has, wanted: re.fullmatch(wanted, has) is None,
    }
    return all(
        tests[str(matcher.op)](labels.get(matcher.name, ""), matcher.value)
        for matcher in selector.matchers.matchers
    )


def _aggregate(node: Any, known: list[Series], now_s: float) -> Vector:
    source = _value(node.expr, known, now_s)
    assert isinstance(source, dict)
    by = set(node.modifier.labels) if node.modifier else set()
    groups: dict[Labels, list[float]] = {}
    for labels, value in source.items():
        key = tuple(pair for pair in labels if pair[0] in by)
        groups.setdefault(key, []).append(value)
    reduce = {"sum": sum, "max": max, "min": min}[str(node.op)]
    return {labels: float(reduce(values)) for labels, values in groups.items()}


def _call(node: Any, known: list[Series], now_s: float) -> Vector | float:
    name = node.func.name
    if name == "time":
        return now_s
    if name == "vector":
        return {(): float(node.args[0].val)}
    if name == "absent":
        found = _value(node.args[0], known, now_s)
        equal = {
            m.name: m.value for m in node.args[0].matchers.matchers if str(m.op) == "MatchOp.Equal"
        }
        return {} if found else {_key(equal): 1.0}
    if name == "label_replace":
        source, (label, text) = node.args[0], (part.val for part in node.args[1:3])
        replaced = _value(source, known, now_s)
        assert isinstance(replaced, dict)
        return {_key({**dict(labels), label: text}): value for labels, value in replaced.items()}
    over = {
        "increase": _increase,
        "rate": lambda points, range_s, since_s: _divided(
            _increase(points, range_s, since_s), range_s
        ),
        "last_over_time": lambda points, *_: points[-1][1],
        "max_over_time": lambda points, *_: max(value for _, value in points),
        "avg_over_time": lambda points, *_: sum(value for _, value in points) / len(points),
    }[name]
    matrix = node.args[0]
    range_s = matrix.range.total_seconds()
    end_s = now_s - _offset_s(matrix.vector_selector)
    results: Vector = {}
    for one in known:
        points = one.within(end_s - range_s, end_s) if _matches(matrix.vector_selector, one) else []
        value = over(points, range_s, end_s - range_s) if points else None
        if value is not None:
            labels = one.labels if name == "last_over_time" else _nameless(one.labels)
            results[labels] = value
    return results


def _divided(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def _increase(points: list[tuple[float, float]], range_s: float, since_s: float) -> float | None:
    """`extrapolatedRate` of Prometheus' promql/functions.go, for counters."""
    if len(points) < 2:
        return None
    (first_s, first), (last_s, last) = points[0], points[-1]
    grown = last - first
    grown += sum(a for (_, a), (_, b) in pairwise(points) if b < a)
    sampled_s = last_s - first_s
    apart_s = sampled_s / (len(points) - 1)
    to_start_s, to_end_s = first_s - since_s, since_s + range_s - last_s
    if grown > 0 and first >= 0:
        to_start_s = min(to_start_s, sampled_s * (first / grown))
    span_s = sampled_s
    span_s += to_start_s if to_start_s < apart_s * 1.1 else apart_s / 2
    span_s += to_end_s if to_end_s < apart_s * 1.1 else apart_s / 2
    return grown * (span_s / sampled_s)


_COMPARE = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else math.nan if not a or math.isnan(a) else math.inf,
}


def _binary(node: Any, left: Vector | float, right: Vector | float) -> Vector | float:
    word = str(node.op)
    if word in ("and", "or", "unless"):
        assert isinstance(left, dict)
        assert isinstance(right, dict)
        return _set(node, word, left, right)
    if not isinstance(left, dict) and not isinstance(right, dict):
        return float(_ARITHMETIC[word](left, right))
    if node.modifier and node.modifier.card == parser.VectorMatchCardinality.ManyToOne:
        assert isinstance(left, dict)
        assert isinstance(right, dict)
        return _labelled(node, left, right)
    pairs: Iterable[tuple[Labels, float, float]]
    if isinstance(left, dict) and isinstance(right, dict):
        others = {_nameless(labels): value for labels, value in right.items()}
        pairs = [
            (labels, value, others[_nameless(labels)])
            for labels, value in left.items()
            if _nameless(labels) in others
        ]
    elif isinstance(left, dict):
        pairs = [(labels, value, float(right)) for labels, value in left.items()]  # type: ignore[arg-type]
    else:
        assert isinstance(right, dict)
        pairs = [(labels, left, value) for labels, value in right.items()]
    if word in _COMPARE:
        kept = [(labels, a, b) for labels, a, b in pairs if _COMPARE[word](a, b)]
        if isinstance(left, dict):
            return {labels: a for labels, a, _ in kept}
        return {labels: b for labels, _, b in kept}
    return {_nameless(labels): float(_ARITHMETIC[word](a, b)) for labels, a, b in pairs}


def _labelled(node: Any, left: Vector, right: Vector) -> Vector:
    """`left op on () group_left (…) right`: the one element on the right lends its labels."""
    assert not node.modifier.matching.labels, "only on () is known"
    if not right:
        return {}
    ((labels, value),) = right.items()
    lent = {name: dict(labels).get(name, "") for name in node.modifier.group_labels}
    reckon = _ARITHMETIC[str(node.op)]
    return {
        _key({**dict(_nameless(one)), **lent}): float(reckon(own, value))
        for one, own in left.items()
    }


def _set(node: Any, word: str, left: Vector, right: Vector) -> Vector:
    matching = node.modifier.matching if node.modifier else None
    on = set(matching.labels) if matching is not None else None

    def key(labels: Labels) -> Labels:
        plain = _nameless(labels)
        return plain if on is None else tuple(pair for pair in plain if pair[0] in on)

    there = {key(labels) for labels in right}
    if word == "and":
        return {labels: value for labels, value in left.items() if key(labels) in there}
    if word == "unless":
        return {labels: value for labels, value in left.items() if key(labels) not in there}
    mine = {key(labels) for labels in left}
    return {**left, **{labels: v for labels, v in right.items() if key(labels) not in mine}}
