"""The value sets that the gate renders: every combination of what matters, pairs of the rest."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

from tocsin.helm.gate.choices import AXES, REST, Choice
from tocsin.helm.gate.render import CHART, Case, Render, merged, render_many

# One call of helm for so many value sets: its start is then a small part, its output fits memory.
CHUNK = 64
PROCESSES = 2


@cache
def cases() -> Mapping[str, Case]:
    """Name → value set: the whole product of the axes, and every pair of the other choices."""
    found = {"defaults": Case()}
    for picked in product(*AXES.values()):
        if _fits(picked) and _values(picked):
            found[_name(AXES, picked)] = Case(_values(picked))
    rows = [values for values in map(_values, _pairs(list(REST.values()))) if values]
    return found | {f"pairs-{number}": Case(values) for number, values in enumerate(rows)}


def renders(chart: Path = CHART, names: Sequence[str] = ()) -> dict[str, Render]:
    """Name → render, for all cases or those named; two processes share the work.

    Raises:
        SpecError: helm refuses one of them.
    """
    chosen = list(names) or list(cases())
    parts = [chosen[start : start + CHUNK] for start in range(0, len(chosen), CHUNK)]
    with ThreadPoolExecutor(PROCESSES) as pool:
        done = pool.map(
            lambda part: render_many([cases()[one] for one in part], chart=chart), parts
        )
        return {
            name: render
            for part, answers in zip(parts, done, strict=True)
            for name, render in zip(part, answers, strict=True)
        }


def _fits(picked: Sequence[Choice]) -> bool:
    """Whether choices can be made together, as each says of itself."""
    marks = {mark for choice in picked for mark in choice.gives}
    return not any(choice.needs - marks or choice.bars & marks for choice in picked)


def _name(axes: Mapping[str, Sequence[Choice]], picked: Sequence[Choice]) -> str:
    return ",".join(f"{axis}={choice.name}" for axis, choice in zip(axes, picked, strict=True))


def _values(picked: Sequence[Choice]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for choice in picked:
        values = merged(values, choice.values)
    return values


def _pairs(axes: Sequence[Sequence[Choice]]) -> Iterator[tuple[Choice, ...]]:
    """Few rows in which every two choices of different axes meet that can meet at all."""
    wanted = {
        (left, a, right, b)
        for left, right in combinations(range(len(axes)), 2)
        for a, b in product(range(len(axes[left])), range(len(axes[right])))
        if _can_meet(axes, {left: a, right: b})
    }
    while wanted:
        left, a, right, b = min(wanted)
        row = {left: a, right: b}
        for axis in range(len(axes)):
            if axis not in row:
                row[axis] = _best(axes, row, axis, wanted)
        yield tuple(axes[axis][row[axis]] for axis in range(len(axes)))
        wanted -= _met(row)


def _best(
    axes: Sequence[Sequence[Choice]],
    row: Mapping[int, int],
    axis: int,
    wanted: set[tuple[int, int, int, int]],
) -> int:
    """The choice on this axis that meets most wanted pairs, among those that fit the row."""
    fitting = [
        option for option in range(len(axes[axis])) if _can_meet(axes, {**row, axis: option})
    ]
    return max(fitting, key=lambda option: len(_new(row, axis, option) & wanted))


def _can_meet(axes: Sequence[Sequence[Choice]], row: Mapping[int, int]) -> bool:
    """Whether a part of a row can be completed: what it needs may come from open axes."""
    picked = [axes[axis][option] for axis, option in row.items()]
    marks = {mark for choice in picked for mark in choice.gives}
    if any(choice.bars & marks for choice in picked):
        return False
    missing = {mark for choice in picked for mark in choice.needs} - marks
    barred = {mark for choice in picked for mark in choice.bars}
    if missing & barred:
        return False
    open_axes = [axes[axis] for axis in range(len(axes)) if axis not in row]
    return all(
        any(
            mark in choice.gives and not choice.bars & marks
            for axis in open_axes
            for choice in axis
        )
        for mark in missing
    )


def _new(row: Mapping[int, int], axis: int, option: int) -> set[tuple[int, int, int, int]]:
    return {
        (other, chosen, axis, option) if other < axis else (axis, option, other, chosen)
        for other, chosen in row.items()
    }


def _met(row: Mapping[int, int]) -> set[tuple[int, int, int, int]]:
    return {(left, row[left], right, row[right]) for left, right in combinations(sorted(row), 2)}
